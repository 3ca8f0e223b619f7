"""convert: to and from Parquet, JSON lines and WebDataset tar, which other tools read and write,
too.
"""

import gzip
import importlib.util
import io
import itertools
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any, get_args

import duckdb
import numpy as np
import polars
import pyarrow
import pytest
from pyarrow import parquet

import streamrec
from streamrec import Example
from streamrec.cli.writing import COMPRESSIONS, ENDINGS, compression_of
from streamrec.errors import install_command
from streamrec.tfrecord import CompressionType
from tests.cli.conftest import (
    PNG,
    Bucket,
    CommandLine,
    Outcome,
    example_records,
    interrupt_after_first_shard,
    peak_bytes,
    run_command,
)
from tests.effort import thorough
from tests.runs import tarred


def examples_of(*paths: Path | str) -> list[Example]:
    return [
        Example.FromString(record)
        for path in paths
        for record in streamrec.TFRecordDataset(str(path))
    ]


EXAMPLES = [Example.FromString(record) for record in example_records(240)]


def test_parquet_is_read_by_others_and_comes_back(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    assert run_command("convert", shard, tmp_path / "a.parquet").out.startswith(
        "1 file, 240 records, "
    )
    table = parquet.read_table(tmp_path / "a.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "image": "binary",
        "label": "int64",
        "score": "float",
        "words": "list<element: binary>",
    }
    rows = table.slice(3, 2).to_pylist()
    assert [row["label"] for row in rows] == [3, 0]
    assert [row["score"] for row in rows] == [None, 0.5]
    assert rows[1]["words"] == [b"a"]
    assert polars.read_parquet(tmp_path / "a.parquet")["label"].sum() == sum(
        number % 4 for number in range(240)
    )
    [(count,)] = duckdb.sql(f"select count(score) from '{tmp_path}/a.parquet'").fetchall()
    assert count == 160
    assert cli("convert", tmp_path / "a.parquet", tmp_path / "b.tfrecord").code == 0
    assert examples_of(tmp_path / "b.tfrecord") == EXAMPLES
    assert streamrec.verify_sync(f"{tmp_path}/b.tfrecord.manifest.json").ok


def test_json_lines_in_files_of_a_given_number_of_records(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    done = cli(
        "convert", "--json", "--shard-records", "100", shard, f"{tmp_path}/a-{{shard}}.jsonl.gz"
    )
    assert [file["records"] for file in done.json["files"]] == [100, 100, 40]
    with gzip.open(tmp_path / "a-0.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert lines[4] == {
        "image": [{"base64": lines[0]["image"][0]["base64"]}],
        "label": [0],
        "score": [0.5],
        "words": ["a"],
    }
    assert "score" not in lines[3]
    assert cli("convert", f"{tmp_path}/a-*.jsonl.gz", tmp_path / "b.parquet").code == 0
    assert cli("convert", tmp_path / "b.parquet", tmp_path / "c.tfrecord.gz").code == 0
    assert examples_of(tmp_path / "c.tfrecord.gz") == EXAMPLES


@pytest.mark.skipif(
    importlib.util.find_spec("webdataset") is None, reason="webdataset is not installed"
)
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_webdataset_decodes_a_tar(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    import webdataset

    assert cli("convert", shard, tmp_path / "a.tar").code == 0
    samples = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode())
    assert len(samples) == 240
    np.testing.assert_array_equal(samples[4]["label.npy"], [0])
    assert (
        samples[4]["score.npy"].tolist(),
        samples[4]["words.json"],
        samples[4]["image.png"],
    ) == ([0.5], ["a"], PNG)
    assert samples[5]["words.json"] == ["a", "a"]
    assert "score.npy" not in samples[3]


def test_tars_of_about_a_size_and_back(
    shard: Path, tmp_path: Path, bucket: Bucket, cli: CommandLine
) -> None:
    target = f"{bucket.url}a-{{shard:03d}}.tar"
    done = cli.succeeds(
        "convert", *bucket.options, "--json", "--shard-bytes", "300kB", shard, target
    )
    assert len(done.json["files"]) == 1, "blocks are not cut"
    assert (
        cli(
            "convert", *bucket.options, "--json", f"{bucket.url}*.tar", f"{tmp_path}/b.tfrecord"
        ).code
        == 0
    )
    assert examples_of(tmp_path / "b.tfrecord") == EXAMPLES


def test_foreign_parquet(tmp_path: Path, cli: CommandLine) -> None:
    table = pyarrow.table(
        {
            "id": pyarrow.array([1, 2], pyarrow.uint8()),
            "ok": [True, None],
            "price": [0.5, 1.5],
            "name": pyarrow.array(["a", "b"]).dictionary_encode(),
            "tags": pyarrow.array([["x", "y"], []], pyarrow.large_list(pyarrow.large_string())),
            "at": pyarrow.array([0, 1], pyarrow.timestamp("us")),
        }
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    said = "feature 'at': a column of timestamp[us], which an Example cannot store: "
    done = cli.fails(1, said, "convert", tmp_path / "a.parquet", tmp_path / "a.tfrecord")
    assert "cast it, or name the others in --features" in done.err
    assert not (tmp_path / "a.tfrecord").exists()
    wanted = "id,ok,price,name,tags"
    assert (
        cli("convert", "--features", wanted, tmp_path / "a.parquet", tmp_path / "a.tfrecord").code
        == 0
    )
    kinds = {"tags": bytes}
    assert examples_of(tmp_path / "a.tfrecord") == [
        Example.FromString(streamrec.encode_example(row, kinds=kinds))
        for row in (
            {"id": 1, "ok": 1, "price": 0.5, "name": "a", "tags": ["x", "y"]},
            {"id": 2, "price": 1.5, "name": "b", "tags": []},
        )
    ]


@pytest.mark.parametrize(
    ("source", "target"),
    [("tfrecord", "parquet"), ("parquet", "jsonl"), ("jsonl", "tar"), ("tar", "tfrecord")],
)
def test_a_feature_that_no_record_has_is_not_left_out_silently(
    shard: Path, tmp_path: Path, cli: CommandLine, source: str, target: str
) -> None:
    made, wanted = tmp_path / f"a.{source}", tmp_path / f"b.{target}"
    assert cli("convert", shard, made).code == 0
    said = "--features: no record has lable: they have "
    done = cli.fails(2, said, "convert", "--features", "label,lable,score", made, wanted)
    assert ("image, label, score, words" in done.err, wanted.exists()) == (True, False)
    assert (
        cli("convert", "--features", "label,score", made, wanted).code == 0
    )  # score is in some records only


def there_and_back(
    table: pyarrow.Table, folder: Path, called: CommandLine, *words: str
) -> tuple[pyarrow.Table, str]:
    """A Parquet file as TFRecord and back, and what was said of it on standard error."""
    for path in folder.glob("*"):
        path.unlink()
    parquet.write_table(table, folder / "a.parquet")
    said = called.succeeds("convert", folder / "a.parquet", folder / "a.tfrecord")
    back = called.succeeds("convert", *words, folder / "a.tfrecord", folder / "b.parquet")
    return parquet.read_table(folder / "b.parquet"), said.err + back.err


def test_one_line_names_the_columns_whose_values_are_narrowed(
    tmp_path: Path, cli: CommandLine
) -> None:
    columns = {
        "exact": [0.25, None, float("nan"), float("inf")],
        "score": [0.6369616873, None, 0.5, 0.1],
        "vector": [[0.5], [], None, [0.1, 1e300]],
        "ok": [True, None, False, True],
        "id": [1, 2, None, 2**63 - 1],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    done = cli("convert", "--json", tmp_path / "a.parquet", tmp_path / "a.tfrecord")
    assert done.err == (
        "streamrec: score: float64 -> float32 (largest change 1.1e-08); vector: float64 -> float32 "
        "(values beyond its "
        "range become infinite); ok: bool -> int64\n"
    )
    assert done.json["files"][0]["records"] == 4
    exact = pyarrow.table({name: columns[name] for name in ("exact", "id")})
    table, said = there_and_back(exact, tmp_path, cli)
    assert said == ""
    assert repr(table.to_pydict()) == repr(exact.to_pydict())


def test_json_numbers_that_float32_does_not_hold(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"x": 0.1, "y": [1.5, NaN, Infinity], "ok": true}\n{"x": 0.25}\n'
    )
    assert (
        cli("convert", tmp_path / "a.jsonl", tmp_path / "a.tfrecord").err
        == "streamrec: ok: bool -> int64\n"
    )
    assert cli("convert", tmp_path / "a.tfrecord", tmp_path / "b.jsonl").err == ""
    assert cli("convert", tmp_path / "b.jsonl", tmp_path / "b.tfrecord").err == "", (
        "our own JSON loses nothing"
    )
    (tmp_path / "c.jsonl").write_text(
        '{"x": 0.6369616873, "y": [1.5, 9007199254740993], "z": 1e400, "e": []}\n'
    )
    assert cli("convert", tmp_path / "c.jsonl", tmp_path / "c.tfrecord").err == (
        "streamrec: x: numbers -> float32 (largest change 1.1e-08); y: numbers -> float32 (largest "
        "change 1); "
        "z: numbers -> float32 (values beyond its range become infinite); "
        "e: [] -> no kind (where no line before shows one; --schema says it)\n"
    )


def test_tables_of_duckdb_and_polars_come_back(tmp_path: Path, cli: CommandLine) -> None:
    frame = polars.DataFrame(
        {
            "id": [1, 2, 3, 4],
            "name": ["Zoë\xa0\U0001f469\u200d\U0001f52c", "", None, "b"],
            "score": [0.5, None, 0.0, -1.5],
            "count": [None, 0, 7, None],
            "tags": [["a", "ü"], [], None, ["c"]],
            "raw": [b"\xff", b"", None, b"a"],
        },
        schema_overrides={"score": polars.Float32},
    )
    (tmp_path / "new").mkdir()
    table, said = there_and_back(frame.to_arrow(), tmp_path / "new", cli, "--text", "name,tags")
    assert said == ""
    back = polars.read_parquet(tmp_path / "new" / "b.parquet")
    assert back.select(frame.columns).equals(frame)
    assert back.select(frame.columns).schema == frame.schema
    duckdb.sql(f"copy (select * from '{tmp_path}/new/b.parquet') to '{tmp_path}/duck.parquet'")
    table, said = there_and_back(
        parquet.read_table(tmp_path / "duck.parquet"), tmp_path / "new", cli
    )
    assert said == "streamrec: name, tags: text -> binary (--text name,tags keeps text)\n"
    types = ", ".join(
        f"any_value(typeof({name}))" for name in ("id", "name", "score", "count", "tags", "raw")
    )
    for path, text in (
        (tmp_path / "duck.parquet", "VARCHAR"),
        (tmp_path / "new" / "b.parquet", "BLOB"),
    ):
        found = duckdb.sql(f"select {types} from '{path}'").fetchall()
        assert found == [("BIGINT", text, "FLOAT", "BIGINT", f"{text}[]", "BLOB")]
    assert duckdb.sql(
        f"select avg(score), avg(count) from '{tmp_path}/new/b.parquet'"
    ).fetchall() == [(-1 / 3, 3.5)]
    assert table.num_rows == 4


def test_missing_empty_and_no_kind_are_three_things(tmp_path: Path, cli: CommandLine) -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1, "b": [1, 2], "c": 0.5},
        {"b": np.array([], np.int64), "c": []},
        {"b": []},
        {"a": 2},
    ]
    data = [streamrec.encode_example(row) for row in rows]
    (tmp_path / "a.tfrecord").write_bytes(streamrec.encode_records(data))
    for ending in ("parquet", "jsonl", "tar"):
        done = cli("convert", tmp_path / "a.tfrecord", tmp_path / f"a.{ending}")
        listed = (
            "streamrec: c: 0 or 1 values -> list (some records hold it empty, which is not null)\n"
        )
        assert done.err == (listed if ending == "parquet" else "")
        done = cli("convert", tmp_path / f"a.{ending}", tmp_path / f"{ending}.tfrecord")
        assert (done.code, "b: [null] -> no kind" in done.err) == (0, ending == "parquet")
        assert examples_of(tmp_path / f"{ending}.tfrecord") == [
            Example.FromString(record) for record in data
        ]
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table["a"].to_pylist() == [1, None, None, 2]
    assert table["b"].to_pylist() == [[1, 2], [], [None], None]


@pytest.mark.parametrize(
    ("array", "kind", "found"),
    [
        (pyarrow.array([None, 5], pyarrow.int8()), int, [[], [5]]),
        (pyarrow.array([None, 2**63 - 1], pyarrow.uint64()), int, [[], [2**63 - 1]]),
        (pyarrow.array([None, 1.5], pyarrow.float16()), float, [[], [1.5]]),
        (pyarrow.array([None, float("nan")]), float, [[], [float("nan")]]),
        (pyarrow.array([None, False]), int, [[], [0]]),
        (pyarrow.array([None, "a"]).dictionary_encode(), bytes, [[], [b"a"]]),
        (pyarrow.array([None, "a"], pyarrow.string_view()), bytes, [[], [b"a"]]),
        (pyarrow.array([None, [1, 2]], pyarrow.list_(pyarrow.int32(), 2)), int, [[], [1, 2]]),
        (pyarrow.array([None, None]), bytes, [[], []]),
    ],
    ids=lambda value: str(value.type)[:30] if isinstance(value, pyarrow.Array) else "",
)
def test_null_is_a_missing_feature(
    tmp_path: Path, cli: CommandLine, array: pyarrow.Array, kind: type, found: list[list[Any]]
) -> None:
    parquet.write_table(pyarrow.table({"x": array, "y": [1, 1]}), tmp_path / "a.parquet")
    assert cli("convert", tmp_path / "a.parquet", tmp_path / "a.tfrecord").code == 0
    serialized = list(streamrec.TFRecordDataset(f"{tmp_path}/a.tfrecord"))
    x = streamrec.parse_example(serialized, {"x": streamrec.RaggedFeature(kind)})["x"]
    assert isinstance(x, streamrec.RaggedTensor)
    [splits] = x.nested_row_splits
    rows = [
        np.asarray(x.flat_values)[first:last].tolist() for first, last in itertools.pairwise(splits)
    ]
    assert repr(rows) == repr(found)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (
            pyarrow.array([1, 2**63], pyarrow.uint64()),
            "record 1, feature 'x': the int 9223372036854775808",
        ),
        (pyarrow.array([[1], [1, None]]), "record 1, feature 'x': a null within a list"),
        (pyarrow.array([[[1]], [[2]]]), "feature 'x': a column of list<"),
        (
            pyarrow.array([[[1]]] * 2, pyarrow.list_(pyarrow.large_list(pyarrow.int8()))),
            "'x': a column of list<",
        ),
        (pyarrow.array([1, 2], pyarrow.decimal128(5, 2)), "feature 'x': a column of decimal128"),
        (pyarrow.array([1, 2], pyarrow.date32()), "feature 'x': a column of date32"),
        (pyarrow.array([{"a": 1}, {"a": 2}]), "feature 'x': a column of struct"),
    ],
    ids=lambda value: str(value.type)[:30] if isinstance(value, pyarrow.Array) else "",
)
def test_a_column_that_no_example_can_hold_is_refused(
    tmp_path: Path, cli: CommandLine, array: pyarrow.Array, said: str
) -> None:
    parquet.write_table(pyarrow.table({"x": array, "y": [1, 1]}), tmp_path / "a.parquet")
    cli.fails(1, said, "convert", tmp_path / "a.parquet", tmp_path / "a.tfrecord")
    assert not (tmp_path / "a.tfrecord").exists()


def test_text_that_is_none_is_named(tmp_path: Path, cli: CommandLine) -> None:
    for number in range(2):
        rows: list[dict[str, Any]] = [{"name": "a", "image": PNG}] * 100
        if number:
            rows[57] = {"name": b"\xe9"}
        data = streamrec.encode_records([streamrec.encode_example(row) for row in rows])
        (tmp_path / f"{number}.tfrecord").write_bytes(data)
    done = cli("convert", "--text", "name", f"{tmp_path}/*.tfrecord", tmp_path / "a.parquet")
    assert done.code == 1
    assert (
        "record 57, feature 'name': bytes that are not UTF-8 (unexpected end of data at byte 0)"
        in done.err
    )
    assert f"(in {tmp_path}/1.tfrecord)" in done.err
    assert cli("convert", f"{tmp_path}/*.tfrecord", tmp_path / "a.parquet").err == "", (
        "not all of it is text"
    )
    assert cli("convert", f"{tmp_path}/0.tfrecord", tmp_path / "b.parquet").err.startswith(
        "streamrec: name: text -> "
    )


def test_foreign_json_lines(tmp_path: Path, cli: CommandLine) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text(
        '{"id": 1, "x": 1, "ok": true, "t": null, "e": []}\n\n{"id": 2, "x": 1.5, "t": "ü", "e": '
        '["a"]}\n'
    )
    cli.fails(1, "feature 'x'", "convert", path, tmp_path / "a.parquet")
    schema = {"features": [{"name": "x", "kind": "float32", "values": [1, 1], "present": 1}]}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    assert (
        cli("convert", "--schema", tmp_path / "schema.json", path, tmp_path / "a.tfrecord").code
        == 0
    )
    assert examples_of(tmp_path / "a.tfrecord") == [
        Example.FromString(streamrec.encode_example(row))
        for row in ({"id": 1, "x": 1.0, "ok": 1, "e": []}, {"id": 2, "x": 1.5, "t": "ü", "e": "a"})
    ]


LARGE_NUMBER = "1" + "0" * 400


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"x": {"bytes": 5}}', "record 0, feature 'x': 5 holds a value that is not bytes"),
        ('{"x": 1}\n{"x": 9223372036854775808}', "record 1, feature 'x': "),
        (f'{{"x": 1}}\n{{"x": {LARGE_NUMBER}}}', "record 1, feature 'x': "),
        (f'{{"x": [0.5, {LARGE_NUMBER}]}}', "record 0, feature 'x': "),
        (
            '{"id": 1}\n{"id": [1, "a"]}',
            "record 1, feature 'id': [1, \"a\"] is not a list of numbers",
        ),
        (
            '{"id": 1, "x": 2, "id": 3}',
            "record 0: what follows cannot be decoded (ValueError: 'id' occurs twice",
        ),
        (
            '{"id": 1}\n{"id": ',
            "a.jsonl, record 1: what follows cannot be decoded (JSONDecodeError",
        ),
    ],
    ids=lambda value: value[:20],
)
def test_json_lines_that_are_wrong_are_named(
    tmp_path: Path, cli: CommandLine, lines: str, said: str
) -> None:
    (tmp_path / "a.jsonl").write_text(f"{lines}\n")
    cli.fails(1, said, "convert", tmp_path / "a.jsonl", tmp_path / "a.tfrecord")


def test_a_foreign_tar(tmp_path: Path, cli: CommandLine) -> None:
    array = io.BytesIO()
    np.save(array, np.zeros((2, 2)))
    files = {
        "x/0001.jpg": b"\xff\xd8\xff",
        "x/0001.cls": b"7",
        "x/0001.a.npy": array.getvalue(),
        "x/0002.txt": b"hello",
    }
    (tmp_path / "a.tar").write_bytes(tarred(*files.items()))
    assert cli("convert", tmp_path / "a.tar", tmp_path / "a.tfrecord").code == 0
    assert examples_of(tmp_path / "a.tfrecord") == [
        Example.FromString(streamrec.encode_example(row))
        for row in (
            {"__key__": "x/0001", "jpg": b"\xff\xd8\xff", "cls": 7, "a.npy": array.getvalue()},
            {"__key__": "x/0002", "txt": "hello"},
        )
    ]
    assert cli("convert", tmp_path / "a.tfrecord", tmp_path / "b.tar").code == 0
    with tarfile.open(tmp_path / "b.tar") as tar:
        assert "x/0001.jpg.jpg" in tar.getnames()
    (tmp_path / "c.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:700])
    cli.fails(
        1, f"{tmp_path}/c.tar, record 0: ", "convert", tmp_path / "c.tar", tmp_path / "c.tfrecord"
    )


def test_a_schema_that_the_data_does_not_keep(
    shard: Path, tmp_path: Path, cli: CommandLine
) -> None:
    about = cli("info", "--json", shard).json
    [score] = [row for row in about["features"] if row["name"] == "score"]
    score["kind"] = "int64"
    (tmp_path / "schema.json").write_text(json.dumps(about))
    said = (
        "record 1, feature 'score': the record has 1 float32, and its column takes one int64: "
        "leave --schema out"
    )
    cli.fails(
        1, said, "convert", "--schema", tmp_path / "schema.json", shard, tmp_path / "a.parquet"
    )
    assert not (tmp_path / "a.parquet").exists()


@pytest.mark.parametrize(
    ("bad", "arguments", "said"),
    [
        ({"label": b"four"}, [], "bytes, but earlier records have int64"),
        ({"label": [1, 2]}, ["--schema", "SCHEMA"], "has 2 int64, and its column takes one int64"),
        ({"label": []}, ["--schema", "SCHEMA"], "has no value, and its column takes one int64"),
        (b"\x0a\xff", ["--to", "jsonl"], "2 bytes that are not an Example"),
    ],
    ids=["kind", "two", "no-kind", "no-example"],
)
def test_an_error_names_the_shard_and_its_record(
    tmp_path: Path, cli: CommandLine, bad: Any, arguments: list[str], said: str
) -> None:
    for number in range(3):
        rows: list[Any] = [{"label": 4}] * 5000
        if number == 1:
            rows[4321] = bad
        records = [row if isinstance(row, bytes) else streamrec.encode_example(row) for row in rows]
        (tmp_path / f"{number}.tfrecord").write_bytes(streamrec.encode_records(records))
    column = {"name": "label", "kind": "int64", "values": [1, 1], "present": 1}
    (tmp_path / "schema.json").write_text(json.dumps({"features": [column]}))
    words = [word.replace("SCHEMA", f"{tmp_path}/schema.json") for word in arguments]
    done = cli.fails(1, said, "convert", *words, f"{tmp_path}/*.tfrecord", tmp_path / "new.parquet")
    assert done.err.startswith("streamrec: record 4,321")
    assert done.err.endswith(f" (in {tmp_path}/1.tfrecord)\n")
    assert not (tmp_path / "new.parquet").exists()


def test_without_pyarrow(shard: Path, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError('none', name='pyarrow')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = run_command("convert", shard, tmp_path / "a.parquet", env=environment)
    assert done == Outcome(
        2,
        "",
        f"streamrec: Parquet needs another package: {install_command('arrow')}\n",
    )
    assert run_command("convert", shard, tmp_path / "a.jsonl", env=environment).code == 0


def test_ctrl_c_leaves_nothing(shard: Path, tmp_path: Path) -> None:
    interrupt_after_first_shard(
        "convert", "--shard-records", "1", *[shard] * 20, f"{tmp_path}/new/{{shard}}.tar"
    )
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory")
@pytest.mark.parametrize("ending", ["parquet", *thorough("jsonl", "tar")])
def test_memory_is_bounded(tmp_path: Path, ending: str) -> None:
    """There and back, a file of 240 MB takes about as much memory as one of 60 MB."""
    peaks = []
    for size in (60, 240):
        source, there, back = (
            f"{tmp_path}/{size}.{name}" for name in ("tfrecord", ending, "back.tfrecord")
        )
        with streamrec.TFRecordWriter(source) as writer:
            for number in range(size):
                image = np.random.default_rng(number).bytes(1_000_000)
                writer.write(streamrec.encode_example({"image": image, "label": number}))
        peaks.append((peak_bytes("convert", source, there), peak_bytes("convert", there, back)))
    (there, back), (there_4, back_4) = peaks
    half = 90_000_000  # of what the larger file has more: a part of it is what allocators keep
    assert there_4 < there + half
    assert back_4 < back + half


def test_features_get_new_names(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    rename = (
        "--rename",
        "image=image/encoded",
        "--rename",
        "label=score",
        "--rename",
        "score=label",
    )
    for ending in ("tfrecord", "parquet", "jsonl", "tar"):
        made, back = tmp_path / f"made.{ending}", tmp_path / f"{ending}.tfrecord"
        cli.succeeds("convert", *rename, "--features", "image,label,score", shard, made)
        cli.succeeds("convert", made, back)
        found = cli("head", "--json", "-n", "1", "--from-record", "1", back).json
        assert (found["label"], found["score"], [*found]) == (
            [0.125],
            [1],
            ["image/encoded", "label", "score"],
        )
    with tarfile.open(tmp_path / "made.tar") as tar:
        assert tar.getnames()[:2] == ["000000000.image.encoded.png", "000000000.score.npy"]
    for words, code, said in (
        ("lable=x", 2, "--rename: no record has lable: they have image, label, score, words"),
        ("label=score", 1, "record 1, feature 'score': the record has a feature of this name"),
        ("label", 2, "--rename takes OLD=NEW"),
    ):
        cli.fails(code, said, "convert", "--rename", words, shard, tmp_path / "wrong.jsonl")
        assert not (tmp_path / "wrong.jsonl").exists()


def test_a_feature_has_one_name_in_all_tars(tmp_path: Path, cli: CommandLine) -> None:
    jpeg, png = b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n"
    rows = [
        {
            "text": "a",
            "mixed": "a",
            "image": jpeg,
            "images": png,
            "tags": ["a"],
            "number": 1,
            "numbers": [],
        },
        {
            "text": "b\u00a0c",
            "mixed": b"\x00",
            "image": jpeg,
            "images": jpeg,
            "tags": ["a", "b"],
            "number": 2,
        },
        {"text": "", "mixed": "c", "image": jpeg, "images": png, "tags": ["c"], "numbers": [3, 4]},
    ]
    data = [streamrec.encode_example(row, kinds={"numbers": "int64"}) for row in rows]
    (tmp_path / "a.tfrecord").write_bytes(streamrec.encode_records(data))
    assert (
        cli(
            "convert", "--shard-records", "1", tmp_path / "a.tfrecord", tmp_path / "{shard}.tar"
        ).code
        == 0
    )
    names = set()
    for number in range(3):
        with tarfile.open(tmp_path / f"{number}.tar") as tar:
            names |= {name.partition(".")[2] for name in tar.getnames()}
    wanted = {
        "text.txt",
        "mixed.bin",
        "image.jpg",
        "images.bin",
        "tags.json",
        "number.npy",
        "numbers.npy",
    }
    assert names == wanted
    assert cli("convert", tmp_path / "?.tar", tmp_path / "b.tfrecord").code == 0
    assert examples_of(tmp_path / "b.tfrecord") == [Example.FromString(record) for record in data]


def test_each_compression_has_an_ending_and_a_name() -> None:
    kinds = {kind for kind in get_args(CompressionType) if kind}
    assert set(ENDINGS.values()) == kinds
    assert {name.upper() for name in COMPRESSIONS} == {*kinds, "NONE"}
    assert {compression_of(f"x{ending}", None) for ending in ENDINGS} == kinds


@pytest.mark.parametrize("name", ["a.foo", "a.csv", "a.CSV.gz"])
def test_a_target_with_an_unknown_ending_needs_a_format(
    shard: Path, tmp_path: Path, cli: CommandLine, name: str
) -> None:
    done = cli("convert", shard, tmp_path / name)
    assert done.code == 2
    assert f"{tmp_path / name}: .{name.split('.')[1]} is not the ending of a format" in done.err
    assert not list(tmp_path.glob("a.*"))
    assert cli("convert", "--to", "tfrecord", shard, tmp_path / name).code == 0
    assert examples_of(tmp_path / name) == EXAMPLES


@pytest.mark.parametrize("name", ["a", "a.tfrecords", "a.tfrec", "a-00000-of-00001", "a.v1.5"])
def test_a_target_without_the_ending_of_another_format_is_a_tfrecord(
    shard: Path, tmp_path: Path, cli: CommandLine, name: str
) -> None:
    assert cli("convert", shard, tmp_path / name).code == 0
    assert examples_of(tmp_path / name) == EXAMPLES
