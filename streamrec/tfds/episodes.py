"""Episodes of RLDS data sets as steps: a record is an episode, and an element is one step of it.

`EpisodeSplitter` makes the columns of an episode's steps, in which images stay files, so a shuffle
of steps holds few bytes. `StepDecoder` decodes batches of steps. Both are functions for `map`.

A window has the last observations and the next actions of each step, and never leaves its episode:
beyond its ends, the first observation and the last action are repeated, and masks say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from streamrec.arguments import check_integer
from streamrec.display import join_names
from streamrec.errors import FeatureError
from streamrec.example import RaggedTensor
from streamrec.pipeline import stages
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.engine.description import name_of
from streamrec.tfds.decoder import Decoders, make_decoder, put, row_array
from streamrec.tfds.features import Feature, FeaturesDict, SequenceFeature
from streamrec.tfds.leaf_column import LeafColumn, skip
from streamrec.tfrecord import Frames
from streamrec.tracebacks import border_methods

STEP: Final = "step"
"""The name of a step's number in its episode."""

OBSERVATION_MASK: Final = "timestep_pad_mask"
ACTION_MASK: Final = "action_pad_mask"
"""The names of the masks, as loaders of robot data call them: true where a value is not padding."""


@dataclass(frozen=True, kw_only=True)
class StepWindow:
    """Which steps an element has around its own.

    Attributes:
        history: How many observations, up to the step's own; None for that one, without a
            dimension of steps.
        future: How many actions, from the step's own on; None for that one.
        observations, actions: The names of the features, whose parts are included.
    """

    history: int | None = None
    future: int | None = None
    observations: tuple[str, ...] = ("observation",)
    actions: tuple[str, ...] = ("action",)

    def __post_init__(self) -> None:
        check_integer("history", self.history, 1, none=True)
        check_integer("future", self.future, 1, none=True)

    def offsets_of(self, path: tuple[str, ...]) -> range | None:
        """Which steps a feature has, relative to the element's own; None for that one alone."""
        if self.history is not None and path[0] in self.observations:
            return range(1 - self.history, 1)
        if self.future is not None and path[0] in self.actions:
            return range(self.future)
        return None

    def masks(self, count: int) -> dict[str, npt.NDArray[np.bool_]]:
        """The masks of an episode of `count` steps."""
        found = {}
        if self.history is not None:
            found[OBSERVATION_MASK] = steps_around(count, range(1 - self.history, 1)) >= 0
        if self.future is not None:
            found[ACTION_MASK] = steps_around(count, range(self.future)) < count
        return found


def steps_around(count: int, offsets: range) -> npt.NDArray[np.int64]:
    """The numbers of the steps around each of `count` steps; some are beyond the ends.

    Examples:
        >>> steps_around(3, range(-1, 1)).tolist()
        [[-1, 0], [0, 1], [1, 2]]
    """
    around: npt.NDArray[np.int64] = np.arange(count)[:, None] + np.array(offsets)
    return around


@border_methods
@dataclass(frozen=True, repr=False, kw_only=True)
class EpisodeSplitter:
    """Makes the steps of an episode's record: a dict of columns, which `unbatch` splits.

    Attributes:
        steps: The columns of the steps' features, without the name of the steps.
        prefix: The name of the steps in records.
        metadata: The columns of the episode's own features.
        window: Which steps an element has around its own.
        where: Called with the episode's own features and `num_steps`; episodes for which it is
            false are left out.
    """

    steps: tuple[LeafColumn, ...]
    prefix: tuple[str, ...]
    metadata: tuple[LeafColumn, ...]
    window: StepWindow = StepWindow()
    where: Callable[[dict[str, Any]], Any] | None = None

    def __repr__(self) -> str:
        names = join_names([column.name for column in (*self.steps, *self.metadata)])
        text = repr([(column.path, str(column.leaf)) for column in (*self.steps, *self.metadata)])
        digest = blake2b(text.encode(), digest_size=4).hexdigest()
        where = "" if self.where is None else f"; where={name_of(self.where)}"
        return f"EpisodeSplitter({names}; {self.window}{where}; {digest})"

    def __call__(self, record: Any) -> dict[str, Any]:
        """The steps of an episode, with its own features repeated for each, and their numbers.

        Args:
            record: The episode's record, as bytes, or as a batch of one: that is not copied.

        Raises:
            FeatureError: The record is damaged, or its features have different numbers of steps.
        """
        is_one = isinstance(record, bytes | bytearray | memoryview)
        parsed = self._parse([bytes(record)] if is_one else record)
        columns = {
            column.path: self._steps_of(column, parsed)
            for column in (replace(each, path=self.prefix + each.path) for each in self._encoded)
        }
        counts = {len(column) for column in columns.values()}
        if len(counts) > 1:
            raise FeatureError(f"the features of the steps have {sorted(counts)} steps")
        count = counts.pop() if counts else 0
        episode = {column.path: column.column(parsed, 1) for column in self._encoded_metadata}
        kept = self.where is None or bool(self.where(self._description(episode, count)))
        count = count if kept else 0
        found: dict[str, Any] = {}
        for path, column in columns.items():
            own = path[len(self.prefix) :]
            put(found, own, self._windowed(own, window(column, 0, count), count))
        for path, column in episode.items():
            put(found, path, repeat_row(column, count))
        found |= self.window.masks(count)
        numbers = np.arange(count)
        found[STEP] = numbers
        # Flags that follow from the numbers are given where the writer left them out.
        found.setdefault("is_first", numbers == 0)
        found.setdefault("is_last", numbers == count - 1)
        return found

    @cached_property
    def _encoded(self) -> tuple[LeafColumn, ...]:
        return tuple(map(keep_files, self.steps))

    @cached_property
    def _encoded_metadata(self) -> tuple[LeafColumn, ...]:
        return tuple(map(keep_files, self.metadata))

    @cached_property
    def _parse(self) -> stages.Parse:
        features: dict[str, Any] = {}
        for column in self._encoded:
            features |= replace(column, path=self.prefix + column.path).features()
        for column in self._encoded_metadata:
            features |= column.features()
        return stages.Parse(features, string_columns=True)

    def _steps_of(self, column: LeafColumn, parsed: Mapping[str, Any]) -> Any:
        """A column of the steps of the one episode that was parsed."""
        raw = parsed.get(column.name)
        is_file = column.decoder is skip and len(column.lengths) == 1
        if (
            is_file
            and isinstance(raw, RaggedTensor)
            and self.window.offsets_of(column.path[len(self.prefix) :]) is None
        ):
            # Files stay in the record, which may have a gigabyte, until their step is taken.
            files: Any = raw.flat_values
            return Frames(files.buffer, files.spans.reshape(-1, 2))
        return column.column(parsed, 1)[0]

    def _description(self, episode: Mapping[tuple[str, ...], Any], count: int) -> dict[str, Any]:
        """What `where` is called with."""
        found: dict[str, Any] = {"num_steps": count}
        for path, column in episode.items():
            value = column[0]
            put(found, path, None if value is np.ma.masked else value)
        return found

    def _windowed(self, path: tuple[str, ...], column: Any, count: int) -> Any:
        """A column of the steps, with those around each where the window has some."""
        offsets = self.window.offsets_of(path)
        if offsets is None:
            return column
        if isinstance(column, RaggedTensor):
            raise FeatureError(
                "windows are of features of one shape: leave it out with features=", "/".join(path)
            )
        return column[steps_around(count, offsets).clip(0, max(count - 1, 0))]


@border_methods
@dataclass(frozen=True, repr=False, kw_only=True)
class StepDecoder:
    """Decodes a batch of steps: images, and arrays that are stored as bytes.

    Attributes:
        files: The columns that are decoded.
        as_rows: Whether the result is the steps one by one.
    """

    files: tuple[LeafColumn, ...]
    as_rows: bool = False
    keeps_rows: ClassVar[bool] = True

    def __repr__(self) -> str:
        text = repr([(column.path, str(column.leaf)) for column in self.files])
        digest = blake2b(text.encode(), digest_size=4).hexdigest()
        return f"StepDecoder({join_names([column.name for column in self.files])}; {digest})"

    def __call__(self, steps: Mapping[str, Any]) -> Any:
        """The decoded steps.

        Raises:
            FeatureError: A value cannot be decoded; the error has its number in the batch and the
                feature's name.
        """
        found = copy_dicts(steps)
        for column in self.files:
            outer = found
            for name in column.path[:-1]:
                outer = outer[name]
            outer[column.path[-1]] = column.decoded(outer[column.path[-1]])
        return row_array(found, len(found[STEP])) if self.as_rows else found


def keep_files(column: LeafColumn) -> LeafColumn:
    """The column with its files undecoded; arrays with shapes of their own are decoded at once."""
    return replace(column, decoder=skip if column.is_file and not column.has_shapes else None)


def is_decoded_later(column: LeafColumn) -> bool:
    """Whether a batch of steps has a file, or a value for the user's decoder, in this column."""
    if column.has_shapes:
        return False
    return column.is_file or callable(column.decoder)


def repeat_row(column: Any, count: int) -> Any:
    """A column of one row, repeated; values that are missing are b"", NaN or the least integer."""
    if isinstance(column, RaggedTensor):
        return column[np.zeros(count, np.int64)]
    if isinstance(column, np.ma.MaskedArray):
        kind = column.dtype.kind
        fill = {"f": np.nan, "b": False, "u": 0}.get(kind)
        column = column.filled(np.iinfo(column.dtype).min if fill is None else fill)
    values = np.repeat(column, count, axis=0)
    if values.dtype == object:
        values[[value is None for value in values]] = b""
    return values


def copy_dicts(value: Any) -> Any:
    """Nested dicts, copied; other values are shared."""
    if isinstance(value, Mapping):
        return {name: copy_dicts(each) for name, each in value.items()}
    return value


def find_steps(feature: Feature) -> tuple[str, SequenceFeature]:
    """The name and the feature of the steps of episodes.

    Raises:
        ValueError: The data set has no steps.
    """
    if isinstance(feature, FeaturesDict):
        for name, child in feature.features.items():
            if not isinstance(child, SequenceFeature) or not child.is_steps:
                continue
            # Steps without names, such as a nested data set of numbers, are a column of read().
            if isinstance(child.feature, FeaturesDict):
                return name, child
    raise ValueError(
        "this data set has no steps of episodes, as RLDS data sets have: use read(), or records()"
    )


def step_functions(
    feature: Feature,
    *,
    features: Iterable[str] | Mapping[str, Any] | None,
    decoders: Decoders | None,
    window: StepWindow,
    where: Callable[[dict[str, Any]], Any] | None,
    as_rows: bool,
) -> tuple[EpisodeSplitter, StepDecoder]:
    """The functions that make steps of episodes, and decode batches of steps.

    Raises:
        ValueError: The data set has no steps, or an episode's own feature has the name of one of
            its steps.
    """
    name, _ = find_steps(feature)
    chosen = make_decoder(feature, features=features, decoders=decoders).columns
    steps = tuple(
        replace(column, path=column.path[1:]) for column in chosen if column.path[0] == name
    )
    metadata = tuple(column for column in chosen if column.path[0] != name)
    both = {column.path[0] for column in steps} & {column.path[0] for column in metadata}
    if both:
        raise ValueError(
            f"steps and their episode both have {join_names(sorted(both))}: leave one out with "
            "features="
        )
    splitter = EpisodeSplitter(
        steps=steps, prefix=(name,), metadata=metadata, window=window, where=where
    )
    files = [replace(column, lengths=column.lengths[1:]) for column in steps]
    later = tuple(column for column in (*files, *metadata) if is_decoded_later(column))
    return splitter, StepDecoder(files=later, as_rows=as_rows)
