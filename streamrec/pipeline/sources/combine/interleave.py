"""Interleave: a function makes a dataset of each element, and these are interleaved; `flat_map` has one at a time.

Each dataset runs in a task of its own, with an equal share of the budget; a few are opened before their turn comes.
`sources/interleave.py` decides whose turn it is; this file makes the chains, and moves chunks.

Rules:
- The function is called in a thread, for as many elements as there is room for; what it raises waits for its turn.
- Only the main loop raises: tasks put their errors where they belong in the order.
- An element of the outer chain that failed, or at which the function failed, is an input that gives nothing but that.
- A position holds no element: it says where the outer chain is at the oldest open input, the numbers of those that
  are open, and where each of them is. Where a run goes on, these are made again before anything is given: the outer
  chain runs from the oldest of them on, and must give the same elements again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NamedTuple

from anyio.abc import TaskGroup

from streamrec.arguments import name_type
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Joined, Position
from streamrec.pipeline.engine.description import Chain, Source, name_of
from streamrec.pipeline.engine.queue import Signal, background, fill
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.sources.inputs import AHEAD, InputBuffer, run_inputs
from streamrec.pipeline.sources.interleave import Interleave, InterleavedPositions, OpenSlot, Plan, TurnShares

__all__ = ["Interleaved"]


@dataclass(frozen=True, slots=True)
class Interleaved(Source):
    """Chains that a function makes of a chain's elements, interleaved.

    Args:
        outer: Gives the elements.
        function: Makes of each something that has a `chain`; a tuple's parts are its arguments.
        plan: The order.
    """

    outer: Chain
    function: Callable[..., Any]
    plan: Plan

    @property
    def places(self) -> int:
        """How many chains run: those that take turns, and a few that are opened before their turns come."""
        return self.plan.cycle_length + max(2, self.plan.cycle_length // 4)

    def lines(self) -> Iterator[str]:
        yield from self.outer.lines()
        yield f"Interleave({self.plan!r}, {name_of(self.function)})"

    @property
    def is_endless(self) -> bool:
        return self.outer.is_endless

    def refuse_endless(self, verb: str) -> Interleaved:
        def call(*element: Any) -> Any:
            dataset = self.function(*element)
            chain = getattr(dataset, "chain", None)
            if isinstance(chain, Chain) and chain.is_endless:
                raise ValueError(
                    f"{verb} would never end: {name_of(self.function)} makes a dataset that has no end; put "
                    "take(count) after it"
                )
            return dataset

        return replace(self, function=wraps(self.function)(call))

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        part = within.part(self.places + 1)
        arrived, outer_position = Signal(), state["outer"] if state else None
        async with (
            run_inputs([self.outer], [outer_position], part, Signal()) as (outer,),
            background() as tasks,
        ):
            inputs = InputOpener(self, outer, tasks, part, arrived)
            plan = self.plan.within(within.deterministic)
            order = await inputs.resume(state, plan) if state else DatasetInterleave(plan, [None] * plan.cycle_length)
            tasks.start_soon(inputs.run, order)
            while True:
                order.following = InputOrigin(inputs.count, outer.mark())
                chunk = order.pull()
                inputs.room.notify()
                if chunk is not None:
                    yield chunk
                elif order.finished:
                    return
                else:
                    await arrived.wait()


class InputOrigin(NamedTuple):
    """An element of the outer chain: its number, where the chain is before it, and the chain that was made of it."""

    ordinal: int
    outer: Joined
    chain: Chain | None = None


class OpenInput(InputBuffer):
    """An element of the outer chain, and what has arrived of the chain that was made of it, if it was made."""

    def __init__(self, limit: int, arrived: Signal, start: Position | None, ordinal: int, outer: Joined) -> None:
        super().__init__(limit, arrived, start)
        self.origin = InputOrigin(ordinal, outer)

    @property
    def is_open(self) -> bool:
        return self.origin.chain is not None


class DatasetInterleave(Interleave[OpenInput]):
    """The running interleave of datasets: the caller adds inputs in order, fills them, and calls `pull`.

    Attributes:
        waiting: Inputs that were added, and have no slot yet.
        following: The next input to be added, before each `pull`.
    """

    def __init__(self, plan: Plan, slots: Sequence[OpenInput | None], cycle: int = 0, block: int = 0) -> None:
        super().__init__(plan, slots, cycle, block)
        self.waiting: deque[OpenInput] = deque()
        self.following: InputOrigin | None = None

    @property
    def under_way(self) -> int:
        """How many inputs were added and are not used up."""
        return len(self.waiting) + len(self._slots) - self._slots.count(None)

    @property
    def has_more(self) -> bool:
        return bool(self.waiting)

    def _next(self) -> OpenInput:
        return self.waiting.popleft()

    def _positions(self, slots: tuple[OpenSlot | None, ...], turns: TurnShares, count: int) -> DatasetPositions:
        return DatasetPositions(slots, turns, count, self.waiting[0].origin if self.waiting else self.following)


@dataclass(frozen=True, slots=True)
class DatasetPositions(InterleavedPositions):
    """Positions of elements of datasets: where the outer chain is at the oldest open one, and which these are."""

    def state(self, places: Sequence[Position | None]) -> dict[str, Any]:
        following: InputOrigin = self.following
        slots = [
            slot and [slot.origin.ordinal, slot.origin.chain and digest_of(slot.origin.chain), place or None]
            for slot, place in zip(self.slots, places, strict=True)
        ]
        oldest = min((slot.origin for slot in self.slots if slot), key=lambda origin: origin.ordinal, default=following)
        return {"outer": oldest.outer.at(0), "first": oldest.ordinal, "next": following.ordinal, "slots": slots}


def digest_of(chain: Chain) -> str:
    """A few letters that differ where chains do."""
    return hashlib.blake2b("\n".join(chain.lines()).encode(), digest_size=8).hexdigest()


class InputOpener:
    """Makes chains of the outer chain's elements, and starts a task for each.

    Attributes:
        count: How many elements of the outer chain were taken.
        room: To be told when an input may have been used up.
    """

    def __init__(
        self, source: Interleaved, outer: InputBuffer, tasks: TaskGroup, within: RunContext, arrived: Signal
    ) -> None:
        self.count = 0
        self.room = Signal()
        self._source = source
        self._outer = outer
        self._tasks = tasks
        self._limit, self._within = within.take(AHEAD)
        self._arrived = arrived

    async def run(self, order: DatasetInterleave) -> None:
        """Adds inputs to the interleave as there is room for them, up to the end of the outer chain. Raises nothing."""
        try:
            while await self._outer.more():
                while not (room := self._source.places - order.under_way):
                    await self.room.wait()
                if self._outer.has_failure:
                    order.waiting.append(self._fail_next())
                    self._arrived.notify()
                    continue
                taken = [self._take_next(None) for _ in range(min(room, self._outer.available))]
                order.waiting.extend(entry for entry, _ in taken)
                await self._make(taken)
        except Exception as error:
            order.waiting.append(self._input(self._outer.mark()))
            order.waiting[-1].end(error)
        order.complete = True
        self._arrived.notify()

    async def resume(self, state: Mapping[str, Any], plan: Plan) -> DatasetInterleave:
        """Returns the interleave as it was, with its open inputs made again of their elements.

        Raises:
            PositionMismatchError: The elements or the function are others than they were.
        """
        saved = {slot[0]: slot for slot in state["slots"] if slot is not None}
        entries: dict[int, OpenInput] = {}
        self.count = state["first"]
        while self.count < state["next"]:
            if not await self._outer.more():
                raise PositionMismatchError(
                    f"interleave: its input ends before element {self.count:,}, and when this state was saved "
                    f"{state['next']:,} were in use; resume with the data that it was saved with, or start over"
                )
            slot = saved.get(self.count)
            if self._outer.has_failure:
                entry = self._fail_next()
                entries[entry.origin.ordinal] = entry
                continue
            entry, element = self._take_next(slot and slot[2])
            if slot is not None:
                entries[slot[0]] = entry
                await self._make([(entry, element)], slot[1], slot[2])
        slots = [slot and entries[slot[0]] for slot in state["slots"]]
        return DatasetInterleave(plan, slots, state["cycle"], state["block"])

    def _fail_next(self) -> OpenInput:
        """An input in the place of the next element, which failed."""
        entry = self._input(self._outer.mark())
        entry.end_with(self._outer.take_failure())
        self.count += 1
        return entry

    def _take_next(self, position: Position | None) -> tuple[OpenInput, Any]:
        """The next element, and an input for what will be made of it."""
        taken = self._outer.take(1)
        entry = self._input(taken.places, position)
        self.count += 1
        return entry, taken.windows[0][0]

    def _input(self, outer: Joined, position: Position | None = None) -> OpenInput:
        """An input for the next element, before which the outer chain is at `outer`."""
        return OpenInput(self._limit, self._arrived, position, self.count, outer)

    async def _make(
        self, taken: Sequence[tuple[OpenInput, Any]], digest: str | None = None, position: Position | None = None
    ) -> None:
        """Calls the function for elements, and starts what it makes of them."""
        work = partial(make_chains, self._source.function, [element for _, element in taken])
        chains = await self._within.session.threads.run(work)
        for (entry, _), chain in zip(taken, chains, strict=True):
            if isinstance(chain, Exception):
                entry.end_with(chain)
                continue
            if digest is not None and digest != digest_of(chain):
                raise PositionMismatchError(
                    f"interleave: {name_of(self._source.function)} makes another dataset of element "
                    f"{entry.origin.ordinal:,} than when this state was saved: now it is {' > '.join(chain.lines())}; "
                    "resume with the data and the function that it was saved with, or start over without the state"
                )
            entry.origin = entry.origin._replace(chain=chain)
            within = self._within.apart(1 + entry.origin.ordinal)
            self._tasks.start_soon(fill, entry, run_branch(chain, position, within))


def make_chains(function: Callable[..., Any], elements: Sequence[Any]) -> list[Chain | Exception]:
    """The chain that a function makes of each element, or what went wrong with it."""
    chains: list[Chain | Exception] = []
    for element in elements:
        try:
            chains.append(chain_of(function, element))
        except Exception as error:
            chains.append(error)
    return chains


def chain_of(function: Callable[..., Any], element: Any) -> Chain:
    """The chain that a function makes of an element."""
    dataset = function(*element) if type(element) is tuple else function(element)
    chain = getattr(dataset, "chain", None)
    if not isinstance(chain, Chain):
        raise TypeError(
            f"{name_of(function)} gave {name_type(dataset)} where a Dataset is wanted: interleave and flat_map "
            "take a function that makes a Dataset of each element, as TFRecordDataset does of a name"
        )
    return chain


async def run_branch(chain: Chain, position: Position | None, within: RunContext) -> AsyncGenerator[Chunk]:
    """A chain's chunks; what it opens is closed after it, but for the clients, which the run keeps."""
    async with (
        within.session.branch() as session,
        aclosing(replace(within, session=session).chunks(chain, position, goes_on=True)) as chunks,
    ):
        async for chunk in chunks:
            yield chunk
