"""How every benchmark measures: one concept a file, and no import of `streamrec`.

- `program`: the command line. The options of a benchmark are the keyword arguments of its `main`.
- `process`: a function of a benchmark in a process of its own, so that each side has its own
  imports, threads and memory.
- `meter`: what a process measures of itself: wall-clock and processor seconds, peak memory.
- `calm`: a run is repeated where the hypervisor gave the processors to another machine.
- `rounds`: sides take turns; medians, and ratios within a round with their spread.
- `results`: the data files, each with the machine, the date, the commit and the versions.

A side is a callable without arguments that returns figures by name, such as
`{"mb_s": 910.0, "cpu_s_gb": 0.4}`.

`benchmarks.against` runs these files together with an earlier version of the package. That is why
they import nothing of it.
"""
