"""The index of a data set: where each record lies; its format, its writers, and its reader."""
