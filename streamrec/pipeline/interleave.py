"""Interleave: in which order the records of many shards come. Pure: it is told what has arrived, and plans.

The order is tf.data's: `cycle_length` slots hold a shard each; `block_length` records are taken from one slot,
then from the next. A shard that ends leaves its slot empty, and the cycle goes on; when it comes round, an
empty slot takes the next shard. So the order depends on the shards alone, never on which bytes came first.
With `deterministic=False` whatever has arrived first comes first, a block of a shard at a time.

Records are never handled one by one: where every slot has whole turns to give, many rounds are planned as one
array operation and gathered by one kernel call. Where one shard alone is read, nothing is copied at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.pipeline.chunk import Position, Positions
from streamrec.shards import ShardPlace
from streamrec.tfrecord import Frames

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Arrival", "Interleave", "Plan", "Turn"]

CHUNK_BYTES = 1 << 20
"""About how much a gathered chunk holds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How shards take turns: see the top of this file."""

    cycle_length: int = 1
    block_length: int = 1
    deterministic: bool = True

    def __post_init__(self) -> None:
        for name in ("cycle_length", "block_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Where a shard that takes part stands: its number, the next record's place, and how it is compressed."""

    shard: int
    place: ShardPlace = ShardPlace()
    compression: str | None = None

    def to_json(self) -> list[Any]:
        return [self.shard, self.place.offset, self.place.record, self.place.version, self.compression]

    @classmethod
    def from_json(cls, state: Sequence[Any]) -> Arrival:
        shard, offset, record, version, compression = state
        return cls(shard, ShardPlace(offset, record, version), compression)


@dataclass(frozen=True, slots=True)
class Turn:
    """A snapshot of the whole interleave: what a position of the source holds."""

    slots: tuple[Arrival | None, ...]
    cycle: int = 0
    block: int = 0
    next_shard: int = 0

    def to_json(self) -> dict[str, Any]:
        slots = [slot and slot.to_json() for slot in self.slots]
        return {"slots": slots, "cycle": self.cycle, "block": self.block, "next": self.next_shard}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Turn:
        slots = tuple(slot and Arrival.from_json(slot) for slot in state["slots"])
        return cls(slots, state["cycle"], state["block"], state["next"])


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """Positions within a chunk that came in order: the turn before it, and how many records into it."""

    before: Turn
    after: Turn
    count: int

    def at(self, index: int) -> Position:
        if index == self.count:
            return {"source": self.after.to_json(), "skip": 0}
        return {"source": self.before.to_json(), "skip": index}


@dataclass(frozen=True, slots=True)
class BlockPositions:
    """Positions within a chunk of one shard whose place in the order is not fixed: exact, without a skip."""

    before: Turn
    shard: int
    frames: Frames

    def at(self, index: int) -> Position:
        slots = tuple(slot and self._moved(slot, index) for slot in self.before.slots)
        turn = Turn(slots, self.before.cycle, self.before.block, self.before.next_shard)
        return {"source": turn.to_json(), "skip": 0}

    def _moved(self, slot: Arrival, index: int) -> Arrival:
        if slot.shard != self.shard:
            return slot
        place = ShardPlace(self.frames.offset(index), slot.place.record + index, slot.place.version)
        return Arrival(slot.shard, place, slot.compression)


class Lane:
    """One shard's records that have arrived and were not taken yet."""

    def __init__(self, arrival: Arrival) -> None:
        self.shard = arrival.shard
        self.start = arrival
        self.ended = False
        self.error: Exception | None = None
        self.held_bytes = 0
        self.available = 0
        self._record = arrival.place.record
        self._end = arrival.place.offset
        self._version = arrival.place.version
        self._compression = arrival.compression
        self._frames: deque[Frames] = deque()
        self._used = 0

    def opened(self, version: str | None, compression: str) -> None:
        """The shard is open: what it turned out to be."""
        self._version, self._compression = version, compression

    def push(self, frames: Frames) -> None:
        """Frames arrived."""
        self._frames.append(frames)
        self.available += len(frames)
        self.held_bytes += memoryview(frames.buffer).nbytes
        self._end = frames.offset(len(frames))

    @property
    def arrival(self) -> Arrival:
        """Where this lane stands: its next record not taken."""
        offset = self._frames[0].offset(self._used) if self._frames else self._end
        return Arrival(self.shard, ShardPlace(offset, self._record, self._version), self._compression)

    def front(self) -> int:
        """How many records lie in the first block, and can be had without a copy."""
        return len(self._frames[0]) - self._used if self._frames else 0

    def take(self, count: int) -> list[Frames]:
        """Takes the next `count` records, as windows of the blocks that they lie in."""
        taken = []
        self.available -= count
        self._record += count
        while count:
            frames = self._frames[0]
            last = min(len(frames), self._used + count)
            taken.append(frames.window(self._used, last))
            count -= last - self._used
            self._used = last
            if last == len(frames):
                self._frames.popleft()
                self._used = 0
                self.held_bytes -= memoryview(frames.buffer).nbytes
        return taken

    def typical_bytes(self) -> int:
        """About how long this lane's records are."""
        return self.held_bytes // max(self.available, 1) + 1


class Interleave:
    """The running interleave over `shards` shards.

    The caller makes a lane for each shard that `wanted` names, pushes what arrives, and calls `pull`.
    """

    def __init__(self, plan: Plan, shards: int, turn: Turn | None = None) -> None:
        turn = turn or Turn((None,) * plan.cycle_length)
        self._plan = plan
        self._shards = shards
        self._cycle = turn.cycle
        self._block = turn.block
        self._next = turn.next_shard
        self.lanes: dict[int, Lane] = {slot.shard: Lane(slot) for slot in turn.slots if slot}
        self._slots: list[Lane | None] = [slot and self.lanes[slot.shard] for slot in turn.slots]

    def wanted(self, ahead: int) -> list[Lane]:
        """The lanes that should be fed, most urgent first: those in slots, and `ahead` of the shards after them."""
        for shard in range(self._next, min(self._next + ahead, self._shards)):
            self.lanes.setdefault(shard, Lane(Arrival(shard)))
        return list(self.lanes.values())

    @property
    def finished(self) -> bool:
        """Whether every record was taken."""
        return self._next == self._shards and not any(self._slots)

    @property
    def turn(self) -> Turn:
        """Where the interleave stands."""
        slots = tuple(lane and lane.arrival for lane in self._slots)
        return Turn(slots, self._cycle, self._block, self._next)

    def pull(self) -> tuple[Frames, Positions] | None:
        """The next records in order, as far as they have arrived; None where nothing can be taken yet.

        Raises:
            Exception: The error of a shard whose turn has come; the shard leaves the cycle with it.
        """
        return self._pull_in_order() if self._plan.deterministic else self._pull_any()

    def _pull_any(self) -> tuple[Frames, Positions] | None:
        self._fill_slots()
        idle = 0
        while idle < len(self._slots) and not self.finished:
            before, index, lane = self.turn, self._cycle, self._slots[self._cycle]
            self._advance()
            if lane is not None and lane.available:
                (frames,) = lane.take(lane.front())
                return frames, BlockPositions(before, lane.shard, frames)
            idle += 1
            if lane is not None and lane.ended:
                self._leave(index)
                self._fill_slots()
                idle = 0
        return None

    def _fill_slots(self) -> None:
        for index, lane in enumerate(self._slots):
            if lane is None and self._next < self._shards:
                self._enter(index)

    def _pull_in_order(self) -> tuple[Frames, Positions] | None:
        before = self.turn
        gathering = Gathering()
        while not self.finished and gathering.nbytes < CHUNK_BYTES:
            lane = self._current()
            if lane is None:
                continue
            if not lane.available:
                if not lane.ended or (lane.error and gathering.nbytes):
                    break
                self._leave(self._cycle)
                self._advance()
            elif not self._take_rounds(gathering):
                self._take_turn(lane, gathering)
            if gathering.whole_block:
                break
        frames = gathering.frames()
        return (frames, SourcePositions(before, self.turn, len(frames))) if frames is not None else None

    def _current(self) -> Lane | None:
        """The lane whose turn it is; None where the slot is empty for good, and the cycle went on."""
        if self._slots[self._cycle] is None:
            if self._next == self._shards:
                self._advance()
                return None
            self._enter(self._cycle)
        return self._slots[self._cycle]

    def _take_turn(self, lane: Lane, gathering: Gathering) -> None:
        """What the current slot can give of its turn."""
        count = min(self._plan.block_length - self._block, lane.available)
        gathering.add(lane.take(count))
        self._block += count
        if self._block == self._plan.block_length:
            self._advance()

    def _take_rounds(self, gathering: Gathering) -> bool:
        """Whole rounds of the cycle at once, where all slots have them and none can be filled anew."""
        if self._block or (None in self._slots and self._next < self._shards):
            return False
        lanes = [lane for lane in self._slots[self._cycle :] + self._slots[: self._cycle] if lane is not None]
        if len(lanes) == 1:
            gathering.add(lanes[0].take(lanes[0].front()))
            return True
        block = self._plan.block_length
        round_bytes = sum(lane.typical_bytes() for lane in lanes) * block
        rounds = min(min(lane.available for lane in lanes) // block, CHUNK_BYTES // round_bytes)
        if rounds == 0:
            return False
        gathering.add_rounds([lane.take(rounds * block) for lane in lanes], rounds, block)
        return True

    def _enter(self, index: int) -> None:
        shard, self._next = self._next, self._next + 1
        self._slots[index] = self.lanes.setdefault(shard, Lane(Arrival(shard)))

    def _leave(self, index: int) -> None:
        lane = self._slots[index]
        assert lane is not None
        self._slots[index] = None
        del self.lanes[lane.shard]
        if lane.error is not None:
            raise lane.error

    def _advance(self) -> None:
        self._cycle = (self._cycle + 1) % len(self._slots)
        self._block = 0


class Gathering:
    """Records picked from many blocks, in their final order, to become one Frames."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._picked: list[Frames] = []
        self._buffers: list[Buffer] = []
        self._sources: list[npt.NDArray[np.int64]] = []
        self._spans: list[npt.NDArray[np.int64]] = []

    @property
    def whole_block(self) -> bool:
        """Whether this is one stretch of one block so far, large enough to go without a copy."""
        return len(self._picked) == 1 and len(self._buffers) == 1 and self.nbytes >= CHUNK_BYTES // 4

    def add(self, windows: Sequence[Frames]) -> None:
        """Adds stretches in order."""
        for window in windows:
            self._picked.append(window)
            self._add(np.full(len(window), self._number(window), np.int64), window.spans)

    def add_rounds(self, lanes: Sequence[Sequence[Frames]], rounds: int, block: int) -> None:
        """Adds `rounds` rounds of `block` records from each lane in turn."""
        sources = np.stack([np.concatenate([np.full(len(w), self._number(w)) for w in lane]) for lane in lanes])
        spans = np.stack([np.concatenate([window.spans for window in lane]) for lane in lanes])
        shape = (len(lanes), rounds, block)
        self._add(
            sources.reshape(shape).swapaxes(0, 1).ravel(),
            spans.reshape(*shape, 2).swapaxes(0, 1).reshape(-1, 2),
        )

    def frames(self) -> Frames | None:
        """What was gathered; None for nothing. One stretch of one block comes as it is, without a copy."""
        if not self._spans:
            return None
        if len(self._picked) == 1 and len(self._spans) == 1:
            return self._picked[0]
        buffer, spans = kernels.gather(self._buffers, np.concatenate(self._sources), np.concatenate(self._spans))
        return Frames(buffer, np.frombuffer(spans, np.int64).reshape(-1, 2))

    def _number(self, window: Frames) -> int:
        self._buffers.append(window.buffer)
        return len(self._buffers) - 1

    def _add(self, sources: npt.NDArray[np.int64], spans: npt.NDArray[np.int64]) -> None:
        self._sources.append(sources)
        self._spans.append(spans)
        self.nbytes += int((spans[:, 1] - spans[:, 0]).sum()) + len(spans)
