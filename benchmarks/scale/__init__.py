"""Training at scale, simulated: 10^5 shards, 10^9 records, 1,024 ranks of 8 workers, and 768 ranks
from mid-epoch on.

    python -m benchmarks.scale [--dry] [--shards 100000] [--records 10000] [--ranks 1024]
        [--workers 8]

The data set exists as arithmetic (`shape.py`): a record holds its own number, and the store
(`store.py`) makes the bytes of a shard when it is asked for them. It answers after 30 to 50 ms, at
60 MB/s a connection, speaks S3 over HTTP and counts requests. Tables:

- growth: what a listing, a manifest, an index, a plan, a state and a resumption cost at 10^6 to
  10^9 records, each in a process of its own.
- start: what one of all readers needs until its first batch, in each way of naming the shards, and
  its peak memory.
- plan (`plans.py`): the plans of all readers, made by the library from the store's listing, its
  manifest and its index. Their records are counted: each must come once in each of three epochs,
  and in the epoch in which the ranks change.
- read (`readers.py`): some ranks read their records from the store, each in a process; these must
  be the ones that the plan says. The first of them reads three epochs, the others one.
- nodes: requests, seconds and dollars of 10, 100 and 1,000 nodes of 8 ranks, from the plans and
  from what readers cost.

`distribute` refuses the state of another number of readers, so the new ranks read the rest of all
old readers, each with its own state. `global_shuffle` resumes from one state with any number of
ranks.

Prices and rates are assumptions: the Amazon S3 pricing page (S3 Standard, US East) has $0.0004 for
1,000 GETs and $0.005 for 1,000 LISTs; the S3 User Guide ("Optimizing Amazon S3 performance") has
5,500 GETs a second for a prefix.
"""
