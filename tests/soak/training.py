"""Training runs that are killed.

A run is one process, four ranks, or a process whose data comes through the workers of a
`StatefulDataLoader`. It is killed (SIGKILL) at a random step, all its ranks with it, and started
again from the states that it saved last; so many times over, and then it comes to its end. Of each
rank, the ids of the records of every step, each step as it was done last, must be those of a run
that nobody disturbed.
"""

import json
import multiprocessing
import os
import random
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from streamrec import Dataset, TFRecordDataset, encode_records, write_manifest_sync

COUNTS = (190, 61, 0, 240, 33, 130)
"""Records of each shard."""

STEPS_AHEAD = 3
"""How many steps a process may be ahead of its parent: it is killed within one of them, or between
two."""

SAVED_EVERY = 5
"""Steps from one saved state to the next."""

END = b"end"
WORKERS = 2

# The process that is killed: it "trains", step by step, and saves where it stands every few steps.
# A step is one batch. The parent gives leave for each, so that the process is never far ahead of
# it, and is told the ids of the batch's records. The state is written beside its file and renamed,
# as a checkpoint should be.


@dataclass(frozen=True)
class Job:
    """What a rank does with the shards of a folder, and where its state is saved."""

    folder: str
    states: str
    rank: int
    world_size: int

    @property
    def epochs(self) -> int:
        return 2 * self.world_size

    def dataset(self, epochs: int) -> Dataset[Any]:
        records = TFRecordDataset(f"{self.folder}/train-*", num_parallel_reads=3).distribute(
            self.rank, self.world_size, even="pad", manifest=f"{self.folder}/manifest.json"
        )
        return records.shuffle(60, seed=5).repeat(epochs).batch(4)


def run_trainee(parent: Connection, job: Job) -> None:
    step, state = saved(job)
    with job.dataset(job.epochs).iterate(state) as batches:
        train(parent, job, step, batches, batches)


def train(parent: Connection, job: Job, step: int, loader: Any, batches: Iterator[Any]) -> None:
    for batch in batches:
        parent.recv_bytes()
        ids = b",".join(record[:8] for record in batch)
        parent.send_bytes(b"%d %s" % (step, ids))
        step += 1
        if step % SAVED_EVERY == 0:
            save(job, step, loader.state_dict())
    parent.recv_bytes()
    parent.send_bytes(END)


def saved(job: Job) -> tuple[int, dict[str, Any] | None]:
    """The step that comes next, and the state before it."""
    file = Path(job.states)
    if not file.exists():
        return 0, None
    found = json.loads(file.read_text())
    return found["step"], found["state"]


def save(job: Job, step: int, state: dict[str, Any]) -> None:
    """Puts a state in the place of the one before it, whole."""
    fresh = Path(job.states + ".new")
    fresh.write_text(json.dumps({"step": step, "state": state}))
    os.replace(fresh, job.states)


def run_torch_trainee(parent: Connection, job: Job) -> None:
    """With the workers of a `StatefulDataLoader` between the data and the steps: only here is torch
    imported.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader

    from streamrec.torch import IterableDataset

    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # by torchdata, of torch
    dataset = IterableDataset(job.dataset(1))
    loader = StatefulDataLoader(
        dataset, batch_size=None, num_workers=WORKERS, multiprocessing_context="fork"
    )
    epochs = Epochs(job.epochs, dataset, loader)
    step, state = saved(job)
    epochs.load(state)
    train(parent, job, step, epochs, iter(epochs))


class Epochs:
    """Epoch after epoch of a loader, as a training loop has it."""

    def __init__(self, epochs: int, dataset: Any, loader: Any) -> None:
        self._epoch, self._epochs = 0, epochs
        self._dataset, self._loader = dataset, loader

    def load(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            self._epoch = state["epoch"]
            self._loader.load_state_dict(state["loader"])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "loader": self._loader.state_dict()}

    def __iter__(self) -> Iterator[Any]:
        while self._epoch < self._epochs:
            self._dataset.set_epoch(self._epoch)
            yield from self._loader
            self._epoch += 1


# The parent.


@dataclass
class Seen:
    """What a soak saw: steps and kills of all ranks, and how many steps were done again."""

    steps: int = 0
    kills: int = 0
    again: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills within {self.steps} steps, {self.again} done again "
            f"({self.seconds:.0f} s)"
        )


@dataclass
class Rank:
    """One rank of a run: its process, and its records at each step."""

    job: Job
    steps: dict[int, bytes] = field(default_factory=dict)
    again: int = 0
    ended: bool = False
    process: Any = None
    pipe: Any = None

    def start(self, target: Callable[..., None]) -> None:
        """Starts the process, with leave for the first steps."""
        self.ended = False
        self.pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=target, args=(theirs, self.job))
        self.process.start()
        theirs.close()
        for _ in range(STEPS_AHEAD):
            self._leave()

    def step(self) -> bool:
        """Receives one step; False after the last."""
        self._take(self.pipe.recv_bytes())
        self._leave()
        return not self.ended

    def finish(self) -> None:
        """Receives all steps that are left."""
        while self.step():
            pass
        self.process.join(60)
        assert self.process.exitcode == 0

    def kill(self) -> bool:
        """Kills the process, and receives its last steps; returns whether it was at work."""
        self.process.kill()
        self.process.join()
        assert self.process.exitcode in (0, -signal.SIGKILL), (
            f"the process ended with {self.process.exitcode}"
        )
        with suppress(EOFError, ConnectionResetError):
            while self.pipe.poll():  # its orphans may hold the other end, so that it never ends
                self._take(self.pipe.recv_bytes())
        self.pipe.close()
        return bool(self.process.exitcode)

    def _leave(self) -> None:
        with suppress(BrokenPipeError):  # it has ended, and its last messages are still to be read
            self.pipe.send_bytes(b"")

    def _take(self, told: bytes) -> None:
        if told == END:
            self.ended = True
            return
        step, _, ids = told.partition(b" ")
        self.again += int(step) in self.steps
        self.steps[int(step)] = ids


PROCESSES: Any = multiprocessing.get_context("forkserver")
SHAPES: dict[str, tuple[int, Callable[..., None]]] = {
    "process": (1, run_trainee),
    "ranks": (4, run_trainee),
    "loader": (1, run_torch_trainee),
}
"""How many ranks each shape of run has, and what each process does."""


def soak(shape: str, kills: int, seed: int) -> Seen:
    """Kills one shape of run a number of times, at random moments; see the top of this file."""
    began = time.monotonic()
    draw = random.Random(seed)
    count, target = SHAPES[shape]
    PROCESSES.set_forkserver_preload(
        ["tests.soak.training", *(["streamrec.torch"] if shape == "loader" else [])]
    )

    def started(*ranks: Rank) -> Sequence[Rank]:
        for rank in ranks:
            rank.start(target)
        return ranks

    with tempfile.TemporaryDirectory(prefix="streamrec-training-") as folder:
        write_shards(Path(folder))
        undisturbed, ranks = (
            [
                Rank(Job(folder, f"{folder}/{name}-{rank}.json", rank, count))
                for rank in range(count)
            ]
            for name in ("whole", "killed")
        )
        try:
            for rank in started(*undisturbed):
                rank.finish()
            ids = [
                record
                for rank in undisturbed
                for step in rank.steps.values()
                for record in step.split(b",")
            ]
            assert len(set(ids)) == sum(COUNTS), "a record is missing"
            total = len(undisturbed[0].steps)
            assert all(len(rank.steps) == total for rank in undisturbed), (
                "the ranks have different numbers of steps"
            )
            for _ in range(kills):
                started(*ranks)
                for _ in range(draw.randint(1, total // kills + 2)):
                    if not all([rank.step() for rank in ranks]):  # noqa: C419 - all of them go on
                        break
                killed = [rank.kill() for rank in ranks]
                assert all(killed), (
                    "the run came to its end before it was killed as often as was wanted"
                )
            for rank, whole in zip(started(*ranks), undisturbed, strict=True):
                rank.finish()
                assert rank.steps == whole.steps, (
                    f"rank {rank.job.rank} saw other records than an undisturbed run"
                )
        except AssertionError as error:
            error.add_note(f"{shape}, seed {seed}")
            raise
    again = sum(rank.again for rank in ranks)
    return Seen(total * count, kills * count, again, time.monotonic() - began)


def write_shards(folder: Path) -> None:
    for shard, count in enumerate(COUNTS):
        records = [b"%02d/%05d" % (shard, number) + b"." * (number % 90) for number in range(count)]
        (folder / f"train-{shard:02d}").write_bytes(encode_records(records))
    write_manifest_sync(str(folder / "train-*"), str(folder / "manifest.json"))
