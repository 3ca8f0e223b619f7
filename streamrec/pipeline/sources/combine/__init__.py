"""Sources that run chains side by side.

`inputs.py` holds what has arrived of each; the others decide what is taken.
"""
