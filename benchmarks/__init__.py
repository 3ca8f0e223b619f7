"""Comparisons with peers and with physical limits: code, and in `results/` the data of runs that
were seen.

Each module runs by itself (`python -m benchmarks.stream`), measures both sides in turn in one run,
and writes `results/NAME.json`: ratios, the figures behind them, and the machine they were seen on.
"""
