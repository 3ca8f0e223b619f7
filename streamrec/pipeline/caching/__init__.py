"""Cache: elements of the first pass, kept in memory or in a file."""
