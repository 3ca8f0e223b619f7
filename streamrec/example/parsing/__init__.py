"""Parsing: `plan.py` says what to look for, `walk.py` finds it, `assemble.py` makes the columns."""
