"""Telemetry of a run: statistics, the bottleneck, progress, and traces."""
