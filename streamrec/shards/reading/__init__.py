"""One shard, read: opened, whole or a piece of it, decompressed, framed."""
