"""What the names of shards tell of each other: how many there are, and which splits. Pure.

- TensorFlow Datasets, Beam and others name shards `ints-train.tfrecord-00005-of-00008`: each name
  tells how many shards there are. So a missing one can be found without a manifest, and so can the
  shards of another run, whose names end in another number.
- One folder may hold several splits (`ints-train...`, `ints-test...`), or several versions in
  folders of their own. Reading it as one data set trains on the test data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from streamrec.lazy import lazy_pattern
from streamrec.storage import Glob, split_chain

MAX_TOTAL: Final = 1_000_000
"""Names that tell of more shards are not numbered ones: a hostile name must not cost memory."""

NUMBERS: Final = lazy_pattern(r"(.*?)([0-9]{1,7})(-of-)([0-9]{1,7})([^/0-9][^/]*)?", re.DOTALL)
"""A name with its number and the number of all shards."""

MAX_WORDS: Final = 8
"""How many splits a message names."""

FORMAT: Final = lazy_pattern(r"\.(tf_?records?|tfrec|array_record|riegeli|records?|gz|zst|zz)$")
"""The endings that say how a shard is written, and not which split it is of."""

SPLIT_WORDS: Final = frozenset(
    (
        *("train", "training", "test", "testing", "holdout"),
        *("val", "valid", "validation", "dev", "eval", "evaluation"),
    )
)
"""Words that name a split wherever they occur in a name."""

TRAINING: Final = frozenset(("train", "training"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedName:
    """A name of the form `HEAD00005-of-00008TAIL`.

    Attributes:
        head: The name up to the number, with its directory.
        number: The shard's number.
        total: How many shards there are, as the name tells.
        tail: The rest of the name.
        widths: How many digits both numbers have.
    """

    head: str
    number: int
    total: int
    tail: str
    widths: tuple[int, int]

    def with_number(self, number: int) -> str:
        """The name of another shard of the same set."""
        numbers = f"{number:0{self.widths[0]}d}-of-{self.total:0{self.widths[1]}d}"
        return f"{self.head}{numbers}{self.tail}"

    @property
    def pattern(self) -> str:
        """A glob that matches the names of the set."""
        return f"{self.head}*-of-{self.total:0{self.widths[1]}d}{self.tail}"


def parse_numbered(path: str) -> NumberedName | None:
    """The parts of a name that tells how many shards there are; None for another name.

    Examples:
        >>> parse_numbered("d/ints-train.tfrecord-00005-of-00008").with_number(7)
        'd/ints-train.tfrecord-00007-of-00008'
        >>> parse_numbered("d/train-00005"), parse_numbered("d/9-of-8")
        (None, None)
    """
    if "-of-" not in path:
        return None
    before, url, after = split_chain(path)
    directory, slash, name = url.rpartition("/")
    found = NUMBERS.fullmatch(name)
    if found is None or not int(found[2]) <= int(found[4]) <= MAX_TOTAL:
        return None
    return NumberedName(
        head=before + directory + slash + found[1],
        number=int(found[2]),
        total=int(found[4]),
        tail=(found[5] or "") + after,
        widths=(len(found[2]), len(found[4])),
    )


@dataclass(frozen=True, slots=True)
class Gap:
    """What the names of one set of shards say that is not so.

    Attributes:
        pattern: A glob that matches the names of the set.
        missing: How many shards are missing.
        examples: The names of the first missing shards, at most `MAX_EXAMPLES`.
        totals: The numbers of shards that the names tell of, each with how many names tell it: more
            than one if shards of several runs are mixed.
    """

    pattern: str
    missing: int
    examples: tuple[str, ...]
    totals: Mapping[int, int]

    @property
    def told(self) -> str:
        """What the names say of how many shards there are, if they contradict each other."""
        told = join_words(
            [
                f"{count:,} of {total:,} shard{'s' * (total != 1)}"
                for total, count in self.totals.items()
            ]
        )
        return f"shards of several runs are mixed, since their names tell different totals ({told})"

    def __str__(self) -> str:
        if len(self.totals) > 1:
            return f"{self.pattern}: {self.told}: read those of one run, or remove the others"
        [total] = self.totals
        names = ", ".join(name.rpartition("/")[2] for name in self.examples[:3])
        verb = "is" if self.missing == 1 else "are"
        more = ", ..." if self.missing > 3 else ""
        return (
            f"{self.pattern}: {self.missing:,} of {total:,} shards {verb} missing, as the names "
            f"tell: {names}{more}"
        )


MAX_EXAMPLES: Final = 1000
"""How many missing names a Gap holds."""


def find_gaps(paths: Iterable[str], pattern: str | None = None) -> list[Gap]:
    """Finds the shards that the names of others tell of and that are not among them.

    It finds also sets in which names tell different numbers of shards.

    Shards may be numbered from 0 or, as a last number that equals their total shows, from 1.

    Args:
        paths: The shards.
        pattern: The glob that the shards match; None for a whole directory. A glob for a part of a
            set misses nothing of the other part.

    Examples:
        >>> [str(gap) for gap in find_gaps(["d/x-0-of-3", "d/x-2-of-3"])]
        ['d/x-*-of-3: 1 of 3 shards is missing, as the names tell: x-1-of-3']
    """
    sets: dict[tuple[str, str], dict[int, dict[int, NumberedName]]] = {}
    for path in paths:
        name = parse_numbered(path)
        if name is not None:
            runs = sets.setdefault((name.head, name.tail), {})
            runs.setdefault(name.total, {})[name.number] = name
    gaps = []
    looked_at = 0
    for (head, tail), runs in sets.items():
        if len(runs) > 1:
            totals = {total: len(shards) for total, shards in sorted(runs.items())}
            gaps.append(Gap(f"{head}*{tail}", 0, (), totals))
        for total, shards in sorted(runs.items()):
            first = 1 if total in shards and 0 not in shards else 0
            missing = total - sum(first <= number < first + total for number in shards)
            if not missing:
                continue
            one = next(iter(shards.values()))
            absent = (number for number in range(first, first + total) if number not in shards)
            names: Iterator[str] = map(one.with_number, absent)
            if pattern is not None:
                # each name is compared with the pattern: so few that hostile names cost a second
                names = filter(Glob(pattern).matches, islice(names, max(0, MAX_TOTAL - looked_at)))
                looked_at += missing
                found = list(names)
                missing = len(found)
                names = iter(found)
            if examples := tuple(islice(names, MAX_EXAMPLES)):
                gaps.append(Gap(one.pattern, missing, examples, {total: len(shards)}))
    return gaps


@dataclass(frozen=True, slots=True)
class Splits:
    """The splits of a folder, as the names of its shards tell.

    Attributes:
        shards: The shards of each split, by its name, in order. The shards whose names tell no
            split are under "".
        certain: Whether the names say so in the form `NAME-SPLIT.tfrecord-00000-of-00008`, and not
            only by a word such as "test".
    """

    shards: Mapping[str, Sequence[str]]
    certain: bool

    def __str__(self) -> str:
        words = [
            f"{split or 'others'} ({len(shards):,} shard{'s' * (len(shards) != 1)})"
            for split, shards in self.shards.items()
        ]
        if len(words) > MAX_WORDS:
            words[MAX_WORDS - 1 :] = [f"{len(words) - MAX_WORDS + 1:,} more"]
        return join_words(words)

    @property
    def several(self) -> bool:
        """Whether there are several splits, which a reader of all shards would mix."""
        return len(self.names) > 1

    @property
    def names(self) -> list[str]:
        """The names of the splits."""
        return [split for split in self.shards if split]

    @property
    def mixes_test_data(self) -> bool:
        """Whether there are training data and other well-known splits."""
        words = [{*words_of(split)} & SPLIT_WORDS for split in self.shards]
        return any(word & TRAINING for word in words) and any(word - TRAINING for word in words)

    def select(self, split: str) -> Sequence[str] | None:
        """The shards of a split.

        They are those of the split of this name, or of the one whose name ends in `-` or `/` and
        this; of all splits for "all", if none has that name. None if there is no such split, or
        several.
        """
        if split in self.shards:
            return self.shards[split]
        if split == "all":
            return [path for shards in self.shards.values() for path in shards]
        ends = [name for name in self.shards if name.endswith((f"-{split}", f"/{split}"))]
        return self.shards[ends[0]] if len(ends) == 1 else None


def find_splits(paths: Sequence[str]) -> Splits:
    """Finds the splits of shards, by their names below the directory that they have in common.

    Shards that are numbered `-00000-of-00008` are divided by the rest of their names. The name of
    a split is what distinguishes it from the others: `train` of
    `ints-train.tfrecord-00000-of-00008`, and `2.0.0/train` if there are several folders. All other
    shards are divided by words such as `train` and `test` in their names or folders.

    Examples:
        >>> find_splits(["d/a-train-0-of-1", "d/a-test-0-of-1"]).shards
        {'train': ['d/a-train-0-of-1'], 'test': ['d/a-test-0-of-1']}
    """
    numbered: dict[tuple[str, str], list[str]] = {}
    shards: dict[str, list[str]] = {}
    directories = [path[: path.rfind("/") + 1] for path in paths]
    common = os.path.commonprefix(directories)  # noqa: RUF071  URLs, cut to a directory below
    start = common.rfind("/") + 1
    for path in paths:
        relative = path[start:]
        name = parse_numbered(relative)
        if name is None:
            shards.setdefault(split_word(relative), []).append(path)
        else:
            folder, _, head = name.head.rpartition("/")
            numbered.setdefault((folder, stem_of(head, name.tail)), []).append(path)
    # A folder is part of a split's name only where several have splits: versions of a data set.
    folders = {folder for folder, _ in numbered}
    labels = distinct_parts(list(dict.fromkeys(stem for _, stem in numbered)))
    by_split: dict[str, list[str]] = {}
    for (folder, stem), its in numbered.items():
        label = labels[stem]
        by_split.setdefault(f"{folder}/{label}" if len(folders) > 1 else label, []).extend(its)
    for word, its in shards.items():
        by_split.setdefault(word, []).extend(its)
    return Splits(by_split, certain=len(numbered) > 1)


def stem_of(head: str, tail: str) -> str:
    """The name of a shard without its numbers and its format.

    Examples:
        >>> stem_of("ints-train.tfrecord-", ""), stem_of("train-", ".tfrecord.gz")
        ('ints-train', 'train')
    """
    stem = head.rstrip("-._")
    ending = tail
    while shorter := FORMAT.sub("", stem):
        if shorter == stem:
            break
        stem = shorter
    while (shorter := FORMAT.sub("", ending)) != ending:
        ending = shorter
    return stem + ending


def distinct_parts(stems: Sequence[str]) -> dict[str, str]:
    """What distinguishes names from each other, up to a dash.

    Of one name it is what follows its last dash.

    Examples:
        >>> distinct_parts(["my-data-train", "my-data-test"])
        {'my-data-train': 'train', 'my-data-test': 'test'}
        >>> distinct_parts(["ints-train"]), distinct_parts(["a-train", "train"])
        ({'ints-train': 'train'}, {'a-train': 'a-train', 'train': 'train'})
    """
    if len(stems) == 1:
        return {stems[0]: stems[0].rpartition("-")[2]}
    common = os.path.commonprefix(list(stems))  # noqa: RUF071  names, not directories
    start = common.rfind("-") + 1
    return {stem: stem[start:] for stem in stems}


def split_word(name: str) -> str:
    """The word in a name that tells its split; "" without one.

    It is in the file's name or in the nearest folder.

    Examples:
        >>> split_word("train_0001.tfrecord"), split_word("validation/0001"), split_word("x-0001")
        ('train', 'validation', '')
    """
    for part in reversed(name.split("/")):
        for word in words_of(part):
            if word in SPLIT_WORDS:
                return word
    return ""


def words_of(name: str) -> list[str]:
    """The words of a name, in lower case."""
    return re.findall("[a-z]+", name.lower())


def join_words(words: Sequence[str]) -> str:
    """Words with commas, and "and" before the last.

    Examples:
        >>> join_words(["a"]), join_words(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
