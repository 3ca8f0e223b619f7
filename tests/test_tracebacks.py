"""What a program prints that ends with an error: the caller's own lines and the message, without
the frames of this package.

Each mistake is a script in a new interpreter, as users run theirs. Its line that fails ends with
`# here`.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec.errors import CorruptRecordError, NotFoundError
from streamrec.tracebacks import border, border_methods
from tests.runs import flip_bit, write_shards
from tests.servers.real import Store

PACKAGE = str(Path(streamrec.__file__).parent)
CHAINS = ("The above exception was", "During handling of the above")


def run_script(folder: Path, source: str, **environment: str) -> str:
    """Runs a script in a folder to its error; returns what it printed on standard error."""
    script = folder / "mistake.py"
    script.write_text(f"import asyncio\nimport streamrec\n{source}")
    root = str(Path(PACKAGE).parent)
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "STREAMREC_DEBUG": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


def below_caller(printed: str) -> list[str]:
    """What a traceback has below the last line of the script, without the marks under it."""
    assert "# here" in printed, printed
    below = printed.rsplit("# here", 1)[1].splitlines()
    return [line for line in below if line.strip(" ^~")]


def data_in(folder: Path) -> None:
    """A good shard, and one whose 33rd record is damaged."""
    records = [b"record %d" % number for number in range(100)]
    write_shards(folder, [records, records], name="{}.tfrecord")
    flip_bit(folder / "1.tfrecord", 33 * 25)


FOR_LOOP = "for record in {}:  # here\n    pass\n"
ASYNC_LOOP = "async def main():\n{}\nasyncio.run(main())\n"

MISTAKES = {
    "a missing file": (
        FOR_LOOP.format('streamrec.TFRecordDataset("none.tfrecord")'),
        "NotFoundError: none.tfrecord: there is no such file: check the path",
    ),
    "a pattern without a match": (
        FOR_LOOP.format('streamrec.TFRecordDataset("none-*.tfrecord")'),
        "NotFoundError: none-*.tfrecord: no object matches",
    ),
    "a missing file, opened": (
        ASYNC_LOOP.format(
            '    async with streamrec.open_shard("none.tfrecord") as shard:  # here\n        pass'
        ),
        "NotFoundError: none.tfrecord: there is no such file",
    ),
    "a missing file, verified": (
        'streamrec.verify_sync("none.tfrecord")  # here\n',
        "NotFoundError: none.tfrecord: there is no such file",
    ),
    "a missing index": (
        'streamrec.RecordSource("none.index")  # here\n',
        "NotFoundError: none.index: there is no such file",
    ),
    "a damaged record": (
        FOR_LOOP.format('streamrec.TFRecordDataset("1.tfrecord")'),
        "CorruptRecordError: 1.tfrecord, record 33, byte ",
    ),
    "a damaged record in async for": (
        ASYNC_LOOP.format(
            '    async for record in streamrec.TFRecordDataset("1.tfrecord"):  # here\n        pass'
        ),
        "CorruptRecordError: 1.tfrecord, record 33, byte ",
    ),
    "a damaged record of an open shard": (
        ASYNC_LOOP.format(
            '    async with streamrec.open_shard("1.tfrecord") as shard:\n'
            "        async for record in shard:  # here\n            pass"
        ),
        "CorruptRecordError: 1.tfrecord, record 33, byte ",
    ),
    "next() after an error": (
        'records = iter(streamrec.TFRecordDataset("1.tfrecord"))\n'
        "try:\n    list(records)\nexcept streamrec.CorruptRecordError:\n    pass\n"
        "next(records)  # here\n",
        "ClosedError: this run ended with an error (CorruptRecordError: ",
    ),
    "an argument of a verb": (
        'streamrec.Dataset.range(3).batch("x")  # here\n',
        "TypeError: batch_size is 'x' (str): it must be a whole number",
    ),
    "an argument of a source": (
        "streamrec.TFRecordDataset(5)  # here\n",
        "TypeError: a file name is 5 (int)",
    ),
    "an argument that does not exist": (
        "streamrec.Dataset.range(3).batch(2, drop=True)  # here\n",
        "TypeError: Dataset.batch() got an unexpected keyword argument 'drop'",
    ),
    "an option of a store": (
        FOR_LOOP.format(
            'streamrec.TFRecordDataset("s3://b/k", storage_options={"endpoint": "http://x"})'
        ),
        "storage_options has 'endpoint'",
    ),
    "a description of a feature": (
        'streamrec.FixedLenFeature([-1], "int64")  # here\n',
        "Error: ",
    ),
    "a path that is a number": (
        "streamrec.open_shard(3)  # here\n",
        "TypeError: url is 3 (int): it must be a URL or path",
    ),
    "a path that is a number, to write": (
        "streamrec.TFRecordWriter(3)  # here\n",
        "TypeError: path is 3 (int): it must be a URL or path",
    ),
    "rows of different lengths": (
        "streamrec.Dataset.from_tensor_slices([[1], [2, 3]])  # here\n",
        "ValueError: [[1], [2, 3]] (list) is not an array: its rows have different lengths",
    ),
    "options of a writer": (
        'streamrec.TFRecordOptions("BZIP")  # here\n',
        "ValueError: compression_type is 'BZIP' (str): it must be one of",
    ),
    "a retry policy": (
        "streamrec.RetryPolicy(patience=-1)  # here\n",
        "ValueError: patience is -1; it is a time in seconds",
    ),
    "a string that is not compressed": (
        'streamrec.decode_compressed(b"abc", "GZIP")  # here\n',
        "CorruptRecordError: byte 0: this is not a GZIP stream",
    ),
    "a value that no feature has": (
        'streamrec.encode_example({"a": object()})  # here\n',
        "FeatureError: feature 'a': ",
    ),
    "a record that is not an Example": (
        'streamrec.parse_single_example(b"junk", {})  # here\n',
        "FeatureError: ",
    ),
    "a record that is not bytes": (
        'with streamrec.TFRecordWriter("new.tfrecord") as writer:\n    writer.write("x")  # here\n',
        "TypeError: a record is bytes, not str 'x'",
    ),
    "a record that is not bytes, written in a task": (
        ASYNC_LOOP.format(
            '    async with streamrec.ShardWriter("new.tfrecord") as writer:\n'
            '        await writer.write("x")  # here'
        ),
        "TypeError: a record is bytes, not str 'x'",
    ),
    "records that are not bytes": (
        'streamrec.encode_records(["x"])  # here\n',
        "TypeError: a record is bytes, not str 'x'",
    ),
    "elements that are not records": (
        'streamrec.Dataset.range(3).write_sync("new.tfrecord")  # here\n',
        "TypeError: element 0 of this run is ",
    ),
    "a number beyond the end": (
        'streamrec.write_index_sync("0.tfrecord", "0.index")\n'
        'streamrec.RecordSource("0.index")[100]  # here\n',
        "IndexError: record 100 of 100 does not exist",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows_the_callers_line_and_a_message(mistake: str, tmp_path: Path) -> None:
    data_in(tmp_path)
    source, message = MISTAKES[mistake]
    printed = run_script(tmp_path, source)
    assert PACKAGE not in printed
    assert not any(chain in printed for chain in CHAINS)
    below = below_caller(printed)
    assert message in below[0]
    assert len(below) <= 3


def test_a_missing_object_and_wrong_credentials_show_one_message(
    tmp_path: Path, s3_store: Store
) -> None:
    read = FOR_LOOP.format("streamrec.TFRecordDataset({!r}, storage_options={!r})")
    url = f"{s3_store.url}/tracebacks/none.tfrecord"
    wrong = {**s3_store.options, "secret": "another"}
    for options, message in ((s3_store.options, "NotFoundError"), (wrong, "PermissionDenied")):
        printed = run_script(tmp_path, read.format(url, dict(options)))
        assert PACKAGE not in printed
        assert "botocore" not in printed
        assert not any(chain in printed for chain in CHAINS)
        (below,) = below_caller(printed)
        assert f"{message}" in below
        assert "tracebacks/none.tfrecord: " in below


def test_the_error_of_a_dataloaders_worker_has_no_frame_of_this_package(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data_in(tmp_path)
    loader = (
        "torch.utils.data.DataLoader(streamrec.torch.IterableDataset("
        'streamrec.TFRecordDataset("1.tfrecord")), num_workers={}, batch_size=None)'
    )
    for workers in (0, 1):
        source = "import torch\nimport streamrec.torch\n" + FOR_LOOP.format(loader.format(workers))
        printed = run_script(tmp_path, source)
        assert PACKAGE not in printed
        assert "CorruptRecordError: 1.tfrecord, record 33" in printed.rstrip().splitlines()[-1]


def test_loaders_of_adapters_show_the_callers_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    data_in(tmp_path)
    loop = FOR_LOOP.format(
        'streamrec.torch.Loader(streamrec.TFRecordDataset("1.tfrecord").batch(2))'
    )
    printed = run_script(tmp_path, f"import streamrec.torch\n{loop}")
    assert PACKAGE not in printed
    assert "CorruptRecordError" in below_caller(printed)[0]


OUTER_FRAMES = "def outer(value):\n    return inner(value)\ndef inner(value):\n    return 1 / 0\n"
FUNCTIONS = {
    "map": "streamrec.Dataset.range(3).map(outer)",
    "a parallel map": "streamrec.Dataset.range(3).map(outer, num_parallel_calls=2)",
    "an async map": "streamrec.Dataset.range(3).map(aouter, num_parallel_calls=2)",
    "filter": "streamrec.Dataset.range(3).filter(outer)",
    "interleave": "streamrec.Dataset.range(3).interleave(outer)",
    "scan": "streamrec.Dataset.range(3).scan(0, lambda state, value: outer(value))",
    "a generator": "streamrec.Dataset.from_generator(lambda: map(outer, [1]))",
    "an async generator": "streamrec.Dataset.from_generator(agenerate)",
    "reduce": "[streamrec.Dataset.range(3).reduce(0, lambda state, value: outer(value))]",
    "apply": "streamrec.Dataset.range(3).apply(outer)",
}


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_the_callers_function_keeps_its_frames(verb: str, tmp_path: Path) -> None:
    more = "async def aouter(value):\n    return inner(value)\n"
    more += "async def agenerate():\n    yield inner(1)\n"
    printed = run_script(tmp_path, OUTER_FRAMES + more + FOR_LOOP.format(FUNCTIONS[verb]))
    assert PACKAGE not in printed
    assert below_caller(printed)[0].lstrip().startswith("File ")
    assert "in inner" in printed
    assert "ZeroDivisionError: division by zero" in printed


def test_a_function_of_python_or_in_c_shows_nothing_of_this_package(tmp_path: Path) -> None:
    words = 'streamrec.Dataset.from_tensor_slices(["1", "x"]).map'
    printed = run_script(tmp_path, FOR_LOOP.format(f"{words}(int)"))
    assert PACKAGE not in printed
    assert "in map: your function int, element 1" in below_caller(printed)[1]
    printed = run_script(tmp_path, "import json\n" + FOR_LOOP.format(f"{words}(json.loads)"))
    assert PACKAGE not in printed
    assert "JSONDecodeError: Expecting value" in printed


def test_the_callers_cause_and_context_stay(tmp_path: Path) -> None:
    source = (
        'try:\n    {}["x"]\nexcept KeyError:\n    streamrec.Dataset.range(3).batch(0)  # here\n'
    )
    printed = run_script(tmp_path, source)
    assert "KeyError: 'x'" in printed
    assert "During handling of the above" in printed
    assert len(below_caller(printed)) == 1


def test_a_variable_brings_everything_back(tmp_path: Path) -> None:
    source, _ = MISTAKES["a missing file"]
    printed = run_script(tmp_path, source, STREAMREC_DEBUG="1")
    assert printed.count(PACKAGE) > 10
    assert "FileNotFoundError: [Errno 2]" in printed
    assert run_script(tmp_path, source, STREAMREC_DEBUG="0").count(PACKAGE) == 0


def test_an_error_keeps_its_type_attributes_and_notes(tmp_path: Path) -> None:
    data_in(tmp_path)
    path = str(tmp_path / "1.tfrecord")
    with pytest.raises(CorruptRecordError) as damaged:
        list(streamrec.TFRecordDataset(path).batch(2))
    error = damaged.value
    assert (error.path, error.record) == (path, 33)
    assert error.offset == error.args[2]
    with pytest.raises(KeyError) as failed:
        list(streamrec.TFRecordDataset(path).map(lambda record: {}[record]))
    assert failed.value.__notes__[0].startswith("in map: your function")


def test_a_hidden_cause_stays_reachable(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as missing:
        list(streamrec.TFRecordDataset(str(tmp_path / "none.tfrecord")))
    assert missing.value.__cause__ is None
    assert missing.value.__suppress_context__
    assert isinstance(missing.value.__context__, FileNotFoundError)


# The border itself.


def frames_of(function: Callable[[], Any]) -> list[str]:
    """The names of the functions in the traceback of the error that a function raises."""
    with pytest.raises(Exception) as caught:
        function()
    return [entry.name for entry in caught.traceback][1:]


def in_package(source: str) -> dict[str, Any]:
    """Runs code as if it were a module of the package."""
    namespace: dict[str, Any] = {"__name__": "streamrec.made_up", "border": border}
    exec(compile(source, "made_up.py", "exec"), namespace)
    return namespace


def test_an_error_that_may_be_a_bug_keeps_every_frame() -> None:
    made = in_package(
        "def count(value):\n    return len(value)\n@border\ndef public(value):\n"
        "    return count(value)\n"
    )
    assert frames_of(lambda: made["public"](1))[-2:] == ["public", "count"]


def test_a_refused_argument_keeps_no_frame_of_the_package() -> None:
    made = in_package(
        "def check(value):\n    raise ValueError(value)\n@border\ndef public(value):\n"
        "    check(value)\n"
    )
    assert frames_of(lambda: made["public"](1)) == ["<lambda>"]


def test_a_border_within_a_border_keeps_no_frame_of_the_package() -> None:
    made = in_package(
        "@border\ndef check(value):\n    raise ValueError(value)\n@border\ndef public(value):\n"
        "    check(value)\n"
    )
    assert frames_of(lambda: made["public"](1)) == ["<lambda>"]


def test_a_border_keeps_what_a_function_is_called_and_takes() -> None:
    assert streamrec.Dataset.batch.__name__ == "batch"
    assert "batch_size" in streamrec.Dataset.batch.__annotations__


def test_methods_and_properties_of_a_class_become_borders() -> None:
    @border_methods
    class Public:
        def __len__(self) -> int:
            raise NotFoundError("none")

        @property
        def size(self) -> int:
            raise NotFoundError("none")

        @classmethod
        def make(cls) -> None:
            raise NotFoundError("none")

    for call in (lambda: len(Public()), lambda: Public().size, Public.make):
        frames = frames_of(call)
        assert "call" not in frames
