"""The commands. `NAME_command` is what click calls."""
