"""Sources that are no shards, and sources that run one chain: again, ahead, or after another one."""
