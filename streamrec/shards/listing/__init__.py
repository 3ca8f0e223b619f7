"""Which shards a name means, how large they are, and who reads which."""
