"""Async code for sync callers: one event-loop thread per process, and iterators fed from it.

`run` awaits one coroutine and returns its result. `SyncIterator` runs a producer on the loop and
gives its items to a `for` loop in the caller's thread, through a queue that is bounded in weight
(bytes, for example).

The rules are at the top of each file:

- `loop.py`: the thread, fork, the interpreter's exit, a loop that other code stops;
- `job.py`: one piece of work: how it starts, is cancelled, cleans up and reports; Ctrl-C; `run`,
  `synchronous`, `detach`;
- `channel.py`: the bounded queue between the loop and the consumers;
- `iterator.py`: the consumer's view, from the first item to the end, an error, or a close.

>>> async def produce(put):
...     for item in ["a", "b"]:
...         await put(item, 1)
>>> list(SyncIterator(produce, limit=100))
['a', 'b']
>>> async def double(number):
...     return 2 * number
>>> run(double, 21)
42
"""

from streamrec.bridge.channel import Put
from streamrec.bridge.iterator import SyncIterator
from streamrec.bridge.job import detach, run, synchronous

__all__ = ["Put", "SyncIterator", "detach", "run", "synchronous"]
