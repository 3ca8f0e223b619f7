"""Long runs over a bad network, before real servers. Short ones of them are tests; `make soak` runs
long ones.
"""
