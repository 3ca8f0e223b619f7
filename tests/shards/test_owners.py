"""Several writers of the same names: each removes, replaces and restores only what is its own."""

import asyncio
import random
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import streamrec
from streamrec import ShardWriter
from streamrec.errors import ObjectChangedError
from streamrec.storage import Replacement, Storages
from tests.steps import Place, is_hidden, open_place

KINDS = ["disk", "s3_store", "gcs_store", "memory"]


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param != "memory":
        async with open_place(request.param, request) as there:
            yield there
        return
    url = f"memory://{uuid4()}"
    async with Storages() as storages:
        yield Place(url, {}, await storages.at(url))


def make_writer(place: Place, **how: object) -> ShardWriter:
    return ShardWriter(
        f"{place.url}/t-{{shard}}",
        max_shard_records=1,
        manifest=f"{place.url}/m.json",
        storage_options=place.options,
        **how,  # type: ignore[arg-type]
    )


async def records_at(place: Place) -> list[bytes]:
    shards = streamrec.TFRecordDataset(f"{place.url}/m.json", storage_options=place.options)
    return [bytes(record) async for record in shards.aiterate()]


class FailedError(Exception):
    """What a user's block raises."""


@pytest.mark.parametrize("same", [False, True], ids=["other bytes", "the same bytes"])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("old", [False, True], ids=["new names", "old names"])
async def test_a_writer_that_fails_leaves_what_another_one_has_completed(
    place: Place, same: bool, before: int, old: bool
) -> None:
    if old:
        async with make_writer(place) as writer:
            for number in range(4):
                await writer.write(b"old %d" % number)
    good = [b"%d of the second" % number for number in range(3)]
    mine = good if same else [b"%d of the first" % number for number in range(3)]
    with pytest.raises((FailedError, ObjectChangedError)):
        async with make_writer(place) as first:
            for record in mine[:before]:
                await first.write(record)
            async with make_writer(place) as second:
                for record in good:
                    await second.write(record)
            for record in mine[before:]:
                await first.write(record)
            raise FailedError
    assert await records_at(place) == good
    left = await place.snapshot()
    assert not any(map(is_hidden, left))
    assert len(left) == 4 + old


@pytest.mark.parametrize("same", [False, True], ids=["other bytes", "the same bytes"])
async def test_a_writer_whose_shards_were_replaced_does_not_succeed(
    place: Place, same: bool
) -> None:
    good = [b"%d of the second" % number for number in range(2)]
    mine = [*good, b"3"] if same else [b"1", b"2", b"3"]
    first = make_writer(place)
    await first.__aenter__()
    for record in mine:
        await first.write(record)
    async with make_writer(place) as second:
        for record in good:
            await second.write(record)
    with pytest.raises(ObjectChangedError, match="another writer"):
        await first.close()
    assert await records_at(place) == good
    assert set(await place.snapshot()) == {"/t-0", "/t-1", "/m.json"}


@pytest.mark.parametrize("same", [False, True], ids=["other bytes", "the same bytes"])
@pytest.mark.parametrize("turn", range(4))
async def test_of_eight_writers_at_once_those_that_succeed_keep_their_shards(
    place: Place, same: bool, turn: int
) -> None:
    """On new names: the data set is whole, and that of a writer that said that all is well."""
    dice = random.Random(turn)

    async def write(number: int, count: int, delay: int) -> list[bytes] | None:
        records = [b"%d of %d" % (each, 0 if same else number) for each in range(count)]
        for _ in range(delay):
            await asyncio.sleep(0)
        try:
            async with make_writer(place) as writer:
                for record in records:
                    await writer.write(record)
        except ObjectChangedError:
            return None
        return records

    plans = [(number, dice.randint(2, 4), dice.randint(0, 99)) for number in range(8)]
    ended = await asyncio.gather(*(write(*plan) for plan in plans))
    if succeeded := [records for records in ended if records is not None]:
        assert await records_at(place) in succeeded
    else:
        assert not [name for name in await place.snapshot() if not is_hidden(name)]


async def test_objects_whose_owner_cannot_be_compared_are_left_and_named() -> None:
    """A filesystem of fsspec keeps no token of a writer."""
    filesystem = DirFileSystem(f"/{uuid4()}", MemoryFileSystem())
    async with Storages(filesystem=filesystem) as storages:
        with pytest.raises(FailedError) as caught:
            async with Replacement(storages, keeps=False) as objects:
                async with await objects.upload("a") as upload:
                    await upload.write(b"new")
                raise FailedError
    assert filesystem.cat("a") == b"new"
    assert caught.value.__notes__ == ["a was not removed: the store does not say whose it is"]
