"""Folders of TensorFlow Datasets among the names that were typed.

Their description says which shards there are and how many records each has. So `--split` takes
expressions such as `train[:10%]`, and counting needs no reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from streamrec import FeatureError, NotFoundError
from streamrec.cli.library import (
    ManifestError,
    ObjectInfo,
    PermissionDeniedError,
    Portion,
    Storage,
    Storages,
    UnsupportedOperationError,
)
from streamrec.cli.output import print_note

if TYPE_CHECKING:
    from streamrec.cli.library import Folder

INFO = "dataset_info.json"

NOT_DESCRIBING: Final = re.compile(
    r"|[._].*|.*-\d{5,}-of-\d{5,}|.*manifest\.json|.*\.(idx|index|index\.part-.*)", re.DOTALL
)
"""Names in a folder that are not part of its description.

These are hidden ones, shards, and manifests and indexes, which are true only where they were made.
"""


async def open_folder(storages: Storages, directory: str, *, notes: bool = True) -> Folder | None:
    """The folder of TensorFlow Datasets that a directory is; None if it is none that is read.

    With `notes`, a note says why a folder that has a description is not read.
    """
    storage = await storages.at(directory)
    # A folder whose description cannot be read is a directory as any other.
    try:
        await storage.stat(f"{directory}{INFO}")
        # Imported here, since most commands read no such folder.
        tfds = import_module("streamrec.tfds")
        folder: Folder = await tfds.open(
            directory, storage_options=storages.storage_options or None
        )
        return folder
    except NotFoundError:
        return None
    except (ManifestError, FeatureError, UnsupportedOperationError) as error:
        if notes:
            print_note(f"{error}; the folder is read as any directory")
        return None


async def find_descriptions(
    storages: Storages, directory: str, shards: Iterable[str]
) -> list[ObjectInfo]:
    """The files that make shards in or below a directory whole folders: descriptions and labels.

    Args:
        storages: The stores.
        directory: The directory that was typed, with a slash at its end.
        shards: The shards that are taken; other folders count as not wanted.
    """
    storage = await storages.at(directory)
    folder = await open_folder(storages, directory, notes=False)
    taken = set(shards)
    wanted = {path.rpartition("/")[0] for path in taken}
    found = []
    with suppress(NotFoundError, PermissionDeniedError, UnsupportedOperationError):
        found = [info async for info in storage.list(directory)]
    if folder is not None and not found:
        return await ask_for_descriptions(storage, folder)
    # Shards of other splits may have names of any form.
    splits = () if folder is None else folder.splits.values()
    others = {f"{directory}{name}" for split in splits for name in split.shard_names}
    described = {info.path.removesuffix(f"/{INFO}") for info in found}
    return [
        info
        for info in found
        for place, _, name in [info.path.rpartition("/")]
        if place in wanted & described
        and not NOT_DESCRIBING.fullmatch(name)
        and info.path not in taken | others
    ]


async def ask_for_descriptions(storage: Storage, folder: Folder) -> list[ObjectInfo]:
    """The files of a description in a store that lists nothing, by the names that they have."""
    found = []
    for name in import_module("streamrec.tfds.opening").description_files(folder.features):
        # Without a file of names, classes are numbers.
        with suppress(NotFoundError):
            found.append(await storage.stat(f"{folder.url}/{name}"))
    return found


def class_names(folder: Folder) -> Mapping[str, tuple[str, ...]]:
    """The names of the classes of each label, by the name of its values in records."""
    decoder = import_module("streamrec.tfds.decoder")
    names: Mapping[str, tuple[str, ...]] = decoder.class_names(folder.features)
    return names


def portions_of(folder: Folder, split: str | None) -> list[Portion] | None:
    """The parts of shards of a split, or of all splits; None if shards are missing.

    Raises:
        click.UsageError: `split` is not an expression of this folder's splits.
        NotFoundError: A shard of `split` is missing.
    """
    try:
        return folder.portions(split or "all")
    except NotFoundError:
        # Without a split, the names of the other shards tell what is missing.
        if split is not None:
            raise
        return None
    except ValueError as error:
        raise click.UsageError(f"--split: {error}") from error
