"""verify and reshard: on local files."""

import filecmp
import gzip
import resource
from pathlib import Path

import pytest

import streamrec
from streamrec import encode_records
from streamrec.cli.output import format_bytes
from streamrec.shards.options import LONG_BYTES
from tests.cli.conftest import Bucket, CommandLine, example_records, offset_of_record, run_command
from tests.runs import flip_bit


def records_of(*paths: Path) -> list[bytes]:
    return [record for path in paths for record in streamrec.TFRecordDataset(str(path))]


def test_verify_reports_the_places_and_repairs(
    shard: Path, damaged: Path, tmp_path: Path, cli: CommandLine
) -> None:
    assert cli("verify", shard).code == 0
    done = run_command("verify", "--json", "--repair", f"{tmp_path}/clean/", shard.parent)
    assert done.code == 1
    good, bad = done.json["shards"]
    assert (good["records"], good["damages"], good["bytes"]) == (240, 0, shard.stat().st_size)
    assert (bad["records"], bad["damages"], bad["bytes"]) == (238, 2, damaged.stat().st_size)
    losses = [(loss["byte"], loss["record"]) for loss in bad["losses"]]
    assert losses == [(offset_of_record(shard, 100), 100), (offset_of_record(shard, 239), 238)]
    wanted = [record for number, record in enumerate(example_records(239)) if number != 100]
    assert records_of(tmp_path / "clean" / damaged.name) == wanted
    assert (
        cli("verify", tmp_path / "clean").out
        == "2 shards read, 478 good records, nothing is damaged\n"
    )
    text = cli("verify", damaged).out
    assert f"byte {offset_of_record(shard, 100):,}, after 100 good records: " in text
    assert "1 shard read, 238 good records, 1 shard damaged" in text


def test_verify_with_a_manifest_says_what_and_where(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    cli("reshard", "--shards", "3", shard, f"{tmp_path}/new/")
    first, second, _ = sorted((tmp_path / "new").glob("*.tfrecord"))
    manifest = f"{tmp_path}/new/manifest.json"
    about = {"path": manifest, "ok": True, "shards": 3, "bytes": shard.stat().st_size}
    found = {"ok": True, "manifests": [about], "problems": [], "shards": []}
    assert cli("verify", "--json", manifest).json == found
    first.unlink()
    flip_bit(second, (fifth := offset_of_record(second, 5)) + 30)
    for source in ("new/manifest.json", "new"):
        done = cli("verify", "--json", tmp_path / source)
        assert done.code == 1
        assert {problem["kind"] for problem in done.json["problems"]} == {"missing", "crc32c"}
        assert [loss["byte"] for loss in done.json["shards"][0]["losses"]] == [fifth]


def test_a_manifest_of_compressed_shards_that_had_none(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    for number in range(2):
        (tmp_path / f"{number}.tfrecord.gz").write_bytes(gzip.compress(shard.read_bytes()))
    names, manifest = f"{tmp_path}/*.gz", f"{tmp_path}/manifest.json"
    assert cli("manifest", names, f"{tmp_path}/manifest").code == 2
    done = cli("manifest", "--json", names, manifest)
    assert [row["records"] for row in done.json["shards"]] == [240, 240]
    assert cli("count", manifest).out == "480\n"
    assert cli("verify", manifest).code == 0
    assert cli("manifest", names, manifest).code == 4
    (tmp_path / "0.tfrecord.gz").write_bytes(gzip.compress(shard.read_bytes()[:-1]))
    assert cli("verify", manifest).code == cli("manifest", "--overwrite", names, manifest).code == 1


def test_verify_with_an_index_checks_each_record(shard: Path, cli: CommandLine) -> None:
    index = shard.with_name("train.index")
    cli("index", shard, index)  # it has read no payload, and so knows no CRC32C of the shard
    assert cli("verify", index).code == 0
    flip_bit(shard, (fifth := offset_of_record(shard, 5)) + 30)
    done = cli("verify", "--json", index)
    assert (done.code, [loss["byte"] for loss in done.json["shards"][0]["losses"]]) == (1, [fifth])


def test_cp_copies_bytes_to_a_store_and_back(
    shard: Path, bucket: Bucket, tmp_path: Path, cli: CommandLine
) -> None:
    (shard.parent / "sub").mkdir()
    (shard.parent / "sub" / "b.gz").write_bytes(gzip.compress(shard.read_bytes()))
    cli("reshard", "--shards", "3", shard, f"{tmp_path}/new/")
    there = [option.replace("-o", "-O") for option in bucket.options]
    done = cli(
        "cp", "--json", "-j", "1", *there, shard.parent, f"{tmp_path}/new/manifest.json", bucket.url
    )
    assert [row["records"] for row in done.json["shards"]] == [240, 240, 80, 80, 80]
    assert (
        cli(
            "cp", *bucket.options, "-O", "auto_mkdir=true", f"{bucket.url}data/", f"{tmp_path}/back"
        ).code
        == 2
    )
    done = cli("cp", *bucket.options, "-O", "auto_mkdir=true", f"{bucket.url}", f"{tmp_path}/back/")
    assert done.out.startswith("5 shards, 720 records, ")
    for path in (shard, shard.parent / "sub" / "b.gz", *(tmp_path / "new").glob("shard-*")):
        assert (tmp_path / "back" / path.relative_to(tmp_path)).read_bytes() == path.read_bytes()
    assert cli("cp", *there, shard, f"{bucket.url}data/{shard.name}").code == 4


@pytest.mark.parametrize(
    "wrong", ["damage", "another size", "another number of records", "no TFRecord"]
)
def test_cp_of_a_wrong_shard_leaves_nothing(
    shard: Path, damaged: Path, tmp_path: Path, cli: CommandLine, wrong: str
) -> None:
    cli("reshard", "--shards", "2", shard, f"{tmp_path}/new/")
    manifest = tmp_path / "new" / "manifest.json"
    source = {"damage": damaged, "no TFRecord": manifest.with_name("other")}.get(wrong, manifest)
    manifest.with_name("other").write_bytes(b"other" * 100)
    if wrong == "another size":
        (tmp_path / "new" / "shard-00001.tfrecord").write_bytes(shard.read_bytes())
    elif wrong == "another number of records":
        manifest.write_text(manifest.read_text().replace('"records": 120', '"records": 119'))
    (tmp_path / "target").mkdir()
    assert cli("cp", shard, source, tmp_path / "target").code == 1
    assert [path for path in (tmp_path / "target").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("command", "writes"),
    [
        (["cp", "SHARD", "new/"], ["new/train-0.tfrecord"]),
        (
            ["reshard", "--shards", "2", "SHARD", "new/"],
            ["new/shard-{shard:05d}.tfrecord", "new/manifest.json"],
        ),
        (["convert", "SHARD", "new.parquet"], ["new.parquet"]),
        (
            ["convert", "--shard-records", "90", "SHARD", "new-{shard}.parquet"],
            ["new-{shard}.parquet"],
        ),
        (["verify", "--repair", "new", "SHARD"], ["new"]),
        (["manifest", "SHARD", "m.json"], ["m.json"]),
        (["index", "SHARD", "m.index"], ["m.index"]),
    ],
    ids=lambda value: value[0],
)
def test_a_dry_run_says_what_would_be_written_and_writes_nothing(
    shard: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    command: list[str],
    writes: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(shard) if word == "SHARD" else word for word in command]
    before = sorted(tmp_path.rglob("*"))
    done = cli(*words, "--dry-run")
    first, *others = done.out.splitlines()
    assert (done.code, first) == (0, f"1 file, {format_bytes(shard.stat().st_size)}, would be read")
    assert others == [f"would write {name}" for name in writes]
    assert cli(*words, "--dry-run", "--json").json["writes"] == writes
    assert sorted(tmp_path.rglob("*")) == before
    assert cli(*words).code == 0
    assert cli(*words, "--dry-run").code == 4  # the same checks


def test_reshard_splits_merges_and_compresses(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    target = f"{tmp_path}/zst/train-{{shard:02d}}-of-{{shards:02d}}.zst"
    assert run_command("reshard", "--shards", "7", shard, target).code == 0
    parts = sorted((tmp_path / "zst").glob("train-*-of-07.zst"))
    assert [len(records_of(part)) for part in parts] == [35, 35, 34, 34, 34, 34, 34]
    assert records_of(*parts) == example_records(240)
    done = cli("reshard", "--json", "--shard-bytes", "10kB", tmp_path / "zst", f"{tmp_path}/plain/")
    assert all(row["bytes"] <= 10_000 for row in done.json["shards"])
    assert cli("reshard", f"{tmp_path}/plain/manifest.json", tmp_path / "whole.gz").code == 0
    assert records_of(tmp_path / "whole.gz") == example_records(240)
    assert streamrec.verify_sync(f"{tmp_path}/whole.gz.manifest.json").ok


def test_no_record_is_lost_to_a_manifest_that_is_wrong(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    cli("reshard", shard, f"{tmp_path}/old/")
    manifest = tmp_path / "old" / "manifest.json"
    right = manifest.read_text()
    for wrong in (239, 241):
        manifest.write_text(right.replace('"records": 240', f'"records": {wrong}'))
        said = f"manifest.json says that this shard has {wrong} records, and it has 240"
        cli.fails(1, said, "reshard", "--shards", "3", manifest, f"{tmp_path}/new/")
        assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    "name", ["../victim", "..%2fvictim", "/tmp/../{folder}/victim", "file://{folder}/victim"]
)
def test_repair_of_a_manifest_that_leads_elsewhere(
    shard: Path, tmp_path: Path, cli: CommandLine, name: str
) -> None:
    cli("reshard", "--shards", "2", shard, f"{tmp_path}/d/")
    (tmp_path / "clean").mkdir()
    data, manifest = shard.read_bytes(), tmp_path / "d" / "manifest.json"
    (tmp_path / "victim").write_bytes(data)
    manifest.write_text(
        manifest.read_text().replace("shard-00001.tfrecord", name.format(folder=tmp_path))
    )
    cli.fails(
        1, "manifest.json: ", "verify", "--overwrite", "--repair", f"{tmp_path}/clean/", manifest
    )
    assert (tmp_path / "victim").read_bytes() == data
    assert list((tmp_path / "clean").iterdir()) == []


def test_repair_never_writes_outside_its_directory(
    damaged: Path, tmp_path: Path, cli: CommandLine
) -> None:
    """Through a link below it, to a directory or to a file."""
    data = damaged.read_bytes()
    for folder in ("old/sub", "clean", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("old/x", "old/sub/x"):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "clean" / "sub").symlink_to(tmp_path / "outside")
    repair = ("verify", "--overwrite", "--repair", f"{tmp_path}/clean/")
    cli.fails(2, "outside", *repair, f"{tmp_path}/old/")
    (tmp_path / "clean" / "x").symlink_to(tmp_path / "outside" / "x")
    assert cli(*repair, f"{tmp_path}/old/x").code == 2
    assert list((tmp_path / "outside").iterdir()) == []
    (tmp_path / "clean" / "x").unlink()
    assert cli(*repair, f"{tmp_path}/old/x").code == 1
    assert len(records_of(tmp_path / "clean" / "x")) == 238


def test_a_seed_shuffles_alike(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    orders = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        cli("reshard", "--shuffle", "--seed", seed, "--shards", "2", shard, f"{tmp_path}/{name}/")
        orders.append(records_of(*sorted((tmp_path / name).glob("*.tfrecord"))))
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != example_records(240)
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(example_records(240))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_records_too_long_to_hold_are_counted_verified_and_repaired(
    ending: str, tmp_path: Path, cli: CommandLine
) -> None:
    """A damaged shard keeps every other record, however long it is."""
    long = bytes(LONG_BYTES + 1)
    data = bytearray(encode_records([b"first", b"damaged", long, b"last"]))
    data[21 + 13] ^= 1
    path = tmp_path / f"long.tfrecord{ending}"
    path.write_bytes(gzip.compress(data, 1) if ending else data)
    assert cli("count", path).out == "4\n"
    done = cli("verify", "--json", "--repair", f"{tmp_path}/clean/", path)
    (shard,) = done.json["shards"]
    assert (shard["records"], [loss["byte"] for loss in shard["losses"]]) == (3, [21])
    assert records_of(tmp_path / "clean" / path.name) == [b"first", long, b"last"]
    assert (
        cli("verify", tmp_path / "clean").out
        == "1 shard read, 3 good records, nothing is damaged\n"
    )


@pytest.mark.thorough
def test_a_record_above_a_gigabyte_needs_no_option_and_little_memory(tmp_path: Path) -> None:
    """What our writer writes, every command reads; those that only count and check hold no
    record.
    """
    path, index = tmp_path / "big.tfrecord", tmp_path / "big.index"
    with streamrec.TFRecordWriter(str(path)) as writer:
        writer.write(b"small")
        writer.write(bytes(1100 << 20))

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (900 << 20, 900 << 20))

    for command in (
        "count big.tfrecord",
        "index big.tfrecord big.index",
        "verify --repair clean/ big.index",
    ):
        done = run_command(*command.split(), cwd=tmp_path, preexec_fn=limit_memory)
        assert done.code == 0, done
    assert filecmp.cmp(tmp_path / "clean" / path.name, path, shallow=False)
    assert run_command("info", "--count", path).code == 0
    assert run_command("head", path).code == 0
    assert run_command("cat", "--records", "1", index).code == 0
    assert run_command("reshard", "--shard-records", "1", path, f"{tmp_path}/new/").code == 0
    assert run_command("verify", f"{tmp_path}/new/manifest.json").code == 0


def test_a_manifest_elsewhere(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    cli("reshard", shard, f"{tmp_path}/new/")
    other = tmp_path / "other" / "m.json"
    other.parent.mkdir()
    streamrec.write_manifest_sync(f"{tmp_path}/new/*.tfrecord", str(other))
    assert "--shard-root" in cli("count", other).err
    for command in ("count", "verify", "head", "info"):
        assert cli(command, "--shard-root", f"{tmp_path}/new", other).code == 0
