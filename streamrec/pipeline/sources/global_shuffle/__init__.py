"""Global shuffle: all records of a data set in an order that depends on a seed, an epoch and the index alone."""
