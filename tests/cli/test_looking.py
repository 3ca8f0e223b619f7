"""ls, count, info, head, cat, stat: on local files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from streamrec.cli import reading
from tests.cli.conftest import PNG, Done, examples, place, run

Call = Callable[..., Done]


def test_ls_lists_what_names_stand_for(shard: Path, damaged: Path, called: Call) -> None:
    size, cut = shard.stat().st_size, damaged.stat().st_size
    folder = shard.parent
    wanted = [{"path": str(shard), "bytes": size}, {"path": str(damaged), "bytes": cut}]
    for names in ([shard, damaged], [f"{folder}/*.tfrecord"], [f"{folder}/train-{{0..1}}.tfrecord"], [f"{folder}/"]):
        assert called("ls", "--json", *names).json == wanted
    done = run("ls", folder)
    assert done.out == f"{size:,}  {shard}\n{cut:,}  {damaged}\n"
    assert "2 files" in done.err


def test_count_by_lengths_and_by_a_manifest(shard: Path, tmp_path: Path, called: Call) -> None:
    assert called("count", shard, shard).out == "480\n"
    assert called("reshard", "--shards", "3", "--compression", "gzip", shard, f"{tmp_path}/new/").code == 0
    counts = called("count", "--json", f"{tmp_path}/new/").json
    assert [row["records"] for row in counts["shards"]] == [80, 80, 80]
    for file in (tmp_path / "new").glob("*.gz"):
        file.unlink()
    assert called("count", f"{tmp_path}/new/manifest.json").out == "240\n"


def test_a_manifest_in_a_directory_is_believed_where_sizes_are_right(shard: Path, tmp_path: Path, called: Call) -> None:
    folder = tmp_path / "new"
    called("reshard", "--shards", "2", shard, f"{folder}/")
    first, second = sorted(folder.glob("*.tfrecord"))
    first.write_bytes(bytes(first.stat().st_size))  # no record is left in it
    assert called("count", folder).out == "240\n"
    second.write_bytes(b"")
    assert called("count", folder).out == "120\n"
    (folder / "manifest.json").write_text('{"name": "of something else"}')
    assert called("count", folder).code == 1


def test_info_tells_what_a_data_set_is(shard: Path, called: Call) -> None:
    found = called("info", "--json", shard).json
    assert (found["shards"], found["records"], found["bytes"]) == (1, 240, shard.stat().st_size)
    assert found["compression"] == [""]
    features = {item["name"]: item for item in found["features"]}
    assert features["score"]["present"] == pytest.approx(2 / 3, abs=0.01)
    assert features["words"]["parse"] == "RaggedFeature(bytes)"
    assert features["label"] == {
        "name": "label",
        "kind": "int64",
        "values": [1, 1],
        "steps": None,
        "present": 1.0,
        "parse": "FixedLenFeature([], int64)",
    }
    assert found["sample"]["label"] == [0]
    text = run("info", shard).out
    assert "records      240" in text
    assert f"PNG, {len(PNG)} bytes" in text


def test_records_as_text_json_and_bytes(shard: Path, called: Call) -> None:
    rows = [json.loads(line) for line in called("cat", "--json", "--features", "label,words", shard).out.splitlines()]
    assert rows == [{"label": [number % 4], "words": ["a"] * (number % 3)} for number in range(240)]
    text = called("head", "-n", "1", "--from-record", "100", shard).out
    assert text.startswith(f"{shard}, record 100, byte {place(shard, 100):,}: {len(examples(101)[100])} bytes\n")
    assert "\n  label: 0\n  score: 12.5\n  words: 'a'\n" in text
    found = called("head", "-n", "1", "--from-byte", str(place(shard, 7) - 1), shard).out
    assert f"byte {place(shard, 7):,}: " in found
    raw = run("cat", "--as", "raw", "-n", "2", "--features", "image", shard).out
    assert raw.encode("utf-8", "surrogateescape") == PNG * 2


def test_stat_shows_figures_and_writes_a_page(shard: Path, tmp_path: Path, called: Call) -> None:
    page = tmp_path / "page.html"
    found = called("stat", "--json", "--html", page, shard).json
    features = {item["name"]: item for item in found["features"]}
    label, score, words = features["label"], features["score"], features["words"]
    assert found["records"] == 240
    assert label["frequent"] == [[0, 60], [1, 60], [2, 60], [3, 60]]
    assert label["histogram"] == [[0, 1, 60], [1, 2, 60], [2, 3, 60], [3, 4, 60]]
    assert (score["missing"], score["numbers"]["min"], score["numbers"]["max"]) == (80, 0.125, 239 / 8)
    assert words["values_per_record"]["max"] == 2
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 12
    assert "<svg" in text
    assert "http" not in text  # nothing is fetched from anywhere
    shown = run("stat", "--features", "label", shard).out
    assert "label: 0 25.0%" in shown
    assert "████" in shown
    assert "score" not in shown


def test_no_text_is_made_of_what_a_command_finds() -> None:
    """A sample is long, and its text four times as long: 190 MB of the 289 MB that `info` took."""

    class Sample:
        def __repr__(self) -> str:
            pytest.fail("the text of a sample was made")

    async def take() -> Sample:
        return Sample()

    assert isinstance(reading.run(take()), Sample)
