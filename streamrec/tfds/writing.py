"""Writes a folder of TensorFlow Datasets, which `open` and TensorFlow Datasets read.

Rules:
- The examples are encoded into temporary files first (`spool.py`). So an example that cannot be
  written leaves nothing in the store, and the number of shards, which is part of their names,
  follows from their sizes.
- Then come the shards, the names of classes, `features.json`, and last `dataset_info.json`: a
  folder that has it is complete. After a failure nothing of this stays.
- A folder that holds a data set is refused, unless `overwrite`. Then its objects are replaced
  together, or not at all (`storage/replacement.py`). Nothing is removed: shards of an earlier run
  that would stay among the new ones are an error.
- The first shard is written alone. So of two writers at once, the second fails there. If they have
  other numbers of shards, they meet before the description is written: then the folder is listed
  again, and may have no shard of another writer.
"""

from __future__ import annotations

import os
import re
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, Unpack

from streamrec import bridge
from streamrec.arguments import (
    check_flag,
    check_integer,
    check_mapping,
    check_overwrite,
    check_path,
    describe_value,
)
from streamrec.display import join_names
from streamrec.errors import (
    AlreadyExistsError,
    FeatureError,
    NotFoundError,
    PermissionDeniedError,
)
from streamrec.pipeline.engine.threads import Threads, run_in_thread
from streamrec.storage import (
    Overwrite,
    Replacement,
    Storages,
    StoreOptions,
    Upload,
    check_keywords,
    is_url,
    locate,
)
from streamrec.storage.tasks import for_each
from streamrec.tfds.decoder import leaf_columns, names_in, select
from streamrec.tfds.description import TEMPLATE, Description, SplitInfo, labels_name, shard_name
from streamrec.tfds.example_encoder import ExampleEncoder
from streamrec.tfds.examples import ExampleSource
from streamrec.tfds.features import (
    Feature,
    FeaturesDict,
    LeafFeature,
    SequenceFeature,
    with_names,
)
from streamrec.tfds.features_json import features_from_json
from streamrec.tfds.folder import Folder, FoundShards
from streamrec.tfds.given_features import given_features
from streamrec.tfds.inference import SAMPLE, infer_features
from streamrec.tfds.json_writing import description_to_json, features_to_json
from streamrec.tfds.opening import FEATURES, INFO, SHARD, list_folder
from streamrec.tfds.sharding import shard_lengths
from streamrec.tfds.spool import BLOCK_BYTES, Spool
from streamrec.tracebacks import border

Examples: TypeAlias = "Iterable[Any] | AsyncIterable[Any]"

VERSION: Final = re.compile(r"\d+\.\d+\.\d+")
NAME: Final = re.compile(r"[a-zA-Z]\w*")
CONFIG: Final = re.compile(r"[\w+.-]+")
SPLIT: Final = re.compile(r"[\w-]+")
"""The names that TensorFlow Datasets takes."""

MOST_AT_ONCE: Final = 256
"""Examples that are encoded at a time; fewer if they are large."""

SHARDS_AT_ONCE: Final = 2
"""Shards that are sent at the same time, each in several parts."""


@border
async def write(
    path: str | os.PathLike[str],
    splits: Mapping[str, Examples],
    *,
    features: Any = None,
    config: str = "",
    description: str = "",
    citation: str = "",
    supervised_keys: Any = (),
    num_shards: int | None = None,
    max_shard_bytes: int | None = None,
    in_order: bool = True,
    overwrite: Overwrite = False,
    temporary_directory: str | os.PathLike[str] | None = None,
    **store: Unpack[StoreOptions],
) -> Folder:
    """Writes a folder that TensorFlow Datasets and `open` read, without TensorFlow.

        examples = [{"x": np.float32(n), "label": n % 2} for n in range(1000)]
        await streamrec.tfds.write("s3://bucket/data/points/1.0.0", {"train": examples})

    All examples are encoded before the first byte goes to the store. `dataset_info.json` is written
    last, so a folder that has it is complete; if anything fails before, no folder is there.

    Args:
        path: The URL or path of the folder: `.../NAME/VERSION` with a version such as `1.0.0`, or
            `.../NAME/CONFIG/VERSION` with `config`.
        splits: The examples of each split, by its name. They are an iterable, which runs in a
            thread, or an async iterable, such as a Dataset. An example is a dict of values, nested
            as the features are:

            - a Tensor: a scalar, an array, or nested lists of its shape; floats are rounded to its
              dtype, and float64 to float32 unless the encoding is "bytes" or "zlib";
            - Text: str or bytes; a label: the number of its class (-1 for none) or its name;
            - an image: the bytes of its file, which are stored as they are, or an array of shape
              `[height, width, channels]`, which becomes a PNG, or a JPEG if the encoding says so;
            - a video: its frames; a box: ymin, xmin, ymax, xmax;
            - a Sequence, and the steps of an episode: an iterable of values, or of dicts; or a dict
              of columns, as `Folder.read` gives it;
            - None, or no value, for what is optional.
        features: The features: a tree, such as `open(...).features`; a dict of them by name, in
            which a dtype is a scalar, `str` is text, and a dict is nested; or the text of a
            `features.json` (labels are numbers then). None infers them from the first 100 examples
            of the first split: numbers, arrays, text, dicts, lists; a list of dicts named `steps`
            is the steps of an episode. What is ambiguous is an error.
        config: The configuration: the folder above the version, if there is one.
        description, citation: Texts for readers.
        supervised_keys: The names of inputs and targets, such as `("image", "label")`, for
            `as_supervised`; () for none.
        num_shards: The number of shards of each split, at most one for each example. The shards
            get equal numbers of records.
        max_shard_bytes: A record that would exceed this begins the next shard. With neither, the
            number of shards is that of TensorFlow Datasets: shards of 64 MiB to 1 GiB.
        in_order: Whether readers give the examples in the order in which they were given. Then
            TensorFlow Datasets refuses `shuffle_files=True`, and reads one shard after the other.
            If False, readers interleave 16 shards. (TensorFlow Datasets itself shuffles what it
            writes; shuffle the examples to have that.)
        overwrite: Whether to replace the data set in a folder that has one. Its objects are
            replaced together; an object that stays, such as a shard of another number of shards, is
            an error, since nothing is removed. "unsecured" also replaces objects that this client
            may not read.
        temporary_directory: Where the records wait until all are encoded: it needs as much room as
            they take. None for the system's directory.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The folder, as `open` gives it.

    Raises:
        FeatureError: An example does not fit the features, or they cannot be inferred; the error
            has the split, the number of the example (from 0) and the feature.
        AlreadyExistsError: The folder holds a data set or a part of one; or with `overwrite` shards
            that would not be replaced.
        ObjectChangedError: Another writer writes the same folder.
        ValueError: The path has no name and version, or a name is not one that TensorFlow Datasets
            takes; or a split has no examples; or there is no feature of a supervised key.
        StorageError: The store, or the disk of the temporary files, failed.
    """
    check_keywords("tfds.write", store)
    request = check_request(
        path,
        splits,
        store,
        config=config,
        num_shards=num_shards,
        max_shard_bytes=max_shard_bytes,
        overwrite=overwrite,
    )
    check_flag("in_order", in_order)
    given = None if features is None else given_features(features)
    async with AsyncExitStack() as stack:
        storages = await stack.enter_async_context(Storages(**store))
        sends = sending(await refuse_existing(storages, request), request)
        threads = Threads()
        stack.callback(threads.close)
        sources = {name: ExampleSource(name, split, threads) for name, split in splits.items()}
        for source in sources.values():
            stack.push_async_callback(source.aclose)
        tree = given or await infer_from(sources)
        check_keys(tree, supervised_keys)
        encoder = ExampleEncoder(tree)
        class_texts(tree)  # refuses what two labels share before the examples are taken
        spools: dict[str, Spool] = {}
        for name, source in sources.items():
            directory = None if temporary_directory is None else os.fspath(temporary_directory)
            spools[name] = stack.enter_context(Spool(directory))
            await encode_split(name, source, encoder, spools[name], threads)
        info = Description(
            name=request.name,
            config=config,
            version=request.version,
            description=description,
            citation=citation,
            splits={name: describe_split(name, spools[name], request) for name in sources},
            supervised_keys=tuple(supervised_keys),
            in_order=in_order,
        )
        texts = describing_files(info, tree)
        await refuse_others(storages, request, info, texts)
        async with Replacement(
            storages,
            stages=bool(overwrite),
            creates=not overwrite,
            keeps=False,
            unsecured=overwrite == "unsecured",
        ) as objects:
            upload = partial(objects.upload, overwrite=sends)
            await send_shards(upload, request.url, info, spools, threads)
            # Another writer may have written shards of other names meanwhile.
            await refuse_others(storages, request, info, texts)
            # One after the other: what comes last says that all the others are there.
            for name, text in texts.items():
                await send_text(upload, f"{request.url}/{name}", text)
        # What `open` would find; a client that may only write cannot read it.
        return Folder(
            url=request.url,
            info=info,
            features=as_read(tree),
            found=FoundShards(sizes=shard_sizes(info, spools)),
            store=dict(store),
        )


write_sync = bridge.synchronous(write)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where to write, and in which shards; see `write`."""

    url: str
    name: str
    version: str
    num_shards: int | None
    max_shard_bytes: int | None
    overwrite: Overwrite


def check_request(
    path: str | os.PathLike[str],
    splits: Mapping[str, Examples],
    store: StoreOptions,
    *,
    config: str,
    num_shards: int | None,
    max_shard_bytes: int | None,
    overwrite: Overwrite,
) -> Request:
    """Checks where to write, and in which shards."""
    url = locate(check_path("path", path).rstrip("/"), store.get("filesystem"))
    # A path of local disks may be relative to a folder that has the name.
    full = url if is_url(url) or store.get("filesystem") else os.path.abspath(url)
    name, version = names_in_path(full, config)
    check_mapping("splits", splits, "examples by the names of splits")
    if not splits:
        raise ValueError("splits is empty: give a split and its examples")
    for split in splits:
        if not isinstance(split, str) or not SPLIT.fullmatch(split) or split == "all":
            raise ValueError(
                f"{describe_value(split)} cannot be the name of a split: it has letters, digits, "
                "'_' and '-', and is not 'all'"
            )
    if num_shards is not None and max_shard_bytes is not None:
        raise ValueError("num_shards and max_shard_bytes exclude each other: leave one of them out")
    return Request(
        url=url,
        name=name,
        version=version,
        num_shards=check_integer("num_shards", num_shards, 1, none=True),
        max_shard_bytes=check_integer("max_shard_bytes", max_shard_bytes, 1, none=True),
        overwrite=check_overwrite(overwrite),
    )


def names_in_path(path: str, config: str) -> tuple[str, str]:
    """The name of the data set, and its version.

    Examples:
        >>> names_in_path("s3://bucket/data/points/1.0.0", "")
        ('points', '1.0.0')
        >>> names_in_path("/data/points/small/1.0.0", "small")
        ('points', '1.0.0')
    """
    parts = ["", "", *[part for part in path.split("/") if part]]
    version = parts.pop()
    if not VERSION.fullmatch(version):
        raise ValueError(
            f"path is {path!r}: its last part is the version, such as points/1.0.0 for version "
            "1.0.0 of a data set 'points'"
        )
    if config and (not CONFIG.fullmatch(config) or parts.pop() != config):
        raise ValueError(
            f"path is {path!r}, and the configuration {config!r} is not above its version: it is "
            "NAME/CONFIG/VERSION, and a configuration has letters, digits, '_', '+', '-' and '.'"
        )
    name = parts[-1]
    if not NAME.fullmatch(name):
        raise ValueError(
            f"path is {path!r}, in which {name!r} is the name of the data set: a name has letters, "
            "digits and '_', and begins with a letter"
        )
    return name, version


async def refuse_existing(storages: Storages, request: Request) -> bool:
    """Refuses a folder that has a data set, or a part of one.

    Returns:
        Whether it is known to have none: the client may lack the right to know.

    Raises:
        AlreadyExistsError: It has.
    """
    if request.overwrite:
        return False
    names = await describing_names(storages, request.url)
    if not names:
        return names is not None
    what = f"this folder has {join_names(names)}"
    if INFO in names:
        raise AlreadyExistsError(
            f"{what}: pass overwrite=True to replace the data set, or choose another version",
            request.url,
        )
    raise AlreadyExistsError(
        f"{what}, and no {INFO}: another writer was killed, or is at work; if it is not, pass "
        "overwrite=True to replace what it left",
        request.url,
    )


def sending(is_free: bool, request: Request) -> Overwrite:
    """What an upload may replace.

    A folder that is known to be free can be written in any store: what appears meanwhile is an
    error (`creates` of Replacement). Else the store must refuse to replace an object, or a store
    that cannot is an error.
    """
    return True if is_free else request.overwrite


async def describing_names(storages: Storages, url: str) -> list[str] | None:
    """The names in a folder that belong to a data set; of a store without listings, the two JSON
    files. None if this client may not know them.
    """
    storage = await storages.at(url)
    listed = await list_folder(storage, url)
    if listed is not None:
        return sorted(name for name in listed.sizes if is_part(name))
    found = []
    for name in (INFO, FEATURES):
        try:
            await storage.stat(f"{url}/{name}")
        except NotFoundError:
            continue
        except PermissionDeniedError:
            return None
        found.append(name)
    return found


def is_part(name: str) -> bool:
    """Whether a reader would take a file of this name for a part of the data set."""
    if "/" in name:
        return False  # that of another version, or of a configuration
    return name in (INFO, FEATURES) or name.endswith(".labels.txt") or bool(SHARD.fullmatch(name))


async def refuse_others(
    storages: Storages, request: Request, info: Description, texts: Mapping[str, str]
) -> None:
    """Refuses to write where parts of an older data set would stay among the new ones.

    Raises:
        AlreadyExistsError: There are such.
    """
    written = {name for split in info.splits.values() for name in split.shard_names} | set(texts)
    names = await describing_names(storages, request.url) or []
    others = [name for name in names if name not in written]
    if others:
        raise AlreadyExistsError(
            f"{join_names(others)} would stay in this folder among the new files, since nothing is "
            "removed: remove the old data set, give its number of shards with num_shards, or "
            "choose another version",
            request.url,
        )


async def infer_from(sources: Mapping[str, ExampleSource]) -> FeaturesDict:
    """The features of the first examples of the first split."""
    name, source = next(iter(sources.items()))
    examples = await source.peek(SAMPLE)
    if not examples:
        raise empty_split(name)
    try:
        return given_features(infer_features(examples))
    except FeatureError as error:
        raise FeatureError(
            f"split {name!r}: the features of the first {len(examples):,} examples are not clear: "
            f"{error.reason}",
            error.feature,
        ) from error.__cause__


def check_keys(tree: Feature, keys: Any) -> None:
    """Checks that there is a feature of each supervised key."""
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise TypeError(
            f"supervised_keys is {describe_value(keys)}: it must be a tuple, such as "
            "('image', 'label')"
        )
    if keys:
        select(leaf_columns(tree), names_in(keys))


def empty_split(name: str) -> ValueError:
    """The error for a split without examples, which no reader takes."""
    return ValueError(f"split {name!r} has no examples: leave it out")


async def encode_split(
    name: str, source: ExampleSource, encoder: ExampleEncoder, spool: Spool, threads: Threads
) -> None:
    """Encodes all examples of a split into its temporary file."""
    done = 0
    count = 1
    while examples := await source.take(count):
        work = partial(encode_block, encoder, spool, examples, name, done)
        nbytes = await run_in_thread(threads, work)
        done += len(examples)
        # About a block at a time: an episode may have a gigabyte.
        fitting = BLOCK_BYTES * len(examples) // max(1, nbytes)
        count = max(1, min(MOST_AT_ONCE, 2 * count, fitting))
    if not done:
        raise empty_split(name)
    await run_in_thread(threads, spool.flush)


def encode_block(
    encoder: ExampleEncoder, spool: Spool, examples: Sequence[Any], split: str, first: int
) -> int:
    """Encodes some examples; returns the number of bytes."""
    records = []
    for number, example in enumerate(examples, first):
        try:
            records.append(encoder.encode(example))
        except FeatureError as error:
            raise FeatureError(
                f"split {split!r}, example {number:,}: {error.reason}", error.feature
            ) from error.__cause__
        except Exception as error:
            error.add_note(f"This came from split {split!r}, example {number:,}")
            raise
    spool.add(records)
    return sum(map(len, records))


def describe_split(name: str, spool: Spool, request: Request) -> SplitInfo:
    """The shards of a split."""
    lengths = spool.lengths
    counts = shard_lengths(lengths, request.num_shards, request.max_shard_bytes)
    names = (
        shard_name(TEMPLATE, number, len(counts), dataset=request.name, split=name)
        for number in range(len(counts))
    )
    return SplitInfo(
        name=name, shard_lengths=counts, bytes=int(lengths.sum()), shard_names=tuple(names)
    )


def shard_sizes(info: Description, spools: Mapping[str, Spool]) -> dict[str, int | None]:
    """The number of bytes of each shard, by its name."""
    return {
        name: end - start
        for split in info.splits.values()
        for name, (start, end) in zip(
            split.shard_names, spools[split.name].bounds(split.shard_lengths), strict=True
        )
    }


def as_read(tree: FeaturesDict) -> Feature:
    """The features as a reader has them: what is not written down has its default."""
    return with_names(features_from_json(features_to_json(tree)), dict(class_files(tree, ())))


def describing_files(info: Description, tree: FeaturesDict) -> dict[str, str]:
    """The texts of the files that are no shards, by name, in the order of their writing."""
    return class_texts(tree) | {FEATURES: features_to_json(tree), INFO: description_to_json(info)}


def class_texts(tree: FeaturesDict) -> dict[str, str]:
    """The files with the names of classes, by name.

    Raises:
        FeatureError: Two labels with other classes would have the same file.
    """
    texts: dict[str, str] = {}
    for path, names in class_files(tree, ()):
        if names:
            name = labels_name(path)
            text = "".join(f"{each}\n" for each in names)
            if texts.setdefault(name, text) != text:
                raise FeatureError(
                    f"the names of its classes would be in {name}, as those of another label: "
                    "rename one of them",
                    "/".join(path),
                )
    return texts


def class_files(
    feature: Feature, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The path of each label below a feature, and the names of its classes."""
    if isinstance(feature, LeafFeature):
        if feature.names is not None:
            yield path, feature.names
    elif isinstance(feature, SequenceFeature):
        yield from class_files(feature.feature, path)
    else:
        for name, child in feature.features.items():
            yield from class_files(child, (*path, name))


Uploading: TypeAlias = "Callable[..., Awaitable[Upload]]"
"""Starts the upload of an object by its URL."""


async def send_shards(
    begin: Uploading,
    url: str,
    info: Description,
    spools: Mapping[str, Spool],
    threads: Threads,
) -> None:
    """Writes all shards; the first one alone, where another writer is met."""
    shards = [
        (spools[split.name], f"{url}/{name}", bounds)
        for split in info.splits.values()
        for name, bounds in zip(
            split.shard_names, spools[split.name].bounds(split.shard_lengths), strict=True
        )
    ]

    async def send(shard: tuple[Spool, str, tuple[int, int]]) -> None:
        spool, path, (start, end) = shard
        async with await begin(path) as upload:
            for offset in range(start, end, BLOCK_BYTES):
                size = min(BLOCK_BYTES, end - offset)
                block = await run_in_thread(threads, partial(spool.read, offset, size))
                await upload.write(block)

    await send(shards[0])
    await for_each(send, shards[1:], SHARDS_AT_ONCE)


async def send_text(begin: Uploading, path: str, text: str) -> None:
    """Writes one of the files that describe the shards."""
    # Names of classes must be there when the description appears; only it says that all is there.
    describes = path.endswith((INFO, FEATURES))
    async with await begin(path, describes=describes) as upload:
        await upload.write(text.encode())
