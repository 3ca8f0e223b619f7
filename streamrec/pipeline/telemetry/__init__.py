"""What a run counts and shows: statistics, the bottleneck, progress, traces, and where an error came up."""
