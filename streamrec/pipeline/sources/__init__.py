"""Sources: where elements come from, and sources that run other chains: again, ahead, side by side, shuffled, kept."""
