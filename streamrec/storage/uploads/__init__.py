"""Writing objects: all of an object or nothing, compared with what the store says it has."""
