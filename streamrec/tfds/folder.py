"""Folder: an opened folder of TensorFlow Datasets, and the Datasets of its splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from streamrec import html
from streamrec.arguments import check_choice, check_flag, check_integer
from streamrec.display import display_name, display_repr
from streamrec.errors import ManifestError, NotFoundError
from streamrec.pipeline import Dataset, read_counted
from streamrec.pipeline.engine.description import AUTOTUNE
from streamrec.shards import Expected, Portion
from streamrec.tfds.decoder import Decoder, Decoders, make_decoder
from streamrec.tfds.description import Description, SplitInfo
from streamrec.tfds.episodes import StepWindow, step_functions
from streamrec.tfds.features import Feature, tree_lines
from streamrec.tfds.slices import resolve_split
from streamrec.tracebacks import border_methods

CYCLE_LENGTH: Final = 16
BLOCK_LENGTH: Final = 16
"""How TensorFlow Datasets interleaves the shards of a split."""

ROWS_AT_ONCE: Final = 64
"""How many examples are parsed and decoded together where rows are wanted."""


@dataclass(frozen=True, kw_only=True)
class FoundShards:
    """What the store said of the shards when the folder was opened.

    Attributes:
        sizes: The size of each shard that was found, by its name; None where the store does not say
            it.
        asked: The names that were asked for; None if the folder was listed, so that a name that was
            not found is missing.
        others: The names of shards of a split that the description does not have.
    """

    sizes: Mapping[str, int | None] = field(default_factory=dict)
    asked: frozenset[str] | None = None
    others: tuple[str, ...] = ()

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of the names that are known not to exist."""
        asked = self.asked
        return [
            name for name in names if name not in self.sizes and (asked is None or name in asked)
        ]


@border_methods
@display_repr
@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of TensorFlow Datasets, which `open` returns: descriptions, without open files.

    It can be pickled, and read any number of times.

    Attributes:
        url: The folder's URL, with the version.
        name, config, version, description, citation: As its writer gave them; "" without one.
        splits: A `SplitInfo` for each split, by name.
        features: The tree of features: `FeaturesDict`, `SequenceFeature` and `LeafFeature`.
        supervised_keys: The names of inputs and targets, for `as_supervised`; () without them.
    """

    url: str
    info: Description = field(repr=False)
    features: Feature = field(repr=False)
    found: FoundShards = field(default=FoundShards(), repr=False, compare=False)
    store: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def config(self) -> str:
        return self.info.config

    @property
    def version(self) -> str:
        return self.info.version

    @property
    def description(self) -> str:
        return self.info.description

    @property
    def citation(self) -> str:
        return self.info.citation

    @property
    def splits(self) -> Mapping[str, SplitInfo]:
        return self.info.splits

    @property
    def supervised_keys(self) -> tuple[Any, ...]:
        return self.info.supervised_keys

    def portions(self, split: str) -> list[Portion]:
        """The parts of shards that a split expression means, in order.

        Args:
            split: As for `records`.

        Raises:
            ValueError: As for `records`.
        """
        lengths = {name: info.shard_lengths for name, info in self.splits.items()}
        parts = resolve_split(split, lengths)
        self._check_shards(dict.fromkeys(part.split for part in parts))
        portions = []
        for part in parts:
            info = self.splits[part.split]
            count = info.shard_lengths[part.shard]
            name = info.shard_names[part.shard]
            expected = Expected(
                size=self.found.sizes.get(name),
                records=count,
                manifest=f"{self.url}/dataset_info.json",
            )
            portions.append(
                Portion(
                    path=f"{self.url}/{name}",
                    first=part.first,
                    last=None if part.last == count else part.last,
                    expected=expected,
                )
            )
        return portions

    def records(
        self,
        split: str,
        *,
        cycle_length: int | None = None,
        block_length: int = BLOCK_LENGTH,
        **reading: Any,
    ) -> Dataset[bytes]:
        """The records of a split or slice, in the order of TensorFlow Datasets.

        `len`, `cardinality()` and `distribute(even=...)` take the numbers of records from the
        folder's description, without a request. `decoder()` makes examples of records.

        Args:
            split: `train`, `train[:90%]`, `train[100:]`, `train[2shard]`, `train+test[:10]`, `all`.
                The rest is not read, except for records before the first one in its own shard.
            cycle_length: How many shards are interleaved; None for 16, or for 1 if the data set is
                in the order in which it was generated.
            block_length: How many records one shard gives before the next one's turn.
            reading: Options for reading, as for `TFRecordDataset`: `on_error`, `verify` and so on.

        Raises:
            ValueError: The expression has another form, names an unknown split, reaches beyond it,
                or means no record.
            NotFoundError: A shard of the split is missing.
            ManifestError: The names of shards say that there are more or fewer than the
                description has.
        """
        if cycle_length is None:
            cycle_length = 1 if self.info.in_order else CYCLE_LENGTH
        return read_counted(
            self.portions(split),
            cycle_length=check_integer("cycle_length", cycle_length, 1),
            block_length=block_length,
            **self.store,
            **reading,
        )

    def decoder(
        self,
        *,
        features: Iterable[str] | Mapping[str, Any] | None = None,
        decoders: Decoders | None = None,
        as_supervised: bool = False,
        labels: Literal["numbers", "names"] = "numbers",
    ) -> Decoder:
        """A function that makes examples of records, for `map`.

        `records("train").shuffle(10_000).batch(128).map(decoder, AUTOTUNE)` decodes batches in
        columns, on all cores.

        Args:
            features: The features to parse and decode, by name (`"objects/bbox"`), or as nested
                dicts in which a part is true; None for all.
            decoders: How a feature is decoded, by name: `skip` leaves images and encoded arrays as
                the bytes of their file; a function is called with each value instead.
            as_supervised: Whether an example is a tuple of `supervised_keys`.
            labels: "names" for the names of classes instead of their numbers; None for -1, which
                means no label.

        Raises:
            ValueError: There is no such feature, or the data set has no supervised keys.
        """
        return self._decoder(features, decoders, as_supervised, labels)

    def read(
        self,
        split: str,
        *,
        batch_size: int | None = None,
        drop_remainder: bool = False,
        features: Iterable[str] | Mapping[str, Any] | None = None,
        decoders: Decoders | None = None,
        as_supervised: bool = False,
        labels: Literal["numbers", "names"] = "numbers",
        num_parallel_calls: int = AUTOTUNE,
        **reading: Any,
    ) -> Dataset[Any]:
        """The examples of a split or slice, parsed and decoded on all cores.

        To distribute or shuffle, use `records()` and `decoder()`: encoded records are smaller.

        Args:
            split: As for `records`.
            batch_size: How many examples make a batch of columns; None for one example at a time,
                with the values of `tfds.as_numpy`.
            drop_remainder: Whether a last, smaller batch is left out.
            features, decoders, as_supervised, labels: As for `decoder`.
            num_parallel_calls: How many batches are decoded at once.
            reading: As for `records`.

        Raises:
            ValueError, NotFoundError, ManifestError: As for `records` and `decoder`.
        """
        decoder = self._decoder(
            features, decoders, as_supervised, labels, as_rows=batch_size is None
        )
        size = check_integer("batch_size", batch_size, 1, none=True)
        drop = check_flag("drop_remainder", drop_remainder)
        batches = self.records(split, **reading).batch(size or ROWS_AT_ONCE, drop)
        decoded = batches.map(decoder, num_parallel_calls)
        return decoded.unbatch() if size is None else decoded

    def steps(
        self,
        episodes: str | Dataset[bytes],
        *,
        batch_size: int | None = None,
        drop_remainder: bool = False,
        shuffle: int | None = None,
        seed: int | None = None,
        history: int | None = None,
        future: int | None = None,
        where: Callable[[dict[str, Any]], Any] | None = None,
        features: Iterable[str] | Mapping[str, Any] | None = None,
        decoders: Decoders | None = None,
        num_parallel_calls: int = AUTOTUNE,
    ) -> Dataset[Any]:
        """The steps of the episodes of an RLDS data set.

        A step has its own features at the top, the other features of its episode under their
        names, its number in the episode as `step`, and the flags `is_first` and `is_last`, also
        where the writer left these out. What an episode lacks of its optional features is b"", NaN
        or the least integer.

        Args:
            episodes: A split or slice, as for `records`; or its records, which may be distributed,
                shuffled or repeated: `steps(robot.records("train").distribute())`.
            batch_size: How many steps make a batch of columns; None for one step at a time.
            drop_remainder: Whether a last, smaller batch is left out.
            shuffle: The size of a buffer of steps, in which images are not decoded yet; None for
                the order of the episodes.
            seed: The seed of the shuffle.
            history: How many observations an element has, up to its own step (a dimension of steps
                before their own); `timestep_pad_mask` is true where they are not padding.
            future: How many actions, from its own step on; `action_pad_mask` is true where they
                are not padding. Windows do not leave the episode: at its ends, the first
                observation and the last action are repeated.
            where: Called with a dict of the features of an episode apart from its steps, and
                `num_steps`; episodes for which it returns a false value are left out.
            features: The features to parse and decode, by name, as `steps/observation/state`; None
                for all.
            decoders: As for `decoder`: `{"steps/observation/image": skip}`.
            num_parallel_calls: How many batches are decoded at once.

        Raises:
            ValueError: The data set has no steps, or there is no such feature.
        """
        records = self.records(episodes) if isinstance(episodes, str) else episodes
        splitter, decoder = step_functions(
            self.features,
            features=features,
            decoders=decoders,
            window=StepWindow(history=history, future=future),
            where=where,
            as_rows=batch_size is None,
        )
        size = check_integer("batch_size", batch_size, 1, none=True)
        drop = check_flag("drop_remainder", drop_remainder)
        # A batch of one is a part of its block: an episode may have a gigabyte.
        encoded = records.batch(1).map(splitter).unbatch()
        if shuffle is not None:
            encoded = encoded.shuffle(shuffle, seed)
        decoded = encoded.batch(size or ROWS_AT_ONCE, drop).map(decoder, num_parallel_calls)
        return decoded.unbatch() if size is None else decoded

    def _decoder(
        self,
        features: Iterable[str] | Mapping[str, Any] | None,
        decoders: Decoders | None,
        as_supervised: bool,
        labels: str,
        *,
        as_rows: bool = False,
    ) -> Decoder:
        check_choice("labels", labels, ("numbers", "names"))
        if as_supervised and not self.supervised_keys:
            raise ValueError(
                f"as_supervised: {self.name} has no supervised keys: take the features by name"
            )
        return make_decoder(
            self.features,
            features=features,
            decoders=decoders,
            supervised=self.supervised_keys if as_supervised else (),
            labels=labels,
            as_rows=as_rows,
        )

    def _check_shards(self, splits: Iterable[str]) -> None:
        """Compares the shards of splits with those that were found when the folder was opened."""
        for split in splits:
            names = self.splits[split].shard_names
            others = [name for name in self.found.others if f"-{split}." in name]
            if others:
                raise ManifestError(
                    f"{self.url}/dataset_info.json: it has {len(names):,} shards of {split!r}, and "
                    f"there is {display_name(others[0])}: shards of another version are in the "
                    "folder, or its description is from another one; copy the folder again"
                )
            missing = self.found.missing(names)
            if missing:
                more = f", and {len(missing) - 1:,} more are" if len(missing) > 1 else " is"
                raise NotFoundError(
                    f"this shard of split {split!r}{more} missing: copy the folder again",
                    f"{self.url}/{missing[0]}",
                )

    def lines(self) -> Iterator[str]:
        """The folder as text: its splits and features."""
        title = "/".join(filter(None, (self.name, self.config, self.version)))
        yield f"{title}: {display_name(self.url)}"
        for split in self.splits.values():
            yield f"  split {describe_split(split)}"
        if self.supervised_keys:
            yield f"  supervised: {self.supervised_keys}"
        for line in tree_lines(self.features):
            yield line if line.startswith(" ") else f"  {line}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Tables of the splits and features, for notebooks."""
        title = "/".join(filter(None, (self.name, self.config, self.version)))
        splits = [
            [split.name, f"{split.records:,}", f"{split.shards:,}", f"{split.bytes:,}"]
            for split in self.splits.values()
        ]
        features = [[line] for line in tree_lines(self.features)]
        parts = [
            html.element("p", html.text(f"{title}: {display_name(self.url)}")),
            html.table(
                ["split", "records", "shards", "bytes"],
                [[html.text(cell) for cell in row] for row in splits],
            ),
            html.element("pre", html.whole_text("\n".join(line for [line] in features))),
        ]
        return html.fragment(*parts)


def describe_split(split: SplitInfo) -> str:
    """A split in one line."""
    shards = f"{split.shards:,} shard{'s' * (split.shards != 1)}"
    size = f", {split.bytes:,} bytes" if split.bytes else ""
    return f"{split.name}: {split.records:,} records in {shards}{size}"
