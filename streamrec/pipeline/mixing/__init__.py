"""Sources that run chains side by side: `fronts.py` holds what has arrived of each, the others decide what is taken."""
