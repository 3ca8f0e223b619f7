"""What the simulated object store answers, and in which words."""
