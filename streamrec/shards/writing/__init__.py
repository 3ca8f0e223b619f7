"""Shards, written: async and sync."""
