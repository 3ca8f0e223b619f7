"""ls, count, info, head, cat, stat: on local files."""

import base64
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec.notebook
from streamrec import encode_example, encode_records, encode_sequence_example
from streamrec.cli import reading
from streamrec.example import Example, ExampleListWithContext
from tests.cli.conftest import (
    PNG,
    CommandLine,
    example_records,
    example_rows,
    offset_of_record,
    run_command,
)
from tests.cli.test_converting import examples_of


def test_ls_lists_what_names_stand_for(shard: Path, damaged: Path, cli: CommandLine) -> None:
    size, cut = shard.stat().st_size, damaged.stat().st_size
    folder = shard.parent
    wanted = [{"path": str(shard), "bytes": size}, {"path": str(damaged), "bytes": cut}]
    for names in (
        [shard, damaged],
        [f"{folder}/*.tfrecord"],
        [f"{folder}/train-{{0..1}}.tfrecord"],
        [f"{folder}/"],
    ):
        assert cli("ls", "--json", *names).json == wanted
    done = run_command("ls", folder)
    assert done.out == f"{size:,}  {shard}\n{cut:,}  {damaged}\n"
    assert "2 files" in done.err


def test_count_by_lengths_and_by_a_manifest(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    assert cli("count", shard, shard).out == "480\n"
    assert (
        cli("reshard", "--shards", "3", "--compression", "gzip", shard, f"{tmp_path}/new/").code
        == 0
    )
    counts = cli("count", "--json", f"{tmp_path}/new/").json
    assert [row["records"] for row in counts["shards"]] == [80, 80, 80]
    manifest = f"{tmp_path}/new/manifest.json"
    assert cli("count", manifest).out == "240\n"
    first, second, _ = sorted((tmp_path / "new").glob("*.gz"))
    data = first.read_bytes()
    for change in (
        lambda: first.write_bytes(data[:-9]),
        lambda: first.write_bytes(b""),
        second.unlink,
    ):
        change()
        for command in ("count", "info", "cat", "stat"):
            code, changed = (1, first) if second.exists() else (3, second)
            done = cli.fails(code, changed.name, command, manifest)
            assert command == "cat" or not done.out
        first.write_bytes(data)


def test_a_manifest_in_a_directory_is_believed_where_sizes_are_right(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    folder = tmp_path / "new"
    cli("reshard", "--shards", "2", shard, f"{folder}/")
    first, second = sorted(folder.glob("*.tfrecord"))
    first.write_bytes(bytes(first.stat().st_size))  # no record is left in it
    assert cli("count", folder).out == "240\n"
    second.write_bytes(b"")
    for change in (lambda: None, second.unlink):
        change()
        done = cli("count", folder)
        assert done.out == "120\n"
        note = f"1 shard differs from {folder}/manifest.json, the first of them {second}: "
        assert note in done.err
    (folder / "manifest.json").write_text('{"name": "of something else"}')
    assert cli("count", folder).code == 1


def test_a_folder_of_tensorflow_datasets_is_its_shards(tmp_path: Path, cli: CommandLine) -> None:
    for name in (
        "mnist-test.tfrecord-00000-of-00001",
        "mnist-train.tfrecord-00000-of-00001",
        "old/part-r-00000.gz",
    ):
        path = tmp_path / "mnist" / "3.0.1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_records([b"x"]))
    for name in ("dataset_info.json", "features.json", "label.labels.txt", "_SUCCESS"):
        (tmp_path / "mnist" / "3.0.1" / name).write_text("{}")
    left_out = "left out 3 objects whose names are not those of shards: 3.0.1/dataset_info.json"
    for command in ("count", "verify", "head"):
        cli.fails(0, left_out, command, tmp_path / "mnist")
    assert cli("count", tmp_path / "mnist").out == "3\n"
    (tmp_path / "plain").mkdir()
    for name in ("a.txt", "b.csv"):
        (tmp_path / "plain" / name).write_bytes(encode_records([b"x"]))
    done = cli("count", tmp_path / "plain")
    assert (done.out, done.err) == ("2\n", ""), "all of them may be shards"


def test_info_says_what_a_data_set_is(shard: Path, cli: CommandLine) -> None:
    found = cli("info", "--json", shard).json
    assert (found["shards"], found["records"], found["bytes"]) == (1, 240, shard.stat().st_size)
    assert found["compression"] == ["none"]
    features = {item["name"]: item for item in found["features"]}
    assert (found["looked_at"], features["score"]["missing"], features["words"]["missing"]) == (
        125,
        42,
        42,
    )
    assert features["words"]["parse"] == "RaggedFeature('string')"
    assert features["label"] == {
        "name": "label",
        "kind": "int64",
        "values": [1, 1],
        "steps": None,
        "missing": 0,
        "parse": "FixedLenFeature([], 'int64')",
    }
    assert found["sample"]["label"] == [0]
    text = run_command("info", shard).out
    assert "records      240" in text
    assert f"PNG, {len(PNG)} bytes" in text


@pytest.mark.parametrize("name", ["features", "tutorial", "sequence", "demo"])
def test_info_proposes_what_parses_the_very_file(
    name: str, tmp_path: Path, cli: CommandLine
) -> None:
    source = Path(__file__).parents[1] / "golden" / f"{name}.tfrecord"
    if name == "demo":
        assert cli("demo", tmp_path).code == 0
        source = tmp_path / "train-*"
    names: dict[str, Any] = {}
    exec(cli("info", "--python", source).out, names)
    records = list(streamrec.TFRecordDataset(str(source)))
    if name == "sequence":
        streamrec.parse_sequence_example(
            records, names["context_features"], names["sequence_features"]
        )
    else:
        assert (
            streamrec.parse_example(records, names["features"]).keys() == names["features"].keys()
        )


def test_records_as_text_json_and_bytes(shard: Path, cli: CommandLine) -> None:
    lines = cli("cat", "--json", "--features", "label,words", shard).out.splitlines()
    assert list(map(json.loads, lines)) == [
        {"label": [n % 4], "words": ["a"] * (n % 3)} for n in range(240)
    ]
    text = cli("head", "-n", "1", "--from-record", "100", shard).out
    offset = offset_of_record(shard, 100)
    nbytes = len(example_records(101)[100])
    assert text.startswith(f"{shard}, record 100, byte {offset:,}: {nbytes} bytes\n")
    assert "\n  label: 0\n  score: 12.5\n  words: 'a'\n" in text
    found = cli("head", "-n", "1", "--from-byte", str(offset_of_record(shard, 7) - 1), shard).out
    assert f"byte {offset_of_record(shard, 7):,}: " in found
    raw = run_command("cat", "--as", "raw", "-n", "2", "--features", "image", shard).out
    assert raw.encode("utf-8", "surrogateescape") == PNG * 2


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("label == 3", lambda row: row["label"] == 3),
        ("not score or score >= 29.5", lambda row: "score" not in row or row["score"] >= 29.5),
        (
            "label<2 and not (words == 'a' or `score` > 1e39)",
            lambda row: row["label"] < 2 and not row["words"],
        ),
        (
            'score == 0.1e0 or label == 2 and words != "b"',
            lambda row: row["label"] == 2 and row["words"],
        ),
    ],
)
def test_records_for_which_an_expression_is_true(
    shard: Path,
    tmp_path: Path,
    cli: CommandLine,
    where: str,
    wanted: Callable[[dict[str, Any]], bool],
) -> None:
    numbers = [number for number, row in enumerate(example_rows(240)) if wanted(row)]
    found = [
        line
        for line in cli("cat", "--where", where, shard).out.splitlines()
        if not line.startswith(" ")
    ]
    assert [int(line.partition(", record ")[2].partition(",")[0]) for line in found] == numbers
    assert cli("head", "-n", "2", "--where", where, shard).out.count(", record ") == 2
    data = [example_records(240)[number] for number in numbers]
    cli("convert", shard, tmp_path / "all.jsonl")
    for source, target in ((shard, tmp_path / "a"), (tmp_path / "all.jsonl", tmp_path / "b")):
        assert cli("convert", "--where", where, source, target).code == 0
        assert examples_of(target) == [Example.FromString(record) for record in data]
    assert cli("reshard", "--shards", "3", "--where", where, shard, f"{tmp_path}/new/").code == 0
    assert cli("count", f"{tmp_path}/new/*.tfrecord").out == f"{len(data)}\n"


@pytest.mark.parametrize(
    ("where", "code", "said"),
    [
        ("lable == 3", 2, "no record has lable: they have image, label, score, words"),
        ("label == 'x'", 1, "record 0, feature 'label': --where compares bytes with a number"),
        *(
            (text, 2, "Invalid value for '--where'")
            for text in ("label = 3", "__import__('os')", "(label", "label ==", "")
        ),
    ],
)
def test_an_expression_that_is_wrong(
    shard: Path, cli: CommandLine, where: str, code: int, said: str
) -> None:
    assert cli.fails(code, said, "cat", "--where", where, shard).out == ""


def test_stat_shows_figures_and_writes_a_page(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    page = tmp_path / "page.html"
    found = cli("stat", "--json", "--html", page, shard).json
    features = {item["name"]: item for item in found["features"]}
    label = features["label"]
    score = features["score"]
    words = features["words"]
    assert found["records"] == 240
    assert label["frequent"] == [[0, 60], [1, 60], [2, 60], [3, 60]]
    assert label["histogram"] == [[0, 1, 60], [1, 2, 60], [2, 3, 60], [3, 4, 60]]
    assert (score["missing"], score["numbers"]["min"], score["numbers"]["max"]) == (
        80,
        0.125,
        239 / 8,
    )
    assert (words["missing"], words["values_per_record"]["max"]) == (80, 2), "as info has it"
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 12
    assert text.count('class="plot"') == 1 + len(features)
    assert 'title="0: 60"' in text
    assert "0 to 3; highest bar: 60" in text
    assert "http" not in text  # nothing is fetched from anywhere
    shown = run_command("stat", "--features", "label", shard).out
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


def write(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(encode_records(records))
    return path


def test_a_context_and_a_feature_list_of_one_name_are_both_shown(
    tmp_path: Path, cli: CommandLine
) -> None:
    """As in a file of tensorflow/transform."""
    record = encode_sequence_example(
        {"x": [7], "id": 1}, {"x": [[1, 2], [3]], "tags": [[b"a"], []]}
    )
    shard = write(tmp_path / "a.tfrecord", [record])
    wanted = {
        "context": {"id": [1], "x": [7]},
        "feature_lists": {"tags": [["a"], []], "x": [[1, 2], [3]]},
    }
    for command in ("head", "cat"):
        assert cli(command, "--json", shard).json == wanted
        assert cli(command, "--json", "--features", "x,tags", shard).json == {
            "context": {"x": [7]},
            "feature_lists": {"x": [[1, 2], [3]], "tags": [["a"], []]},
        }
        text = cli(command, shard).out
        assert "  context x: 7\n" in text
        assert "  feature_lists x: [[1, 2], 3]\n" in text
    assert cli("info", "--json", shard).json["sample"] == wanted
    features = cli("info", "--json", shard).json["features"]
    shown = [(item["name"], item["steps"], item["missing"]) for item in features]
    assert shown == [("id", None, 0), ("x", None, 0), ("tags", [2, 2], 0), ("x", [2, 2], 0)]
    assert cli("cat", "--as", "raw", "--features", "x", shard).out == "7123"
    stats = cli("stat", "--json", shard).json["features"]
    found = [
        (item["name"], item["feature_list"], item["values_per_record"]["mean"]) for item in stats
    ]
    assert found == [("id", False, 1.0), ("x", False, 1.0), ("tags", True, 1.0), ("x", True, 3.0)]


@pytest.mark.parametrize("score", [0.0, 0.1])  # as text, and as none
def test_a_list_of_examples_is_shown_as_what_it_is(
    score: float, tmp_path: Path, cli: CommandLine
) -> None:
    """TF-Ranking's message has the field numbers of a SequenceExample, which finds whole features
    as names in it.
    """
    examples = [
        Example.FromString(encode_example(row))
        for row in ({"doc": "a", "score": score}, {"doc": "b"})
    ]
    for context, query in (
        (Example.FromString(encode_example({"q": "cats"})), {"q": ["cats"]}),
        (None, {}),
    ):
        record = ExampleListWithContext(examples=examples, context=context).SerializeToString()
        shard = write(tmp_path / "a.tfrecord", [record])
        shown = cli("info", "--json", shard).json
        columns = {"doc": [["a"], ["b"]], "score": [[pytest.approx(score)], []]}
        assert (shown["kind"], shown["sample"]) == (
            "example_list",
            {"context": query, "examples": columns},
        )
        assert "the records are ExampleListWithContext" in cli("info", "--python", shard).err
        assert (
            "an ExampleListWithContext: only Examples"
            in cli("convert", shard, tmp_path / "a.jsonl").err
        )
        with pytest.raises(streamrec.FeatureError, match="record 0: an ExampleListWithContext"):
            streamrec.infer_features([record])


@pytest.mark.parametrize("empty", [b"", encode_example({})])
def test_an_empty_example_does_not_say_what_the_others_are(
    empty: bytes, tmp_path: Path, cli: CommandLine
) -> None:
    shard = write(
        tmp_path / "a.tfrecord", [empty, *[encode_example({"x": n}) for n in range(3)], empty]
    )
    assert cli("info", "--json", shard).json["kind"] == "example"
    lines = cli("cat", "--json", shard).out.splitlines()
    assert [json.loads(line) for line in lines] == [{}, {"x": [0]}, {"x": [1]}, {"x": [2]}, {}]
    assert cli("head", "--json", "-n", "1", shard).json == {}
    [feature] = cli("stat", "--json", shard).json["features"]
    assert (feature["name"], feature["missing"], feature["numbers"]["count"]) == ("x", 2, 3)
    many = write(tmp_path / "b.tfrecord", [*[empty] * 500, encode_example({"x": 1})])
    assert json.loads(cli("cat", "--json", many).out.splitlines()[-1]) == {"x": [1]}
    alike = write(tmp_path / "c.tfrecord", [empty, encode_sequence_example({"x": 1}, {"x": [[2]]})])
    assert cli("info", "--json", alike).json["kind"] == "sequence_example"
    plain = write(tmp_path / "d.tfrecord", [empty, b"hello"])
    assert cli("cat", "--json", "--from-record", "1", plain).json == "hello"
    assert cli("info", "--json", plain).json["kind"] == "bytes"


def test_a_record_that_is_not_an_example_is_shown_as_bytes(
    tmp_path: Path, cli: CommandLine
) -> None:
    records = [encode_example({"x": 1})] * 200 + [b"hello"]
    out = cli("cat", "--json", write(tmp_path / "a.tfrecord", records)).out
    assert [json.loads(line) for line in out.splitlines()[-2:]] == [{"x": [1]}, "hello"]


TEXTS = ["a\u00a0b", "a\u3000b", "\u200c\u200d", "soft\u00adhyphen", "\ufeffmark"]
TEXTS += ["\U0001f469\u200d\U0001f680", "a\tb\n", "\u200fright", "\U0003fffd unassigned"]
CONTROLS = [b"\x1b[2J", b"\x00", b"a\x7f", b"\xc2\x9b", b"\xff", b"a\x0c"]


@pytest.mark.parametrize("value", [*TEXTS, *CONTROLS])
def test_text_is_what_has_no_control_characters(
    value: str | bytes, tmp_path: Path, cli: CommandLine
) -> None:
    data, text = (value.encode(), value) if isinstance(value, str) else (value, "")
    shard = write(tmp_path / "a.tfrecord", [encode_example({"x": data})])
    assert cli("head", "--json", shard).json == {
        "x": [text or {"base64": base64.b64encode(data).decode()}]
    }
    assert (" bytes, " in cli("head", shard).out) is not bool(text)
    [feature] = cli("stat", "--json", shard).json["features"]
    assert not text or feature["frequent"] == [[text, 1]]
    assert cli("convert", shard, tmp_path / "a.tar").code == 0
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["000000000.x.txt" if text else "000000000.x.bin"]
    html = streamrec.notebook.show({"x": np.array([data], object)})._repr_html_()
    assert (" bytes: " in html) is not bool(text)
