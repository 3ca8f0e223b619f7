"""One module or folder for each kind of store. A backend has a function `connect`;
`storage/backend.py` says what that gives and what it must be able to do. `memory.py` is the
smallest whole example.
"""
