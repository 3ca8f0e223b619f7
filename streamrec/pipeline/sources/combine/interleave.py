"""Interleaves datasets that a function makes of each element.

`flat_map` has one open dataset at a time.

Each dataset runs in a task of its own, with an equal share of the budget; a few are opened before
their turn comes. `sources/interleave.py` decides whose turn it is; this file makes the chains, and
moves chunks.

Rules:
- The function is called in a thread, for as many elements as there is room for. Its errors wait for
  their turns.
- Only the main loop raises: tasks put their errors where they belong in the order.
- An element that failed in the outer chain or in the function is an input that gives only that
  failure.
- A position holds no element. It has the outer chain's position before the oldest open input, and
  the number and position of each open input. A resumed run first makes these inputs again: the
  outer chain runs from the oldest one on, and must give the same elements.
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

from streamrec.arguments import check_function, name_type
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Joined, Position, SeveralInputs
from streamrec.pipeline.engine.description import Chain, Source, name_of
from streamrec.pipeline.engine.queue import Signal, fill
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.sources.inputs import AHEAD, InputBuffer, run_inputs
from streamrec.pipeline.sources.interleave import (
    Interleave,
    OpenInputs,
    Plan,
    positions_in_turns,
)
from streamrec.pipeline.sources.pulls import TurnShares
from streamrec.pipeline.stages.calling import call_function
from streamrec.storage.tasks import background


@dataclass(frozen=True, slots=True)
class Interleaved(Source):
    """Interleaves chains that a function makes of an outer chain's elements.

    A tuple's parts are its arguments.
    """

    outer: Chain
    function: Callable[..., Any]
    plan: Plan

    def __post_init__(self) -> None:
        check_function("map_func", self.function)

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
                    f"{verb} would never end: {name_of(self.function)} makes an endless dataset; "
                    "put take(count) "
                    "after it"
                )
            return dataset

        return replace(self, function=wraps(self.function)(call))

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        part = context.part(self.plan.open_inputs + 1)
        arrived = Signal()
        outer_position = state["outer"] if state else None
        async with (
            run_inputs([self.outer], [outer_position], part, Signal()) as (outer,),
            background() as tasks,
        ):
            inputs = InputOpener(self, outer, tasks, part, arrived)
            plan = self.plan.within(context.deterministic)
            if state:
                order = await inputs.resume(state, plan)
            else:
                order = DatasetInterleave(plan, [None] * plan.cycle_length)
            tasks.start_soon(inputs.run, order)
            while True:
                # Set before each pull, since the chunk's position may have to say which element of
                # the outer chain comes next.
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
    """An element of the outer chain.

    It has its number, the position before it, and the chain that was made of it.
    """

    ordinal: int
    outer: Joined
    chain: Chain | None = None


class OpenInput(InputBuffer):
    """A buffer for the chain that was made of an element of the outer chain."""

    def __init__(
        self, limit: int, arrived: Signal, start: Position | None, ordinal: int, outer: Joined
    ) -> None:
        super().__init__(limit, arrived, start)
        self.origin = InputOrigin(ordinal, outer)

    @property
    def is_open(self) -> bool:
        return self.origin.chain is not None


class DatasetInterleave(Interleave[OpenInput]):
    """The running interleave of datasets.

    The caller adds inputs to `waiting` in order, and fills them; before it calls `pull`, it sets
    `following`, the next input to be added.
    """

    def __init__(
        self, plan: Plan, slots: Sequence[OpenInput | None], cycle: int = 0, block: int = 0
    ) -> None:
        super().__init__(plan, slots, cycle, block)
        self.waiting: deque[OpenInput] = deque()
        self.following: InputOrigin | None = None

    @property
    def under_way(self) -> int:
        """How many inputs are waiting or have a slot."""
        return len(self.waiting) + len(self._slots) - self._slots.count(None)

    @property
    def has_more(self) -> bool:
        return bool(self.waiting)

    def _next(self) -> OpenInput:
        return self.waiting.popleft()

    def _positions(self, inputs: OpenInputs, turns: TurnShares, count: int) -> SeveralInputs:
        following = self.waiting[0].origin if self.waiting else self.following
        assert following is not None, "it is set before each pull"
        origins = tuple(
            None if entry is None or positions is None else entry.origin
            for entry, positions in zip(self._slots, inputs, strict=True)
        )
        return positions_in_turns(inputs, turns, partial(describe_datasets, origins, following))


def describe_datasets(
    origins: Sequence[InputOrigin | None],
    following: InputOrigin,
    positions: Sequence[Position | None],
) -> dict[str, Any]:
    """What a state says of the open inputs, and of the outer chain's position at the oldest one."""
    slots: list[list[Any] | None] = []
    for origin, position in zip(origins, positions, strict=True):
        if origin is None:
            slots.append(None)
            continue
        digest = None if origin.chain is None else digest_chain(origin.chain)
        slots.append([origin.ordinal, digest, position or None])
    # A resumed run takes the outer elements again from the oldest open one on: no position holds an
    # element, so the datasets must be made of the same elements again.
    opened = (origin for origin in origins if origin)
    oldest = min(opened, key=lambda origin: origin.ordinal, default=following)
    return {
        "outer": oldest.outer.at(0),
        "first": oldest.ordinal,
        "next": following.ordinal,
        "slots": slots,
    }


def digest_chain(chain: Chain) -> str:
    """16 hexadecimal digits that differ for different chains."""
    return hashlib.blake2b("\n".join(chain.lines()).encode(), digest_size=8).hexdigest()


class InputOpener:
    """Makes chains of the outer chain's elements and starts a task for each.

    It counts the elements that it took. The caller notifies `room` when an input may be exhausted.
    """

    def __init__(
        self,
        source: Interleaved,
        outer: InputBuffer,
        tasks: TaskGroup,
        context: RunContext,
        arrived: Signal,
    ) -> None:
        self.count = 0
        self.room = Signal()
        self._source = source
        self._outer = outer
        self._tasks = tasks
        self._share, self._context = context.take(AHEAD)
        self._arrived = arrived

    async def run(self, order: DatasetInterleave) -> None:
        """Adds inputs to the interleave while there is room, up to the end of the outer chain.

        Raises nothing.
        """
        try:
            while await self._outer.more():
                while not (room := self._source.plan.open_inputs - order.under_way):
                    await self.room.wait()
                if self._outer.has_failure:
                    order.waiting.append(self._fail_next())
                    self._arrived.notify()
                    continue
                taken = [self._take_next(None) for _ in range(min(room, self._outer.available))]
                order.waiting.extend(entry for entry, _ in taken)
                await self._open(taken)
        except Exception as error:
            order.waiting.append(self._input(self._outer.mark()))
            order.waiting[-1].end(error)
        order.complete = True
        self._arrived.notify()

    async def resume(self, state: Mapping[str, Any], plan: Plan) -> DatasetInterleave:
        """Restores the interleave, and makes its open inputs again of their elements."""
        saved = {slot[0]: slot for slot in state["slots"] if slot is not None}
        entries: dict[int, OpenInput] = {}
        self.count = state["first"]
        while self.count < state["next"]:
            if not await self._outer.more():
                raise PositionMismatchError(
                    f"the input of interleave has only {self.count:,} elements, but this state "
                    f"was saved after {state['next']:,}: resume with the data that it was saved "
                    "with, or start over without the state"
                )
            # Elements whose datasets have ended since are taken, too, but not opened.
            slot = saved.get(self.count)
            if self._outer.has_failure:
                entry = self._fail_next()
                entries[entry.origin.ordinal] = entry
                continue
            entry, element = self._take_next(slot and slot[2])
            if slot is not None:
                entries[slot[0]] = entry
                await self._open([(entry, element)], slot[1], slot[2])
        slots = [slot and entries[slot[0]] for slot in state["slots"]]
        return DatasetInterleave(plan, slots, state["cycle"], state["block"])

    def _fail_next(self) -> OpenInput:
        """Takes the next element, which failed, and makes an input of the failure."""
        entry = self._input(self._outer.mark())
        entry.end_with(self._outer.take_failure())
        self.count += 1
        return entry

    def _take_next(self, position: Position | None) -> tuple[OpenInput, Any]:
        """Takes the next element, and makes an input for its dataset."""
        taken = self._outer.take(1)
        entry = self._input(taken.positions, position)
        self.count += 1
        return entry, taken.windows[0][0]

    def _input(self, outer: Joined, position: Position | None = None) -> OpenInput:
        """Makes an input for the next element, before which the outer chain is at `outer`."""
        return OpenInput(self._share.nbytes, self._arrived, position, self.count, outer)

    async def _open(
        self,
        taken: Sequence[tuple[OpenInput, Any]],
        digest: str | None = None,
        position: Position | None = None,
    ) -> None:
        """Calls the function for elements, and starts the chains that it makes."""
        work = partial(make_chains, self._source.function, [element for _, element in taken])
        chains = await self._context.session.threads.run(work)
        for (entry, _), chain in zip(taken, chains, strict=True):
            if isinstance(chain, Exception):
                entry.end_with(chain)
                continue
            if digest is not None and digest != digest_chain(chain):
                raise PositionMismatchError(
                    f"interleave: {name_of(self._source.function)} makes a different dataset of "
                    f"element {entry.origin.ordinal:,} than when this state was saved: "
                    f"{' > '.join(chain.lines())}; resume with the data and the function that it "
                    "was saved with, or start over without the state"
                )
            entry.origin = entry.origin._replace(chain=chain)
            context = self._context.fork_seed(1 + entry.origin.ordinal)
            self._tasks.start_soon(fill, entry, run_branch(chain, position, context))


def make_chains(function: Callable[..., Any], elements: Sequence[Any]) -> list[Chain | Exception]:
    """The chain that a function makes of each element, or its error."""
    chains: list[Chain | Exception] = []
    for element in elements:
        try:
            dataset = call_function(function, element)
            chain = getattr(dataset, "chain", None)
            if not isinstance(chain, Chain):
                raise TypeError(
                    f"{name_of(function)} returned {name_type(dataset)} where a Dataset is "
                    "expected: the function passed to interleave or flat_map must make a Dataset "
                    "from each element, as TFRecordDataset does from a file name"
                )
            chains.append(chain)
        except Exception as error:
            chains.append(error)
    return chains


async def run_branch(
    chain: Chain, position: Position | None, context: RunContext
) -> AsyncGenerator[Chunk]:
    """A chain's chunks.

    What it opens is closed after it, except for clients, which the run keeps.
    """
    async with (
        context.session.branch() as session,
        aclosing(
            replace(context, session=session).chunks(chain, position, continue_on_error=True)
        ) as chunks,
    ):
        async for chunk in chunks:
            yield chunk
