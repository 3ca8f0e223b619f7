"""A writer says what it replaces of an earlier run, and what stays among its own shards."""

import asyncio
import logging
import stat
from pathlib import Path

import pytest

import streamrec
from streamrec.errors import PermissionDeniedError
from streamrec.shards.leftovers import Described, Leftovers, warn_of_staging
from streamrec.storage import Storages
from tests.servers.real import Store

PATTERN = "events-{shard:05d}.tfrecord"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "streamrec")
    return caplog


def messages_of_close(warnings: pytest.LogCaptureFixture) -> list[str]:
    """What a writer says when it closes, and not before."""
    return [said for said in warnings.messages if "is there, from an earlier run" not in said]


async def run_service(folder: object, shards: int, **options: object) -> None:
    """One run of a service: each record is a shard."""
    pattern = f"{folder}/{options.pop('pattern', PATTERN)}"
    writer = streamrec.ShardWriter(pattern, max_shard_records=1, **options)  # type: ignore[arg-type]
    async with writer:
        for number in range(shards):
            await writer.write(b"%d" % number)


def test_a_service_that_starts_again_is_told_what_it_replaces(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    asyncio.run(run_service(tmp_path, 3))
    assert warnings.messages == []
    asyncio.run(run_service(tmp_path, 1))
    [said] = messages_of_close(warnings)
    assert "1 shard of an earlier run was replaced and 2 shards of an earlier run stay" in said
    assert f"{tmp_path}/events-00001.tfrecord" in said
    assert "start time" in said


def test_a_second_run_with_fewer_shards_is_told_which_stay(
    s3_store: Store, warnings: pytest.LogCaptureFixture
) -> None:
    folder = f"{s3_store.url}/fewer"
    for shards in (6, 2):
        asyncio.run(run_service(folder, shards, storage_options=s3_store.options))
    [said] = messages_of_close(warnings)
    assert "2 shards of an earlier run were replaced and 4 shards of an earlier run stay" in said
    assert "among the 2 new" in said


def test_a_run_that_replaces_all_is_told_so(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        asyncio.run(run_service(tmp_path, 2))
    [said] = messages_of_close(warnings)
    assert "2 shards of an earlier run were replaced and 0 shards" in said


def test_later_shards_of_a_run_whose_first_ones_are_gone_are_found(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    asyncio.run(run_service(tmp_path, 4))
    for number in range(2):
        (tmp_path / f"events-{number:05d}.tfrecord").unlink()
    asyncio.run(run_service(tmp_path, 2, overwrite=False))
    [said] = messages_of_close(warnings)
    assert "tfrecord: 2 shards of an earlier run stay among the 2 new" in said


def test_shards_that_were_written_before_the_first_replaced_one_are_new(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    asyncio.run(run_service(tmp_path, 2))
    (tmp_path / "events-00000.tfrecord").unlink()
    asyncio.run(run_service(tmp_path, 3))
    [said] = messages_of_close(warnings)
    assert "1 shard of an earlier run was replaced and 0 shards" in said


def test_names_with_a_start_time_replace_nothing(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    for start in ("20250101T000000Z", "20250102T000000Z"):
        asyncio.run(run_service(tmp_path, 3, pattern=f"events-{start}-{{shard:05d}}.tfrecord"))
    assert warnings.messages == []
    assert len(list(streamrec.TFRecordDataset(f"{tmp_path}/events-*.tfrecord"))) == 6


def test_a_pipeline_that_writes_again_is_told_too(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    data = streamrec.Dataset.from_tensor_slices([b"a", b"b", b"c"])
    for shards in (3, 2):
        data.write_sync(f"{tmp_path}/{PATTERN}", num_shards=shards)
    [said] = messages_of_close(warnings)
    assert "2 shards of an earlier run were replaced and 1 shard of an earlier run stays" in said


def test_a_writer_that_fails_says_nothing_of_what_it_has_not_replaced(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    asyncio.run(run_service(tmp_path, 2))

    async def fail() -> None:
        async with streamrec.ShardWriter(f"{tmp_path}/{PATTERN}") as writer:
            await writer.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(fail())
    assert messages_of_close(warnings) == []


async def test_a_service_is_warned_when_it_begins_to_replace_shards_of_its_earlier_run(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    """At once, and once: it may run for weeks before it closes its writer."""
    await run_service(tmp_path, 3)
    (tmp_path / "events-00000.tfrecord").unlink()
    writer = streamrec.ShardWriter(f"{tmp_path}/{PATTERN}", max_shard_records=1)
    async with writer:
        await writer.write(b"a free name")
        assert warnings.messages == []
        for _ in range(3):
            await writer.write(b"new")
            [said] = warnings.messages
        assert said.startswith(f"{tmp_path}/events-00001.tfrecord is there, from an earlier run")
        assert "stay hidden until the writer closes" in said
        assert "start time" in said


def test_a_directory_that_cannot_be_listed_does_not_stop_a_writer(
    tmp_path: Path, warnings: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(run_service(tmp_path, 2))

    async def refuses(*_: object, **__: object) -> None:
        raise PermissionDeniedError("you may not list", str(tmp_path))
        yield

    monkeypatch.setattr("streamrec.shards.leftovers.list_numbered", refuses)
    asyncio.run(run_service(tmp_path, 1))
    [said] = messages_of_close(warnings)
    assert "1 shard of an earlier run was replaced and whether others stay is unknown" in said
    assert stat.S_ISREG((tmp_path / "events-00000.tfrecord").stat().st_mode)


@pytest.mark.parametrize(
    ("pattern", "path", "warned"),
    [
        ("d/x-{shard:03d}", "d/x-007", True),
        ("d/x-{shard:03d}", "d/y-007", False),
        ("d/x.tfrecord", "d/x.tfrecord", False),  # one shard: there are no later ones to hide
    ],
)
def test_a_shard_that_is_there_already_is_warned_of_if_others_follow(
    warnings: pytest.LogCaptureFixture, pattern: str, path: str, warned: bool
) -> None:
    warn_of_staging(pattern, path)
    assert ["stay hidden until the writer closes" in text for text in warnings.messages] == (
        [True] if warned else []
    )


def test_the_store_is_listed_at_most_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    real = Storages.at

    async def at(self: Storages, path: str):  # type: ignore[no-untyped-def]
        storage = await real(self, path)
        if not hasattr(storage, "counted"):
            inner = storage.list
            storage.counted = True  # type: ignore[attr-defined]

            def list_counted(*args, **how):  # type: ignore[no-untyped-def]
                if not how.get("hidden"):  # that of what killed runs left is another one
                    listed.append(args[0])
                return inner(*args, **how)

            storage.list = list_counted  # type: ignore[method-assign]
        return storage

    monkeypatch.setattr(Storages, "at", at)
    asyncio.run(run_service(tmp_path, 3))
    assert listed == [], "nothing is replaced"
    asyncio.run(run_service(tmp_path, 2))
    assert len(listed) == 1


def test_messages_of_one_and_of_several() -> None:
    one = str(Leftovers("d/x-{shard}", 1, 0, ["d/x-1"]))
    assert "d/x-{shard}: 1 shard of an earlier run stays among the 1 new, such as d/x-1" in one
    assert "described 1 other shard that stays" in str(Described("d/m.json", ["d/a"]))


@pytest.mark.parametrize("kind", ["manifest", "index"])
def test_a_manifest_of_other_shards_is_not_replaced_without_a_word(
    kind: str, tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    table = f"{tmp_path}/{'manifest.json' if kind == 'manifest' else 'x.index'}"
    options = {kind: table}
    asyncio.run(run_service(tmp_path, 2, pattern="old-{shard}", **options))
    asyncio.run(run_service(tmp_path, 1, pattern="new-{shard}", **options))
    [said] = messages_of_close(warnings)
    assert f"{table}: the replaced one described 2 other shards that stay" in said
    assert f"{tmp_path}/old-0" in said


def test_a_manifest_of_shards_that_are_gone_or_replaced_is_just_replaced(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    manifest = f"{tmp_path}/manifest.json"
    asyncio.run(run_service(tmp_path, 2, pattern="old-{shard}", manifest=manifest))
    for number in range(2):
        (tmp_path / f"old-{number}").unlink()
    asyncio.run(run_service(tmp_path, 1, pattern="new-{shard}", manifest=manifest))
    (tmp_path / "manifest.json").write_text('{"name": "a file of another program"}')
    (tmp_path / "new-0").unlink()
    asyncio.run(run_service(tmp_path, 1, pattern="new-{shard}", manifest=manifest))
    assert warnings.messages == []


@pytest.mark.parametrize("kind", ["manifest", "index", "join"])
def test_functions_that_write_a_manifest_or_an_index_say_it_too(
    kind: str, tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    for name in ("old", "new"):
        with streamrec.TFRecordWriter(f"{tmp_path}/{name}") as writer:
            writer.write(b"x")
    target = f"{tmp_path}/{'m.json' if kind == 'manifest' else 'm.index'}"
    for name in ("old", "new"):
        if kind == "manifest":
            streamrec.write_manifest_sync(f"{tmp_path}/{name}", target)
        elif kind == "index":
            streamrec.write_index_sync(f"{tmp_path}/{name}", target)
        else:
            part = f"{tmp_path}/{name}.index"
            streamrec.write_index_sync(f"{tmp_path}/{name}", part, part=(0, 1))
            streamrec.shards.join_index_sync(f"{part}.part-*", target)
    [said] = messages_of_close(warnings)
    assert f"described 1 other shard that stays, such as {tmp_path}/old" in said


def test_a_foreign_manifest_leads_this_client_nowhere(
    tmp_path: Path, warnings: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "inside").mkdir()
    with streamrec.TFRecordWriter(f"{tmp_path}/outside") as writer:
        writer.write(b"x")
    streamrec.write_manifest_sync(f"{tmp_path}/outside", f"{tmp_path}/inside/m.json")
    asyncio.run(run_service(tmp_path / "inside", 1, manifest=f"{tmp_path}/inside/m.json"))
    assert warnings.messages == []
