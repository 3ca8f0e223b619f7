"""The cases of test_in_processes.py: a cluster of four workers for all of them."""

import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow
import pytest
import ray
from pyarrow import parquet

import streamrec
import streamrec.tfds
from streamrec import Example, FixedLenFeature, RaggedFeature
from streamrec.cli import program
from streamrec.ray import TFRecordDatasource, read_tfrecords, write_tfrecords
from tests.adapters.conftest import write_examples
from tests.cli.conftest import interrupt_stalled, still_running
from tests.pages import ROOT, blocks
from tests.runs import flip_bit
from tests.servers.faults import Faults
from tests.servers.objectstore import ObjectStore
from tests.servers.real import Store
from tests.tfds.folders import KINDS_URL

FEATURES = {
    "id": FixedLenFeature([], "int64"),
    "name": FixedLenFeature([], "string"),
    "scores": RaggedFeature("float32"),
}
COUNT = 20_000

RunCommand = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """Its address."""
    context = started_cluster()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    yield context.address_info["gcs_address"]
    ray.shutdown()


def started_cluster(log_to_driver: bool = False) -> Any:
    """A cluster. A node gives up if its agent takes longer than 30 s to start, which can happen
    under load.
    """
    for attempt in range(4):
        try:
            return ray.init(
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=300 << 20,
                log_to_driver=log_to_driver,
            )
        except Exception:
            ray.shutdown()
            if attempt == 3:
                raise
    return None


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": b"name %d" % n, "scores": [n / 4] * (n % 3)} for n in range(count)]


def write(path: Path, count: int, first: int = 0) -> list[bytes]:
    records = [streamrec.encode_example(row, kinds=FEATURES) for row in rows(first + count)[first:]]
    path.write_bytes(streamrec.encode_records(records))
    return records


def examples_in(pattern: str, options: Any = None) -> list[Example]:
    """The Examples of all shards that a pattern matches."""
    return [
        Example.FromString(record)
        for record in streamrec.TFRecordDataset(pattern, storage_options=options)
    ]


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Runs a command that succeeds, and returns its output."""

    def run(*arguments: object) -> str:
        assert program.run([str(part) for part in arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return run


def test_one_large_shard_is_read_by_many_tasks(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", COUNT)
    size = (tmp_path / "a.tfrecord").stat().st_size
    source = TFRecordDatasource(str(tmp_path / "a.tfrecord"), FEATURES)
    tasks = source.get_read_tasks(7)
    assert len(tasks) == 7
    assert (
        sum(task.metadata.size_bytes for task in tasks)
        == source.estimate_inmemory_data_size()
        == size
    )
    found = [pyarrow.concat_tables(task()) for task in tasks]
    assert max(table.num_rows for table in found) < COUNT / 5
    assert pyarrow.concat_tables(found)["id"].to_pylist() == list(range(COUNT))
    dataset = read_tfrecords(str(tmp_path / "a.tfrecord"), FEATURES, override_num_blocks=7)
    taken = sorted(dataset.take_all(), key=lambda row: row["id"])
    assert [(row["id"], row["name"], list(row["scores"])) for row in taken] == [
        tuple(row.values()) for row in rows(COUNT)
    ]


def test_an_index_counts_the_rows(tmp_path: Path) -> None:
    for shard in range(3):
        write(tmp_path / f"{shard}.tfrecord", 1000 * (shard + 1), 1000 * shard)
    streamrec.write_index_sync(f"{tmp_path}/*.tfrecord", f"{tmp_path}/train.index")
    source = TFRecordDatasource(
        f"{tmp_path}/*.tfrecord", FEATURES, manifest=f"{tmp_path}/train.index"
    )
    tasks = source.get_read_tasks(4)
    assert [task.metadata.num_rows for task in tasks] == [1500] * 4
    assert [sum(table.num_rows for table in task()) for task in tasks] == [1500] * 4


def test_from_a_store_and_back(s3_store: Store, run_command: RunCommand) -> None:
    url, options = f"{s3_store.url}/{uuid4()}", s3_store.options
    with streamrec.TFRecordWriter(
        f"{url}/a.tfrecord.gz", "GZIP", storage_options=options
    ) as writer:
        for row in rows(500):
            writer.write(streamrec.encode_example(row, kinds=FEATURES))
    dataset = read_tfrecords(f"{url}/*.gz", storage_options=options)  # features are inferred
    write_tfrecords(dataset, f"{url}/new", shard_bytes=1, storage_options=options)
    assert streamrec.verify_sync(f"{url}/new/manifest.json", storage_options=options).ok
    written = examples_in(f"{url}/new/*.tfrecord", options)
    found = sorted(written, key=lambda example: example.features.feature["id"].int64_list.value[0])
    assert found == [
        Example.FromString(streamrec.encode_example(row, kinds=FEATURES)) for row in rows(500)
    ]
    with pytest.raises(Exception, match="already exists"):
        write_tfrecords(dataset, f"{url}/new", storage_options=options)


def test_null_and_tensors_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = pyarrow.table({"id": [1, None], "tags": [["a"], None]})
    write_tfrecords(ray.data.from_arrow(table), str(tmp_path / "a"))
    assert not [record for record in caplog.records if record.name == "streamrec"]
    write_tfrecords(ray.data.from_arrow(pyarrow.table({"x": [0.1, 0.5]})), str(tmp_path / "c"))
    assert (
        "part-{shard:05d}.tfrecord: x: float64 -> float32 (largest change 1.5e-09)" in caplog.text
    )
    with pytest.raises(streamrec.FeatureError, match="record 1, feature 'x': a null within a list"):
        write_tfrecords(
            ray.data.from_arrow(pyarrow.table({"x": [[1], [2, None]]})), str(tmp_path / "d")
        )
    write_tfrecords(
        ray.data.from_numpy(np.arange(12, dtype=np.float32).reshape(3, 2, 2)), str(tmp_path / "b")
    )
    assert examples_in(f"{tmp_path}/a/*.tfrecord") == [
        Example.FromString(streamrec.encode_example({"id": 1, "tags": ["a"]})),
        Example(features={}),
    ]
    _, second, _ = examples_in(f"{tmp_path}/b/*.tfrecord")
    assert list(second.features.feature["data"].float_list.value) == [4, 5, 6, 7]


ROWS_WITH_NULLS: list[dict[str, Any]] = [
    {"price": 2.5, "count": 7, "name": "Zoë", "pair": [0.5, 1.5], "tags": ["a", "b"], "ids": [1]},
    {"tags": np.array([], "S1"), "ids": [1, 2]},
    {},
    {"price": float("nan"), "count": 0, "name": "", "pair": [0.0, 0.0], "tags": ["c"]},
]


def test_a_missing_feature_is_null(tmp_path: Path) -> None:
    rows = ROWS_WITH_NULLS * 500
    write_examples(tmp_path / "a.tfrecord", rows)
    dataset = read_tfrecords(f"{tmp_path}/a.tfrecord", text=["name", "tags"], override_num_blocks=5)
    types = {field.name: str(field.type) for field in dataset.schema().base_schema}
    assert types == {
        "count": "int64",
        "ids": "list<item: int64>",
        "name": "large_string",
        "pair": "fixed_size_list<item: float>[2]",
        "price": "float",
        "tags": "list<item: large_string>",
    }
    assert dataset.mean("count") == 3.5
    tables = [ray.get(block) for block in dataset.to_arrow_refs()]
    assert len(tables) > 1
    assert len({table.schema for table in tables}) == 1
    found = [
        row
        for table in tables
        for row in table.select(["count", "ids", "name", "pair", "tags"]).to_pylist()
    ]
    nothing = dict.fromkeys(["count", "ids", "name", "pair", "tags"])
    wanted = [
        {"count": 7, "ids": [1], "name": "Zoë", "pair": [0.5, 1.5], "tags": ["a", "b"]},
        nothing | {"ids": [1, 2], "tags": []},
        nothing,
        {"count": 0, "ids": None, "name": "", "pair": [0.0, 0.0], "tags": ["c"]},
    ]
    assert sorted(found, key=repr) == sorted(wanted * 500, key=repr)
    prices = [price for table in tables for price in table["price"].to_pylist()]
    assert prices.count(None) == 1000
    assert prices.count(2.5) == 500
    write_tfrecords(dataset, f"{tmp_path}/new")
    back = examples_in(f"{tmp_path}/new/*.tfrecord")
    assert sorted(map(repr, back)) == sorted(map(repr, examples_in(f"{tmp_path}/a.tfrecord")))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"id": [1, 2], "pair": [1, 2]}, "feature 'id': found 2 values where 1 is expected"),
        ({"id": 1, "pair": [1]}, "feature 'pair': found 1 values where 2 are expected"),
        ({"id": "one", "pair": [1, 2]}, "feature 'id': "),
        (
            {"id": 1, "pair": [1, 2], "new": 3},
            "feature 'new': no sampled record has this feature: pass features=",
        ),
    ],
    ids=["two", "one", "kind", "unknown"],
)
def test_a_record_unlike_the_sample_is_null_or_named(
    tmp_path: Path, bad: dict[str, Any], said: str
) -> None:
    for shard in range(2):
        records: list[dict[str, Any]] = [{"id": 1, "pair": [1, 2]}] * 1000
        records[900] = {}
        if shard:
            records[567] = bad
        write_examples(tmp_path / f"{shard}.tfrecord", records)
    [task] = TFRecordDatasource(f"{tmp_path}/0.tfrecord").get_read_tasks(1)
    table = pyarrow.concat_tables(task())
    assert (table["id"].null_count, table["pair"].null_count) == (1, 1)
    streamrec.write_index_sync(f"{tmp_path}/*.tfrecord", f"{tmp_path}/train.index")
    with pytest.raises(streamrec.FeatureError) as caught:
        indexed = read_tfrecords(f"{tmp_path}/*.tfrecord", manifest=f"{tmp_path}/train.index")
        indexed.random_shuffle(seed=1).materialize()
    assert said in str(caught.value)
    assert f"{tmp_path}/1.tfrecord, record 567" in str(caught.value)


def test_a_sequence_example_is_refused_and_loses_no_feature_list(tmp_path: Path) -> None:
    record = streamrec.encode_sequence_example({"id": 1}, {"steps": [[1], [2]]})
    (tmp_path / "0.tfrecord").write_bytes(streamrec.encode_records([record]))
    with pytest.raises(
        streamrec.FeatureError, match=r"record 0: a SequenceExample.*: give features \(in "
    ):
        streamrec.ray.read_tfrecords(str(tmp_path / "0.tfrecord"))


def test_a_feature_of_two_kinds_is_named_with_its_shard(tmp_path: Path) -> None:
    for shard, value in enumerate([1, "one"]):
        write_examples(tmp_path / f"{shard}.tfrecord", [{"id": value}])
    with pytest.raises(
        streamrec.FeatureError, match=rf"feature 'id': .*\(in {tmp_path}/1.tfrecord\)"
    ):
        read_tfrecords(f"{tmp_path}/*.tfrecord")


def test_a_sequence_feature_is_a_list_of_one_type(tmp_path: Path) -> None:
    features: dict[str, Any] = {
        "scores": streamrec.FixedLenSequenceFeature([], "float32", allow_missing=True)
    }
    write(tmp_path / "a.tfrecord", 1000)
    tasks = TFRecordDatasource(f"{tmp_path}/a.tfrecord", features).get_read_tasks(3)
    tables = [pyarrow.concat_tables(task()) for task in tasks]
    assert {str(table.schema.field("scores").type) for table in tables} == {
        "list<item: float not null>"
    }
    assert [row for table in tables for row in table["scores"].to_pylist()] == [
        row["scores"] for row in rows(1000)
    ]
    with pytest.raises(
        streamrec.FeatureError, match="feature 'score': text= names a column that does not exist"
    ):
        read_tfrecords(f"{tmp_path}/a.tfrecord", features, text=["score"])


def test_damage_is_one_error_or_a_loss_that_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.tfrecord"
    write(path, 1000)
    flip_bit(path, path.stat().st_size // 2)
    with pytest.raises(streamrec.CorruptRecordError) as caught:
        read_tfrecords(str(path), FEATURES, override_num_blocks=2).materialize()
    assert str(path) in str(caught.value)
    assert "record " in str(caught.value)
    assert (
        read_tfrecords(str(path), FEATURES, on_error="resync", override_num_blocks=2).count() == 999
    )
    for task in TFRecordDatasource(str(path), FEATURES, on_error="resync").get_read_tasks(1):
        list(task())
    assert f"{path}: repeated 0 requests; skipped 1 damaged places (" in caplog.text
    with pytest.raises(streamrec.FeatureError, match="feature 'colour'"):
        features = {"colour": FixedLenFeature([], "int64")}
        read_tfrecords(str(path), features, on_error="resync").materialize()


def test_a_missing_feature_is_named_with_shard_and_record(tmp_path: Path, cluster: str) -> None:
    for shard in range(3):
        write(tmp_path / f"{shard}.tfrecord", 1000)
    records = list(streamrec.TFRecordDataset(f"{tmp_path}/1.tfrecord"))
    records[567] = streamrec.encode_example({"id": b"text"})
    (tmp_path / "1.tfrecord").write_bytes(streamrec.encode_records(records))
    with pytest.raises(streamrec.FeatureError, match="feature 'id'") as caught:
        read_tfrecords(f"{tmp_path}/*.tfrecord", FEATURES, override_num_blocks=4).random_shuffle(
            seed=1
        ).materialize()
    [place] = set(
        re.findall(
            rf"{tmp_path}/1.tfrecord( \(the part from byte \S+ on\))?, record (\S+)",
            str(caught.value),
        )
    )
    assert place[0] or place[1] == "567"


LINE = re.compile(r"\(RayTrainWorker pid=(\d+)\)\S* (\d) (\d+) \S+ (\[[\d, ]+\])\n")


@pytest.mark.thorough
def test_a_killed_worker_of_ray_train_resumes_exactly(tmp_path: Path, cluster: str) -> None:
    """The program of docs/ray.md; a worker is killed after a checkpoint."""
    found = list(blocks(ROOT / "docs/ray.md"))
    (tmp_path / "train_ray.py").write_text(
        next(each.text for each in found if each.title == "train_ray.py")
    )
    data = next(each.text for each in found if "parts/manifest.json" in each.text)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_ADDRESS": cluster,
        "RAY_DEDUP_LOGS": "0",
    }
    steps: dict[tuple[int, int], list[int]] = {}
    first_steps: dict[int, int] = {}  # of each process
    killed = 0
    program = f"import streamrec\n{data}\nexec(open('train_ray.py').read())"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        text = ""
        for line in running.stdout:
            text += line
            if not (match := LINE.search(line)):
                continue
            pid, rank, step = map(int, match.groups()[:3])
            ids = json.loads(match[4])
            first_steps.setdefault(pid, step)
            assert steps.setdefault((rank, step), ids) == ids
            if not killed and step >= 12:
                os.kill(killed := pid, signal.SIGKILL)
    assert running.returncode == 0, text[-3000:]
    assert killed
    assert len(first_steps) == 4
    assert sorted(first_steps.values())[2] > 1, text[-3000:]  # not from the beginning
    assert len(steps) == 80
    for first in (1, 21):
        epoch = [steps[rank, step] for rank in range(2) for step in range(first, first + 20)]
        assert sorted(number for ids in epoch for number in ids) == list(range(320))


PROGRAM = """
import sys, ray, streamrec.ray
from tests.adapters.ray_cases import started_cluster
started_cluster(log_to_driver=True)  # a cluster of its own, whose metrics do not count the reads of other tests
options = {"anon": True, "endpoint_url": sys.argv[1]}
shards = "s3://data/*.tfrecord"
dataset = streamrec.ray.read_tfrecords(shards, on_error="resync", storage_options=options, override_num_blocks=4)
[node] = ray.nodes()
print("ready", f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics", flush=True)
input()
print(dataset.materialize().count(), "rows", flush=True)
input()
"""  # noqa: E501


def test_retries_and_losses_are_reported(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for shard in range(4):
        write(tmp_path / "data" / f"{shard}.tfrecord", 2000)
    damaged = tmp_path / "data" / "2.tfrecord"
    flip_bit(damaged, damaged.stat().st_size // 2)
    with ObjectStore(tmp_path) as store:
        command = [sys.executable, "-c", PROGRAM, store.url]
        pipes: Any = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        environment = {**os.environ, "RAY_DEDUP_LOGS": "0"}  # it leaves out lines of the same form
        with subprocess.Popen(command, env=environment, **pipes) as process:
            [url] = [
                line.split()[1]
                for line in lines_to(process.stdout, "ready")
                if line.startswith("ready ")
            ]
            store.faults = Faults(
                first_byte=0, jitter=0, seed=4, unavailable=0.3, reset=0.2, at=0.5
            )
            store.clear()
            process.stdin.write("\n")
            process.stdin.flush()
            said = list(lines_to(process.stdout, "7999 rows"))
            assert said[-1] == "7999 rows\n"
            assert store.wait_idle()
            failed = sum(store.counters.by_fault.values())
            assert failed > 2
            while sum(map(retries_in, said)) < failed:
                said.append(process.stdout.readline())
            assert sum(map(retries_in, said)) == failed
            assert [
                line
                for line in said
                if "2.tfrecord: " in line and "; skipped 1 damaged places (" in line
            ]
            size = sum(path.stat().st_size for path in (tmp_path / "data").iterdir())
            if not url.endswith((":0/metrics", ":-1/metrics")):  # ray[default] is installed
                wanted = {"bytes": size, "losses": 1, "retries": failed}
                while metrics_at(url) != wanted:
                    still_running(process)


def metrics_at(url: str) -> dict[str, float]:
    """Ray's counters for Prometheus, summed over all workers."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    for name, value in re.findall(
        r"^ray_streamrec_read_(\w+)_total\{.*\} (\S+)$", text, re.MULTILINE
    ):
        found[name] = found.get(name, 0) + float(value)
    return found


def lines_to(stream: Any, last: str) -> Iterator[str]:
    """The lines of a program up to the first one that begins with `last`."""
    for line in iter(stream.readline, ""):
        yield line
        if line.startswith(last):
            return


def retries_in(line: str) -> int:
    """The number of repeated requests in a line of a task."""
    found = re.search(r": repeated (\d+) requests; ", line)
    return int(found[1]) if found else 0


def test_a_worker_that_is_killed_costs_no_row(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrecord", 2000)
    marker = str(tmp_path / "killed")

    def kill_once(batch: pyarrow.Table) -> pyarrow.Table:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return batch
        os._exit(1)

    dataset = read_tfrecords(str(tmp_path / "a.tfrecord"), FEATURES, override_num_blocks=4)
    found = dataset.map_batches(kill_once, batch_format="pyarrow").take_all()
    assert os.path.exists(marker)
    assert sorted(row["id"] for row in found) == list(range(2000))


def test_the_commands_run_on_the_cluster(
    tmp_path: Path,
    cluster: str,
    run_command: RunCommand,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # workers have another working directory
    (tmp_path / "a").mkdir()
    wanted = [
        record
        for shard in range(5)
        for record in write(tmp_path / "a" / f"{shard}.tfrecord", 100, 100 * shard)
    ]
    far = "--ray", cluster
    assert run_command("index", *far, tmp_path / "a", tmp_path / "a.index").endswith(
        "500 records in 5 shards\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.index"]
    assert list(streamrec.RecordSource(f"{tmp_path}/a.index"))[321] == wanted[321]
    assert run_command("reshard", *far, "--shards", 3, tmp_path / "a", f"{tmp_path}/b/").startswith(
        "3 shards, 500 records, "
    )
    shards = sorted((tmp_path / "b").glob("*.tfrecord"))
    assert list(streamrec.TFRecordDataset([str(shard) for shard in shards])) == wanted
    assert run_command("verify", *far, "b/").endswith(": all as the manifest says\n")
    assert run_command("verify", f"{tmp_path}/b/manifest.json").endswith(
        "all as the manifest says\n"
    )
    target = f"{tmp_path}/c-{{shard}}.parquet"
    assert program.run(["convert", *far, f"{tmp_path}/b", target]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("3 files, 500 records, ")
    assert said.err == "streamrec: name: text -> binary (--text name keeps text)\n"
    run_command(
        "convert", *far, "--text", "name", tmp_path / "b", f"{tmp_path}/text-{{shard}}.parquet"
    )
    assert str(parquet.read_schema(tmp_path / "text-1.parquet").field("name").type) == "string"
    assert (
        sum(parquet.read_table(f"{tmp_path}/c-{number}.parquet").num_rows for number in range(3))
        == 500
    )
    back = f"{tmp_path}/d-{{shard}}.tfrecord"
    run_command("convert", *far, f"{tmp_path}/c-*.parquet", back)
    assert examples_in(f"{tmp_path}/d-*.tfrecord") == [
        Example.FromString(record) for record in wanted
    ]
    flip_bit(shards[1], 50)
    assert program.run(["verify", *far, "--repair", f"{tmp_path}/clean/", f"{tmp_path}/b/"]) == 1
    assert "1 shard damaged" in capsys.readouterr().out
    assert program.run(["reshard", *far, "--shards", "2", f"{tmp_path}/b/", f"{tmp_path}/e/"]) == 1
    assert f"{shards[1]}, record 0, byte 0: " in capsys.readouterr().err
    assert [path for path in (tmp_path / "e").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("convert", ["--to", "jsonl", "s3://data/*.tfrecord", "TARGET/"]),
        ("index", ["s3://data/*.tfrecord", "TARGET/a.index"]),
        ("verify", ["--repair", "TARGET/", "s3://data/*.tfrecord"]),
        ("reshard", ["s3://data/*.tfrecord", "TARGET/"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ctrl_c_ends_the_tasks(
    tmp_path: Path, cluster: str, command: str, words: list[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "new").mkdir()
    for shard in range(3):
        write(tmp_path / "data" / f"{shard}.tfrecord", 40_000)
    names = [word.replace("TARGET", f"{tmp_path}/new") for word in words]
    interrupt_stalled(command, "--ray", cluster, *names, root=tmp_path)
    assert list((tmp_path / "new").iterdir()) == []


def test_an_address_without_a_cluster_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert program.run(["verify", "--ray", address, str(tmp_path)]) == 3
    assert capsys.readouterr().err.startswith(f"streamrec: no Ray cluster answers at {address} (")


def test_the_snippets_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "ray.md"
    # A program with a title is a file of its own: a killed worker resumes in that of Ray Train.
    snippets = [block.text for block in blocks(page) if block.kind == "python" and not block.title]
    assert len(snippets) == 5
    exec(compile("\n".join(snippets), str(page), "exec"), {})


def test_two_workers_of_ray_train_read_each_record_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    write(tmp_path / "a.tfrecord", 400)

    def train() -> None:
        import ray.train.torch
        from torch.utils.data import DataLoader

        import streamrec.torch

        dataset = streamrec.TFRecordDataset(f"{tmp_path}/a.tfrecord").distribute().batch(10)
        examples = streamrec.torch.IterableDataset(dataset.parse_example(FEATURES))
        prepared = ray.train.torch.prepare_data_loader(DataLoader(examples, batch_size=None))
        ids = [number for batch in prepared for number in batch["id"].tolist()]
        rank = ray.train.get_context().get_world_rank()
        (tmp_path / f"{rank}.json").write_text(json.dumps(ids))

    TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=str(tmp_path / "results")),
    ).fit()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert len(first) > 100
    assert sorted(first + second) == list(range(400))


def test_splits_of_a_data_set_are_read_by_workers() -> None:
    kinds = streamrec.tfds.open_sync(KINDS_URL)
    shards = ray.data.from_items([f"train[{number}shard]" for number in range(3)])
    rows = shards.flat_map(
        lambda row: [
            {"number": int(one["scalar_int64"])}
            for one in kinds.read(row["item"], features=["scalar_int64"])
        ]
    ).take_all()
    wanted = [int(one["scalar_int64"]) for one in kinds.read("train", features=["scalar_int64"])]
    assert sorted(row["number"] for row in rows) == sorted(wanted)
    table = pyarrow.table(kinds.read("train", batch_size=8, features=["scalar_int64"]))
    assert [row["scalar_int64"] for row in ray.data.from_arrow(table).take_all()] == wanted
