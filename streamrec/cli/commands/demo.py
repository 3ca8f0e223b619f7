"""`streamrec demo`: writes a small data set to try the other commands on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click
import numpy as np
import numpy.typing as npt

import streamrec
from streamrec.cli import options
from streamrec.cli.library import ShardInfo, png
from streamrec.cli.output import print_json, print_line, print_written
from streamrec.cli.reading import run
from streamrec.cli.sources import directory_of, storages_for
from streamrec.cli.writing import open_set, refuse_existing, refuse_matching

EXAMPLES: Final = 1000
NAMES: Final = ("daisy", "dandelion", "rose", "sunflower", "tulip")


@click.command(
    "demo",
    epilog=options.examples("streamrec demo flowers/", "streamrec demo s3://bucket/flowers/"),
)
@click.argument("target", default="flowers/", shell_complete=options.complete_files)
@options.overwrite
@options.as_json
@options.storage_options
def demo_command(
    target: str, overwrite: options.Overwrite, as_json: bool, storage_options: Mapping[str, Any]
) -> None:
    """Writes 1,000 Examples with small images to the directory TARGET, as four shards and a
    manifest.

    The data is the same every time. TARGET is a path or URL; the default is flowers/.
    """
    folder = directory_of(f"{target.rstrip('/')}/") or target
    shards = run(write_demo(folder, overwrite, storage_options))
    if as_json:
        rows = [
            {"path": shard.path, "records": shard.records, "bytes": shard.bytes} for shard in shards
        ]
        print_json({"manifest": f"{folder}manifest.json", "shards": rows})
        return
    again = options.format_options(storage_options)
    print_written("shard", shards, "; try:")
    for name, source in (
        ("info", folder),
        ("head -n 1", folder),
        ("stat --html flowers.html", folder),
        ("verify", f"{folder}manifest.json"),
    ):
        print_line(f"  streamrec {name}{again} {shlex.quote(source)}")


async def write_demo(
    folder: str, overwrite: options.Overwrite, storage_options: Mapping[str, Any]
) -> list[ShardInfo]:
    """Writes the shards and their manifest; returns the shards."""
    pattern = f"{folder}train-{{shard:05d}}.tfrecord"
    manifest = f"{folder}manifest.json"
    writer = streamrec.ShardWriter(
        pattern, max_shard_records=250, manifest=manifest, storage_options=storage_options
    )
    async with storages_for(storage_options) as storages:
        if not overwrite:
            await refuse_matching(storages, pattern)
            await refuse_existing(storages, [manifest])
        async with open_set(storages, overwrite) as objects:
            writer.join(objects)
            async with writer:
                for example in examples():
                    await writer.write(example)
    return writer.shards


def examples() -> Iterator[bytes]:
    """The Examples: an image, a label and its name, a width, and a brightness.

    About one in eight lacks the brightness, so that commands have a missing feature to show.
    """
    words = np.random.PCG64(0).random_raw(4 * EXAMPLES).reshape(EXAMPLES, 4)
    for number, (kind, side, tint, absent) in enumerate(words.tolist()):
        label = kind % 7 % len(NAMES)
        width = 24 + side % 25
        pixels = picture(width, label, tint % 256)
        features = {
            "id": number,
            "label": label,
            "name": NAMES[label],
            "width": width,
            "image": png(pixels),
        }
        brightness = {} if absent % 8 == 0 else {"brightness": float(pixels.mean() / 255)}
        yield streamrec.encode_example(features | brightness)


def picture(width: int, label: int, tint: int) -> npt.NDArray[np.uint8]:
    """A flower with `label + 4` petals; uint8 of shape [width, width, 3]."""
    y, x = np.mgrid[-1 : 1 : width * 1j, -1 : 1 : width * 1j]
    radius = np.hypot(x, y)
    angle = np.arctan2(y, x)
    inside = radius < 0.55 + 0.3 * np.cos((label + 4) * angle)
    petals = np.where(radius < 0.2, 250, 80 + 40 * label)
    channels = (
        np.where(inside, petals, 60),
        np.where(inside, tint, 120),
        np.where(inside, 255 - petals, 60),
    )
    return np.stack(channels, axis=-1).astype(np.uint8)
