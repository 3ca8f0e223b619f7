"""Folders of TensorFlow Datasets among the names that were typed.

Their description says which shards there are and how many records each has. So `--split` takes
expressions such as `train[:10%]`, and counting needs no reading.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import click

from streamrec import FeatureError, NotFoundError
from streamrec.cli.library import ManifestError, Portion, Storages, UnsupportedOperationError
from streamrec.cli.output import print_note

if TYPE_CHECKING:
    from streamrec.cli.library import Folder

INFO = "dataset_info.json"


async def open_folder(storages: Storages, directory: str) -> Folder | None:
    """The folder of TensorFlow Datasets that a directory is; None if it is none that is read."""
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
        print_note(f"{error}; the folder is read as any directory")
        return None


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
