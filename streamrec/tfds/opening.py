"""Opens a folder of TensorFlow Datasets: reads its two JSON files and the names of its classes.

Rules:
- A folder above stands for its newest version. If several data sets or configurations are below
  it, an error lists them.
- The folder is listed once, where the store can be listed. So a missing shard is an error before
  the first record. On a web server, shards are asked for one by one if they are few.
- Nothing in the files leads out of the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple, Unpack

from streamrec import bridge
from streamrec.arguments import check_path
from streamrec.display import join_names
from streamrec.errors import (
    ManifestError,
    NotFoundError,
    PermissionDeniedError,
    UnsupportedOperationError,
)
from streamrec.shards import list_shards
from streamrec.storage import Storage, Storages, StoreOptions, check_keywords, locate
from streamrec.storage.tasks import for_each
from streamrec.tfds.description import (
    Description,
    description_from_json,
    labels_from_text,
    labels_name,
)
from streamrec.tfds.features import Feature, labels, with_names
from streamrec.tfds.features_json import features_from_json
from streamrec.tfds.folder import Folder, FoundShards
from streamrec.tracebacks import border

INFO: Final = "dataset_info.json"
FEATURES: Final = "features.json"

VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")
SHARD: Final = re.compile(r".+-[0-9]{5,}-of-[0-9]{5,}")

FEW_SHARDS: Final = 64
"""Up to this number, a store that cannot be listed is asked for each shard."""

MAX_LISTED: Final = 200_000
"""Larger folders are not listed."""

MAX_FILE_BYTES: Final = 256 << 20
"""The two JSON files are read whole: longer ones are refused."""

PARALLEL: Final = 16


@border
async def open(path: str, **store: Unpack[StoreOptions]) -> Folder:
    """Opens a folder that TensorFlow Datasets wrote, without TensorFlow.

        mnist = await streamrec.tfds.open("s3://bucket/data/mnist/3.0.1")
        print(mnist)

    Args:
        path: A URL or path of a folder with `dataset_info.json` and `features.json`; or of one
            above, which stands for the newest version. On a web server, the folder itself.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Raises:
        NotFoundError: There is no such folder, or a file of it is missing.
        ManifestError: `dataset_info.json` is damaged, or several data sets or configurations are
            below `path`: the error lists them.
        FeatureError: `features.json` is damaged, or has a feature of an unknown kind.
        UnsupportedOperationError: The records are in files of another format than TFRecord.
        StorageError: The store failed.
    """
    check_keywords("tfds.open", store)
    name = check_path("path", path).rstrip("/").removesuffix(f"/{INFO}")
    url = locate(name, store.get("filesystem"))
    async with Storages(**store) as storages:
        url, text = await find_folder(storages, url)
        storage = await storages.at(url)
        info = description_from_json(text, f"{url}/{INFO}")
        features = features_from_json(await read_file(storage, f"{url}/{FEATURES}"))
        listed = await list_folder(storage, url)
        features = await read_labels(storage, url, features, listed)
        found = await find_shards(storage, url, info, listed)
    return Folder(url=url, info=info, features=features, found=found, store=dict(store))


open_sync = bridge.synchronous(open)


async def find_folder(storages: Storages, url: str) -> tuple[str, bytes]:
    """The folder that a URL stands for, and its description."""
    storage = await storages.at(url)
    try:
        return url, await read_file(storage, f"{url}/{INFO}")
    except NotFoundError:
        below = await find_below(storages, url)
    if not below:
        raise NotFoundError(
            f"neither this folder nor one below it has {INFO}, as folders of TensorFlow Datasets "
            "have: pass the folder of a version, such as mnist/3.0.1",
            url,
        )
    url = choose_version(url, below)
    return url, await read_file(storage, f"{url}/{INFO}")


async def find_below(storages: Storages, url: str) -> list[str]:
    """The folders of versions below a URL: one or two levels below, with a configuration."""
    found: list[str] = []
    for levels in ("*", "*/*"):
        with suppress(NotFoundError, UnsupportedOperationError):
            listing = await list_shards(storages, [f"{url}/{levels}/{INFO}"], patterns=True)
            found += [path.removesuffix(f"/{INFO}") for path in listing.paths]
    return found


def choose_version(url: str, folders: Iterable[str]) -> str:
    """The newest of several folders of versions; an error that lists them if they differ in more.

    Examples:
        >>> choose_version("d/mnist", ["d/mnist/3.0.1", "d/mnist/3.0.10"])
        'd/mnist/3.0.10'
    """
    versions: dict[str, list[str]] = {}
    for folder in folders:
        parent, _, name = folder.rpartition("/")
        if VERSION.match(name):
            versions.setdefault(parent, []).append(folder)
        else:
            versions.setdefault(folder, []).append(folder)
    if len(versions) > 1:
        names = [parent.removeprefix(f"{url}/") for parent in sorted(versions)]
        raise ManifestError(
            f"{url}: several data sets or configurations are below this folder: "
            f"{join_names(names, 400)}: pass the folder of one of them"
        )
    [found] = versions.values()
    return max(found, key=version_of)


def version_of(folder: str) -> tuple[int, ...]:
    """The version at the end of a folder's name, as numbers."""
    match = VERSION.match(folder.rpartition("/")[2])
    return tuple(map(int, match.groups())) if match else ()


async def read_file(storage: Storage, path: str) -> bytes:
    """A small file."""
    info = await storage.stat(path)
    # A web server may not tell the size; then the file ends where its answer ends.
    size = MAX_FILE_BYTES if info.size is None else info.size
    if size > MAX_FILE_BYTES:
        raise ManifestError(f"{path} has {size:,} bytes: it is not a description")
    return await storage.read_range(path, 0, size, info.version)


class Listed(NamedTuple):
    """The names in a folder, with their sizes."""

    sizes: dict[str, int | None]


async def list_folder(storage: Storage, url: str) -> Listed | None:
    """What is in a folder; None if the store cannot be listed, or the folder is very large."""
    sizes: dict[str, int | None] = {}
    try:
        async for info in storage.list(f"{url}/", most=MAX_LISTED):
            sizes[info.path.removeprefix(f"{url}/")] = info.size
    except (UnsupportedOperationError, PermissionDeniedError, NotFoundError):
        return None
    # The description was read, so an empty listing is that of a store that lists nothing.
    return Listed(sizes) if sizes else None


def description_files(features: Feature) -> list[str]:
    """The names of the files that describe a folder; those of classes need not exist."""
    return [INFO, FEATURES, *(labels_name(path) for path, _ in labels(features))]


async def read_labels(
    storage: Storage, url: str, features: Feature, listed: Listed | None
) -> Feature:
    """The features, with the names of their classes."""
    names: dict[tuple[str, ...], tuple[str, ...]] = {}

    async def read(path: tuple[str, ...]) -> None:
        with suppress(NotFoundError):
            text = await read_file(storage, f"{url}/{labels_name(path)}")
            names[path] = labels_from_text(text)

    paths = [path for path, _ in labels(features)]
    if listed is not None:
        paths = [path for path in paths if labels_name(path) in listed.sizes]
    await for_each(read, paths, PARALLEL)
    return with_names(features, names)


async def find_shards(
    storage: Storage, url: str, info: Description, listed: Listed | None
) -> FoundShards:
    """The shards that the store has."""
    names = [name for split in info.splits.values() for name in split.shard_names]
    if listed is not None:
        known = set(names)
        others = [name for name in listed.sizes if SHARD.fullmatch(name) and name not in known]
        sizes = {name: size for name, size in listed.sizes.items() if name in known}
        return FoundShards(sizes=sizes, others=tuple(others))
    found: dict[str, int | None] = {}
    if len(names) > FEW_SHARDS:
        # The first and the last one of each split tell whether the names are right.
        names = [
            name
            for split in info.splits.values()
            for name in (split.shard_names[:1] + split.shard_names[-1:])
        ]

    async def ask(name: str) -> None:
        with suppress(NotFoundError):
            found[name] = (await storage.stat(f"{url}/{name}")).size

    await for_each(ask, names, PARALLEL)
    return FoundShards(sizes=found, asked=frozenset(names))
