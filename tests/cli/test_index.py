"""index and cat --records."""

from pathlib import Path

import streamrec
from tests.cli.conftest import CommandLine, example_records, offset_of_record, run_command


def test_index_check_stat_and_records(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    second = shard.with_name("train-1.tfrecord")
    second.write_bytes(streamrec.encode_records(example_records(300)[240:]))
    index = shard.with_name("train.index")
    done = run_command("index", shard.parent, index)
    assert (done.code, done.out) == (0, f"{index}: 300 records in 2 shards\n")
    found = cli("index", "--stat", "--json", index).json
    assert (found["records"], found["shards"]) == (300, 2)
    assert found["bytes"] == shard.stat().st_size + second.stat().st_size
    assert found["shortest"] <= found["mean"] <= found["longest"]
    assert found["digest"] in cli("index", "--stat", index).out
    assert cli("index", "--check", index).out == f"{index}: 2 shards, no shard has changed\n"
    rows = example_records(300)
    raw = run_command("cat", "--records", "241,-1,3,3", "--as", "raw", index).out
    assert raw.encode("utf-8", "surrogateescape") == rows[241] + rows[299] + rows[3] + rows[3]
    text = cli("cat", "--records", "3,241", index).out
    assert f"{shard}, record 3, byte {offset_of_record(shard, 3):,}: {len(rows[3]):,} bytes" in text
    assert f"{second}, record 1, byte {len(rows[240]) + 16:,}: {len(rows[241]):,} bytes" in text
    labels = cli("cat", "--json", "--features", "label", "--records", "7,242,0", index).out
    assert len(labels.splitlines()) == 3
    assert (
        labels
        == cli(
            "cat", "--json", "--features", "label", "--records", "7,242,0,1", "-n", "3", index
        ).out
    )


def test_an_index_is_a_source(shard: Path, cli: CommandLine) -> None:
    """As a manifest is: count believes it, verify compares, and a directory does not take it for a
    shard.
    """
    index = shard.with_name("x.index")
    cli("index", shard, index)
    assert cli("count", index).out == "240\n"
    assert cli("count", shard.parent).out == "240\n"
    assert cli("verify", index).code == 0
    shard.write_bytes(streamrec.encode_records(example_records(241)))
    assert cli("verify", index).code == 1
    done = cli("index", "--check", "--json", index)
    assert (done.code, done.json["ok"], done.json["changed"][0]["path"]) == (1, False, str(shard))
    cli.fails(3, f"streamrec index --update {index}", "cat", "--records", "0", index)
    assert cli("index", "--update", index).out == f"{index}: 241 records in 1 shard\n"
    assert cli("index", "--check", index).code == 0
    shard.unlink()
    assert "it does not exist" in cli("index", "--check", index).out


def test_parts_and_idx_files(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    cli("reshard", "--shards", "5", shard, f"{tmp_path}/new/")
    names = f"{tmp_path}/new/*.tfrecord"
    for part in ("0/3", "1/3", "2/3"):
        assert cli("index", "--part", part, names, f"{tmp_path}/x.index").code == 0
    assert cli("index", "--join", f"{tmp_path}/x.index.part-*", f"{tmp_path}/x.index").code == 0
    (tmp_path / "idx").mkdir()
    for path in (tmp_path / "new").glob("*.tfrecord"):
        frames = streamrec.Framer().feed(path.read_bytes())
        lines = [
            f"{frames.offset(number)} {len(record) + 16}\n" for number, record in enumerate(frames)
        ]
        (tmp_path / "idx" / f"{path.name}.idx").write_text("".join(lines))
    done = cli(
        "index", "--json", "--from-idx", f"{tmp_path}/idx/*.idx", names, f"{tmp_path}/y.index"
    )
    assert (
        done.json["digest"]
        == cli("index", "--stat", "--json", f"{tmp_path}/x.index").json["digest"]
    )


def test_a_wrong_command_line_of_index_says_what_to_type(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    index = f"{tmp_path}/x.index"
    cli("index", shard, index)
    for words, message in (
        ("index SHARD", f"streamrec index {shard} train.index"),
        ("index INDEX", "write the shards, then INDEX"),
        ("index --check SHARD INDEX", "write INDEX alone"),
        ("index --check --stat INDEX", "exclude each other"),
        ("index --part 3/3 SHARD INDEX", "is not a part"),
        ("cat --records 0 SHARD", "--records needs one index"),
        ("cat --records x INDEX", "is not a list of numbers"),
        ("cat --records 240 INDEX", "record 240 of 240 does not exist"),
        ("cat --records 0 --from-record 1 INDEX", "leave out --from-record"),
    ):
        cli.fails(2, message, *words.replace("SHARD", str(shard)).replace("INDEX", index).split())
    assert cli("index", shard, index).code == 4
    assert cli("index", "--overwrite", shard, index).code == 0
    (tmp_path / "gz.tfrecord").write_bytes(b"\x1f\x8b" + bytes(40))
    cli.fails(1, "streamrec reshard", "index", f"{tmp_path}/gz.tfrecord", f"{tmp_path}/gz.index")
