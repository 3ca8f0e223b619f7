"""Split expressions such as `train[:90%]+test`: which records of which shards they mean. Pure.

The rounding, and what is refused, are those of TensorFlow Datasets 4.9:
- A boundary is a number of records, a percentage (which may have a fraction) or a number of shards
  (`train[:3shard]`); a negative one counts from the end. The first boundary's unit is that of both.
- A percentage is rounded to the nearest record; half a record goes to the even number.
- `train[2shard]` is one shard; the other units take no single number.
- `A+B` reads A and then B; `all` is all splits, and takes no slice.
- A boundary outside the split is an error, and so is a slice without records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from streamrec.arguments import describe_value
from streamrec.display import join_names

PART: Final = re.compile(r"(?P<split>[\w-]+)(\[(?P<slice>[\w%:.-]+)\])?")
BOUNDARY: Final = re.compile(r"((?P<number>-?[\d_.]+)(?P<unit>%|shard)?)?")

FORMS: Final = "write train, train[:90%], train[100:], train[2shard] or train+test"


@dataclass(frozen=True, slots=True)
class ShardSlice:
    """Records of one shard of a split.

    Attributes:
        split: The split's name.
        shard: The shard's number.
        first: The first record.
        last: One past the last record.
    """

    split: str
    shard: int
    first: int
    last: int


def resolve_split(expression: str, lengths: Mapping[str, Sequence[int]]) -> list[ShardSlice]:
    """The records that an expression means, shard by shard, in order.

    Args:
        expression: One or more splits, with slices.
        lengths: The number of records of each shard, by split.

    Raises:
        ValueError: The expression has another form, names an unknown split, reaches beyond it, or
            means no record.

    Examples:
        >>> resolve_split("train[25%:]", {"train": [4, 4]})
        [ShardSlice(split='train', shard=0, first=2, last=4), ShardSlice(split='train', shard=1, \
first=0, last=4)]
    """
    if not isinstance(expression, str):
        raise TypeError(f"split is {describe_value(expression)}: {FORMS}")
    found: list[ShardSlice] = []
    for part in re.split(r"\s*\+\s*", expression):
        for name, first, last in ranges_of(part, lengths):
            found.extend(slices_between(name, lengths[name], first, last))
    if not found:
        raise ValueError(f"split {expression!r} has no records: {describe_splits(lengths)}")
    return found


def ranges_of(part: str, lengths: Mapping[str, Sequence[int]]) -> list[tuple[str, int, int]]:
    """The splits of one summand, each with its first record and one past the last."""
    match = PART.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is not a split: {FORMS}")
    name = match["split"]
    if name == "all":
        if match["slice"] is not None:
            raise ValueError(
                f"{part!r}: all takes no slice: slice each split, as in train[:10%]+test[:10%]"
            )
        return [(each, 0, sum(shards)) for each, shards in lengths.items()]
    if name not in lengths:
        raise ValueError(f"there is no split {name!r}: {describe_splits(lengths)}")
    if match["slice"] is None:
        return [(name, 0, sum(lengths[name]))]
    first, last = boundaries_of(part, match["slice"], lengths[name])
    return [(name, first, last)]


def boundaries_of(part: str, text: str, shards: Sequence[int]) -> tuple[int, int]:
    """The first record of a slice, and one past the last."""
    numbers, unit = numbers_of(part, text)
    total = sum(shards)
    if len(numbers) == 1:
        if unit != "shard" or numbers[0] is None:
            raise ValueError(f"{part!r}: only a shard is taken by one number, as in train[2shard]")
        numbers.append(numbers[0] + 1)
    first, last = numbers
    if unit == "shard":
        bounds = shard_boundaries(first, last, shards)
    else:
        bounds = (
            0 if first is None else to_records(first, unit, total),
            total if last is None else to_records(last, unit, total),
        )
    if any(abs(bound) > total for bound in bounds):
        raise ValueError(f"{part!r} reaches beyond the {total:,} records of its split")
    return from_start(bounds[0], total), from_start(bounds[1], total)


def numbers_of(part: str, text: str) -> tuple[list[float | None], str]:
    """The one or two numbers of a slice, None for one that is left out, and their unit."""
    matches = [BOUNDARY.fullmatch(boundary) for boundary in text.split(":")]
    texts = [match["number"] for match in matches if match is not None]
    if len(texts) != len(matches) or len(texts) > 2 or not any(texts):
        raise ValueError(f"{part!r} has no slice that can be read: {FORMS}")
    units = [match["unit"] for match in matches if match is not None and match["unit"]]
    unit = units[0] if units else ""
    return [None if one is None else to_number(part, one, unit) for one in texts], unit


def from_start(bound: int, total: int) -> int:
    """A boundary as a number from the start of the split."""
    return bound + total if bound < 0 else bound


def to_number(part: str, text: str, unit: str) -> float:
    """The number of a boundary: whole, except for percentages."""
    try:
        number = float(text) if unit == "%" else int(text)
    except ValueError:
        raise ValueError(f"{part!r}: {text} is not a whole number of records or shards") from None
    if unit == "%" and abs(number) > 100:
        raise ValueError(f"{part!r}: {text}% is not between -100% and 100%")
    return number


def to_records(number: float, unit: str, total: int) -> int:
    """The boundary as a number of records."""
    return round(number * total / 100.0) if unit == "%" else int(number)


def shard_boundaries(
    first: float | None, last: float | None, shards: Sequence[int]
) -> tuple[int, int]:
    """The boundaries, as numbers of records, of a slice of shards."""
    # As TensorFlow Datasets: a last shard of 0 or less counts from the end, also the 0 that one
    # more than -1 makes; sums are over Python's slices, which may reach beyond the shards.
    begin = 0 if first is None else sum(shards[: int(first)])
    if last is None:
        return begin, sum(shards)
    end = int(last)
    if end <= 0:
        end += len(shards)
    return begin, sum(shards[:end])


def slices_between(
    split: str, shards: Sequence[int], first: int, last: int
) -> Iterator[ShardSlice]:
    """The records between two of a split's, shard by shard; empty shards have none."""
    start = 0
    for number, length in enumerate(shards):
        begin = max(first - start, 0)
        end = min(last - start, length)
        if begin < end:
            yield ShardSlice(split, number, begin, end)
        start += length


def describe_splits(lengths: Mapping[str, Sequence[int]]) -> str:
    """The splits with their numbers of records, for messages."""
    named = [f"{name} ({sum(shards):,} records)" for name, shards in lengths.items()]
    return f"the data set has {join_names(named)}" if named else "the data set has no splits"
