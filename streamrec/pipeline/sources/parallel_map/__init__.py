"""Several calls of a function at once.

`source.py` runs them, `in_flight.py` and `autotune.py` decide.
"""
