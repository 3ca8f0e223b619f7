"""Stages: what happens to elements, as frozen descriptions and steps without I/O. `stage.py` has the rules."""
