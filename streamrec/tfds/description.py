"""What `dataset_info.json` says: the splits, the names of their shards, and how many records each
has. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from streamrec.arguments import describe_value
from streamrec.display import display_repr
from streamrec.errors import ManifestError, UnsupportedOperationError

TEMPLATE: Final = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
"""How shards are named, unless the file says otherwise."""

FIELD: Final = re.compile(r"\{(\w+)\}")

MAX_SHARDS: Final = 1_000_000
"""More shards are taken for damage: a number in the file must not cost memory."""

NUMBER_DIGITS: Final = 5
"""Numbers of shards have at least this many digits."""


@display_repr
@dataclass(frozen=True, kw_only=True)
class SplitInfo:
    """One split.

    Attributes:
        name: Its name.
        shard_lengths: The number of records of each shard.
        bytes: What the records take, as the writer counted; 0 if it did not.
        shard_names: The names of the shards, relative to the folder.
    """

    name: str
    shard_lengths: tuple[int, ...] = field(repr=False)
    bytes: int
    shard_names: tuple[str, ...] = field(repr=False)

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(self.shard_lengths)

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.shard_lengths)


@display_repr
@dataclass(frozen=True, kw_only=True)
class Description:
    """The content of `dataset_info.json`.

    Attributes:
        name, config, version, description, citation: As the writer gave them; "" without one.
        splits: The splits, by name.
        supervised_keys: The features of inputs and targets, for `as_supervised`; () without them.
        in_order: Whether records are in the order in which they were generated: the shards are
            read one after the other then.
    """

    name: str
    config: str
    version: str
    description: str
    citation: str
    splits: Mapping[str, SplitInfo]
    supervised_keys: tuple[Any, ...]
    in_order: bool


def description_from_json(text: str | bytes, path: str) -> Description:
    """Reads a `dataset_info.json`.

    Raises:
        ManifestError: It is damaged, or has no numbers of records; `path` is in it.
        UnsupportedOperationError: The records are in files of another format.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ManifestError(f"{path}: this is not a description of a data set: it has no name")
    members = {camel(key): member for key, member in value.items()}
    file_format = str(members.get("fileFormat") or "tfrecord").lower()
    if file_format != "tfrecord":
        raise UnsupportedOperationError(
            f"the records of this data set are in {file_format} files, and streamrec reads only "
            "TFRecord files: write it again with file_format='tfrecord', or convert it with "
            "tfds convert_format",
            path,
        )
    splits = [split_from_json(split, value["name"], path) for split in members.get("splits") or []]
    return Description(
        name=value["name"],
        config=str(members.get("configName") or ""),
        version=str(members.get("version") or ""),
        description=str(members.get("description") or "").strip(),
        citation=str(members.get("citation") or "").strip(),
        splits={split.name: split for split in splits},
        supervised_keys=supervised_from_json(members.get("supervisedKeys")),
        in_order=bool(members.get("disableShuffling", False)),
    )


def camel(key: str) -> str:
    """The name of a member in camel case; both spellings are JSON of the same message."""
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def split_from_json(value: Mapping[str, Any], dataset: str, path: str) -> SplitInfo:
    """One split."""
    members = {camel(key): member for key, member in value.items()}
    name = str(members.get("name") or "")
    lengths = members.get("shardLengths")
    if not isinstance(lengths, list) or len(lengths) > MAX_SHARDS:
        # Without records, the writer leaves the member out.
        if not members.get("numBytes") and not members.get("numShards"):
            lengths = []
        else:
            raise ManifestError(
                f"{path}: split {name!r} has no shardLengths, the number of records of each shard: "
                "it was written by an old version; read its shards with TFRecordDataset"
            )
    try:
        counts = tuple(int(length) for length in lengths)
        size = int(members.get("numBytes") or 0)
    except (TypeError, ValueError):
        raise ManifestError(
            f"{path}: split {name!r} has {describe_value(lengths)} as its shardLengths, which are "
            "not numbers"
        ) from None
    if any(count < 0 for count in counts):
        raise ManifestError(f"{path}: split {name!r} has a shard with a negative length")
    template = str(members.get("filepathTemplate") or TEMPLATE)
    names = tuple(
        shard_name(template, number, len(counts), dataset=dataset, split=name, path=path)
        for number in range(len(counts))
    )
    return SplitInfo(name=name, shard_lengths=counts, bytes=size, shard_names=names)


def shard_name(
    template: str, number: int, total: int, *, dataset: str, split: str, path: str = ""
) -> str:
    """The name of a shard.

    Examples:
        >>> shard_name("{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", 2, 10, dataset="mnist",
        ...            split="train")
        'mnist-train.tfrecord-00002-of-00010'
    """
    digits = max(NUMBER_DIGITS, len(str(total)))
    index = f"{number:0{digits}d}"
    count = f"{total:0{digits}d}"
    values = {
        "DATASET": dataset,
        "SPLIT": split,
        "FILEFORMAT": "tfrecord",
        "SHARD_INDEX": index,
        "NUM_SHARDS": count,
        "SHARD_X_OF_Y": f"{index}-of-{count}",
    }

    def value_of(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ManifestError(
                f"{path}: the names of shards have {match[0]}, which streamrec does not know: "
                f"{template}"
            )
        return values[match[1]]

    name = FIELD.sub(value_of, template)
    # The name is a stranger's: it must stay in the folder.
    if name.startswith("/") or "://" in name or ".." in name.split("/"):
        raise ManifestError(f"{path}: the shard {name!r} is outside the folder")
    return name


def supervised_from_json(value: Any) -> tuple[Any, ...]:
    """The keys of supervised training: names, or dicts and tuples of names."""
    if not isinstance(value, Mapping):
        return ()
    members = {camel(key): member for key, member in value.items()}
    if isinstance(members.get("tuple"), Mapping):
        return tuple(supervised_key(item) for item in members["tuple"].get("items") or [])
    if members.get("input") and members.get("output"):
        return (str(members["input"]), str(members["output"]))
    return ()


def supervised_key(value: Mapping[str, Any]) -> Any:
    """One key: the name of a feature, or a tuple or a dict of keys."""
    members = {camel(key): member for key, member in value.items()}
    if isinstance(members.get("tuple"), Mapping):
        return tuple(supervised_key(item) for item in members["tuple"].get("items") or [])
    if isinstance(members.get("dict"), Mapping):
        children: Mapping[str, Any] = members["dict"].get("dict") or {}
        return {str(name): supervised_key(child) for name, child in children.items()}
    return str(members.get("featureKey", ""))


def labels_name(path: Sequence[str]) -> str:
    """The name of the file with the names of a label's classes.

    Examples:
        >>> labels_name(("objects", "label")), labels_name(("a/b",))
        ('objects-label.labels.txt', 'a.b.labels.txt')
    """
    return "-".join(part.replace("/", ".") for part in path) + ".labels.txt"


def labels_from_text(text: bytes) -> tuple[str, ...]:
    """The names of classes in their file: a line each, without empty ones."""
    lines = text.decode("utf-8", "replace").split("\n")
    return tuple(line.strip() for line in lines if line.strip())
