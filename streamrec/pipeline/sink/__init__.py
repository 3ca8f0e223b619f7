"""The sink: what a run gives, written into shards."""
