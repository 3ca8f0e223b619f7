"""Shuffle.

`shuffle.py` describes and runs it; the buffer is pure. What it held is fetched again by reference.
"""
