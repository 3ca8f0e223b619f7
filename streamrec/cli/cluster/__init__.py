"""Commands on a Ray cluster (`--ray ADDRESS`): how tasks run, and what the tasks of each command do."""
