"""Several calls of a function at once: `parallel_map.py` runs them, `inflight.py` and `tuning.py` decide."""
