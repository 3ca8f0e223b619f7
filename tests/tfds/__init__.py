"""Folders of TensorFlow Datasets: see `folders.py`, which writes the small ones in tests/golden."""
