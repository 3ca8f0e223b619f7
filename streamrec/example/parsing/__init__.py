"""Parsing: `plan.py` says what to look for, a walker finds it, `assemble.py` makes the columns."""
