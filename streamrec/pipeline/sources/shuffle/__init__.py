"""Shuffle: `shuffle.py` describes and runs it; the buffer is pure; what it held is fetched again by
reference.
"""
