"""Interleave: in which order the records of many shards come. Pure: it is told what has arrived, and plans.

The order is tf.data's: `cycle_length` slots hold a shard each; `block_length` records are taken from one slot,
then from the next. A shard that ends leaves its slot empty, and the cycle goes on; when it comes round, an
empty slot takes the next shard. So the order depends on the shards alone, never on which bytes came first.
With `deterministic=False` whatever has arrived first comes first, a block of a shard at a time.

Records are never handled one by one: where every slot has whole turns to give, many rounds are planned as one
array operation and gathered by one kernel call. Where one shard alone is read, nothing is copied at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamrec.pipeline.chunk import Positions
from streamrec.pipeline.gathering import CHUNK_BYTES, Gathering
from streamrec.pipeline.lane import Lane
from streamrec.pipeline.turn import Arrival, BlockPositions, Snapshot, SourcePositions, Turn
from streamrec.tfrecord import Frames

__all__ = ["Interleave", "Plan"]


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
        self._slots: list[Lane | None] = [None if slot is None else self.lanes[slot.shard] for slot in turn.slots]

    def wanted(self, ahead: int) -> list[Lane]:
        """The lanes that should be fed, most urgent first: those in slots, and `ahead` of the shards after them."""
        for shard in range(self._next, min(self._next + ahead, self._shards)):
            self.lanes.setdefault(shard, Lane(Arrival(shard)))
        return list(self.lanes.values())

    def extend(self, shards: int) -> None:
        """So many shards are known by now."""
        self._shards = shards

    def reach(self, ahead: int) -> int:
        """How many shards must be known before the next `pull`, with `ahead` of them fed; or all there are."""
        return self._next + self._plan.cycle_length + ahead + 1

    @property
    def finished(self) -> bool:
        """Whether every record was taken."""
        return self._next == self._shards and not any(self._slots)

    @property
    def snapshot(self) -> Snapshot:
        """Where the interleave stands."""
        marks = tuple([lane if lane is None else lane.mark() for lane in self._slots])
        return Snapshot(marks, self._cycle, self._block, self._next)

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
            before, index, lane = self.snapshot, self._cycle, self._slots[self._cycle]
            self._advance()
            if lane is not None and lane.available:
                (frames,) = lane.take(lane.front())
                return frames, BlockPositions(before, lane.shard)
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
        before = self.snapshot
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
        return (frames, SourcePositions(before, self.snapshot, len(frames))) if frames is not None else None

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
