"""What a data set shows that loader workers may read: each worker reports what it counts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.engine.ranks import worker_here
from streamrec.pipeline.iterators import DatasetIterator
from streamrec.pipeline.loading import Elements
from streamrec.pipeline.telemetry.progress import PlainDisplay
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.telemetry.worker_stats import WorkerStats
from streamrec.pipeline.watching import Watch


class WorkerWatch:
    """Begins runs in this process or in its workers, and knows the statistics of the workers.

    Attributes:
        reports: The statistics of the workers.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.reports = WorkerStats()

    def iterate(
        self, dataset: Dataset[Any], state: Mapping[str, Any] | None, *, in_worker: bool
    ) -> tuple[DatasetIterator[Any], Elements]:
        """Begins a run; returns it, and its elements, which are counted."""
        worker = worker_here()[0] if in_worker else None
        run = self._watch.iterate(dataset, state, worker=worker)
        counted = CountedElements(run, self._watch.counter(dataset))
        if not in_worker:
            return run, counted
        rank = dataset.options.rank
        shows = self._watch.progress and worker == 0 and (rank is None or rank.rank == 0)
        epoch = dataset.epoch if state is None else int(state["epoch"])
        return run, ReportedElements(counted, self.reports, epoch, shows=shows)


class CountedElements:
    """The elements of a run, whose samples and tokens are counted."""

    def __init__(self, run: DatasetIterator[Any], count: Callable[[Any], tuple[int, int]]) -> None:
        self._run = run
        self._count = count

    def __next__(self) -> Any:
        element = next(self._run)
        self._run.count(*self._count(element))
        return element

    def stats(self) -> Stats:
        """The run's statistics."""
        return self._run.stats()

    def close(self) -> None:
        """Ends the run."""
        self._run.close()


class ReportedElements:
    """The elements of a worker, which reports its statistics now and then, and at the end."""

    def __init__(
        self, elements: CountedElements, reports: WorkerStats, epoch: int, *, shows: bool
    ) -> None:
        self._elements = elements
        self._reports = reports
        self._epoch = epoch
        self._line: PlainDisplay | None = None
        if shows:
            self._line = PlainDisplay(lambda: reports.read() or self.stats(), sys.stderr)
            self._line.start()

    def __next__(self) -> Any:
        try:
            element = next(self._elements)
        except BaseException:
            self._report()
            raise
        if self._reports.is_due():
            self._report()
        if self._line is not None:
            self._line.tick()
        return element

    def stats(self) -> Stats:
        """The run's statistics."""
        return self._elements.stats()

    def close(self) -> None:
        """Ends the run."""
        self._elements.close()
        self._report()
        if self._line is not None:
            self._line.close()

    def _report(self) -> None:
        worker, workers = worker_here()
        self._reports.write(worker, workers, self._epoch, self.stats())
