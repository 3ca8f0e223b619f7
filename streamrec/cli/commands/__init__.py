"""The commands, a file for each. `command` in it is what click calls."""
