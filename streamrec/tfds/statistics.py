"""Statistics of numbers in a data set, such as actions: from one pass, and kept in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec import bridge
from streamrec.display import display_repr, join_names
from streamrec.errors import AlreadyExistsError, ManifestError, NotFoundError
from streamrec.example import RaggedTensor
from streamrec.storage import Storages, locate
from streamrec.tfds.folder import Folder
from streamrec.tracebacks import border

FORMAT: Final = "streamrec statistics"

QUANTILES: Final = (0.01, 0.5, 0.99)

MOST_KEPT: Final = 1 << 20
"""Quantiles are exact up to this number of rows; of more, every second, fourth ... row is kept."""

EPISODES_AT_ONCE: Final = 16


@display_repr
@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureStatistics:
    """The statistics of one feature; arrays have the shape of one value.

    Attributes:
        count: The number of values: of the steps of all episodes, for their features.
        mean, std: The mean and the standard deviation, in float64.
        min, max: The least and the greatest value.
        quantiles: The values below which 1 %, 50 % and 99 % are, by 0.01, 0.5 and 0.99.
    """

    count: int
    mean: npt.NDArray[np.float64]
    std: npt.NDArray[np.float64]
    min: npt.NDArray[np.float64]
    max: npt.NDArray[np.float64]
    quantiles: Mapping[float, npt.NDArray[np.float64]]


class Accumulator:
    """The statistics of the values so far.

    Attributes:
        count: The number of values.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Any = 0.0
        self._squares: Any = 0.0
        self._min: Any = np.inf
        self._max: Any = -np.inf
        self._kept: list[npt.NDArray[np.float64]] = []
        self._kept_rows = 0
        self._stride = 1

    def add(self, values: npt.NDArray[Any]) -> None:
        """Adds rows of values."""
        rows = np.asarray(values, np.float64)
        if not len(rows):
            return
        # Means of blocks are joined (Chan's method): sums of squares would lose digits.
        total = self.count + len(rows)
        mean = rows.mean(axis=0)
        delta = mean - self._mean
        self._squares = (
            self._squares
            + ((rows - mean) ** 2).sum(axis=0)
            + delta**2 * (self.count * len(rows) / total)
        )
        self._mean = self._mean + delta * (len(rows) / total)
        self._min = np.minimum(self._min, rows.min(axis=0))
        self._max = np.maximum(self._max, rows.max(axis=0))
        kept = rows[-self.count % self._stride :: self._stride]
        self.count = total
        self._kept.append(kept.copy())
        self._kept_rows += len(kept)
        if self._kept_rows > MOST_KEPT:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._kept_rows = len(self._kept[0])
            self._stride *= 2

    def result(self) -> FeatureStatistics:
        """The statistics of all values.

        Raises:
            ValueError: There were none.
        """
        if not self.count:
            raise ValueError("there are no values to compute statistics of")
        found = np.quantile(np.concatenate(self._kept), QUANTILES, axis=0)
        return FeatureStatistics(
            count=self.count,
            mean=np.asarray(self._mean),
            std=np.sqrt(np.asarray(self._squares) / self.count),
            min=np.asarray(self._min),
            max=np.asarray(self._max),
            quantiles=dict(zip(QUANTILES, found, strict=True)),
        )


@border
async def statistics(
    folder: Folder, split: str, features: Iterable[str], *, path: str | None = None
) -> dict[str, FeatureStatistics]:
    """Mean, deviation, range and quantiles of features, such as actions and proprioception.

    All records of the split are read once, and only these features parsed.

        found = await tfds.statistics(robot, "train", ["steps/action"], path="s3://b/actions.json")

    Args:
        folder: The opened folder.
        split: A split or slice, as for `Folder.records`.
        features: Names of features of numbers, all values of one shape: `steps/action`.
        path: A URL or path of a file that keeps the result, with the store options of the folder:
            later calls read it instead of the records. None keeps nothing.

    Raises:
        ValueError: There is no such feature, or it has values of several shapes, or none.
        ManifestError: The file at `path` has something else, or statistics of other data.
    """
    names = list(features)
    key = key_of(folder, split, names)
    if path is not None and (kept := await read_kept(folder, path, key)) is not None:
        return kept
    decoder = folder.decoder(features=names)
    accumulators = {column.name: Accumulator() for column in decoder.columns}
    async for batch in folder.records(split).batch(EPISODES_AT_ONCE).map(decoder):
        for column in decoder.columns:
            value: Any = batch
            for name in column.path:
                value = value[name]
            accumulators[column.name].add(numbers_in(value, column.name))
    found = {name: accumulator.result() for name, accumulator in accumulators.items()}
    if path is not None:
        await keep(folder, path, key, found)
    return found


statistics_sync = bridge.synchronous(statistics)


def numbers_in(column: Any, name: str) -> npt.NDArray[Any]:
    """The values of a column as rows of an array of numbers."""
    values = column.flat_values if isinstance(column, RaggedTensor) else column
    if isinstance(values, np.ma.MaskedArray):
        values = values.compressed().reshape(-1, *values.shape[1:])
    array: npt.NDArray[Any] = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"{name!r} has no numbers of one shape: statistics are of numbers, such as steps/action"
        )
    return array


def key_of(folder: Folder, split: str, names: Iterable[str]) -> dict[str, Any]:
    """What kept statistics must be of."""
    parts = [
        [part.path.rpartition("/")[2], part.first, part.last] for part in folder.portions(split)
    ]
    info = folder.info
    return {
        "data": [info.name, info.config, info.version],
        "records": parts,
        "features": sorted(names),
    }


def location(folder: Folder, path: str) -> str:
    """The URL of the file that keeps statistics."""
    return locate(path, folder.store.get("filesystem"))


async def read_kept(
    folder: Folder, path: str, key: Mapping[str, Any]
) -> dict[str, FeatureStatistics] | None:
    """The kept statistics; None if the file does not exist."""
    url = location(folder, path)
    async with Storages(**folder.store) as storages:
        storage = await storages.at(url)
        try:
            size = (await storage.stat(url)).size
        except NotFoundError:
            return None
        text = await storage.read_range(url, 0, size or 1 << 20)
    try:
        value = json.loads(text)
        known = value["format"] == FORMAT
    except (ValueError, TypeError, KeyError):
        known = False
    if not known:
        raise ManifestError(f"{url} has no statistics, and is left as it is: choose another name")
    if value["of"] != key:
        raise ManifestError(
            f"{url} has statistics of {join_names(map(str, value['of'].get('features', [])))} of "
            "another data set, split or version: remove it, or choose another name"
        )
    return {name: from_json(one) for name, one in value["statistics"].items()}


async def keep(
    folder: Folder, path: str, key: Mapping[str, Any], found: Mapping[str, FeatureStatistics]
) -> None:
    """Writes the statistics; a file that another process wrote first is kept."""
    value = {
        "format": FORMAT,
        "of": key,
        "statistics": {name: to_json(one) for name, one in found.items()},
    }
    url = location(folder, path)
    async with Storages(**folder.store) as storages:
        storage = await storages.at(url)
        # An object that has this name by now stays: it may be another rank's.
        with suppress(AlreadyExistsError):
            async with await storage.upload(url, overwrite=False) as body:
                await body.write(json.dumps(value, indent=1).encode())


def to_json(one: FeatureStatistics) -> dict[str, Any]:
    """The statistics of a feature as JSON."""
    arrays = {name: getattr(one, name).tolist() for name in ("mean", "std", "min", "max")}
    quantiles = {str(quantile): value.tolist() for quantile, value in one.quantiles.items()}
    return {"count": one.count, **arrays, "quantiles": quantiles}


def from_json(value: Mapping[str, Any]) -> FeatureStatistics:
    """The statistics of a feature from their JSON."""
    arrays = {name: np.asarray(value[name], np.float64) for name in ("mean", "std", "min", "max")}
    quantiles = {
        float(quantile): np.asarray(one, np.float64) for quantile, one in value["quantiles"].items()
    }
    return FeatureStatistics(count=int(value["count"]), quantiles=quantiles, **arrays)
