"""A script that ends while an iterator or a writer is open says nothing about it, or one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.conftest import needs, write_numbered

PROGRAM_HEAD = """
import threading
import streamrec
dataset = streamrec.Dataset.range(1000).batch(10)
records = streamrec.TFRecordDataset("a.tfrecord")
"""

KEEP_UNTIL_EXIT = """
next(kept)
threading.kept = kept  # so that it is dropped when modules have lost their names
"""

ITERATORS = {
    "iterate": "kept = dataset.iterate()",
    "records": "kept = records.iterate()",
    "as_numpy_iterator": "kept = dataset.as_numpy_iterator()",
    "traced": "kept = dataset.iterate(trace='trace.json')",
    "arrow": "kept = records.batch(2).to_arrow()",
}

TORCH = {
    "Loader": "kept = iter(streamrec.torch.Loader(dataset))",
    "IterableDataset": "kept = iter(streamrec.torch.IterableDataset(dataset))",
    "DataLoader": "kept = iter(DataLoader(streamrec.torch.IterableDataset(dataset), None))",
    "DataLoader with a worker": "kept = iter(DataLoader(streamrec.torch.IterableDataset(dataset), None, num_workers=1))",  # noqa: E501
}

OTHER_LOADERS = {
    "jax": "import streamrec.jax\nkept = iter(streamrec.jax.Loader(dataset))",
    "grain": "import streamrec.grain\nkept = iter(streamrec.grain.IterDataset(dataset).map(len))",
    "ray": "from streamrec.ray import TFRecordDatasource\n"
    "kept = iter(TFRecordDatasource('a.tfrecord').get_read_tasks(1)[0].read_fn())",
}

ASYNC_PROGRAM = """
import asyncio
async def begin():
    threading.kept = {}
    await {}
"""

COROUTINES = {
    "aiterate": ("dataset.aiterate()", "anext(threading.kept)"),
    "open_shard": (
        "await streamrec.open_shard('a.tfrecord').__aenter__()",
        "anext(threading.kept)",
    ),
    "ShardWriter": (
        "await streamrec.ShardWriter('b-{shard}.tfrecord').__aenter__()",
        "threading.kept.write(b'record')",
    ),
}

PROGRAMS = [
    *(pytest.param(code + KEEP_UNTIL_EXIT, id=name) for name, code in ITERATORS.items()),
    *(
        pytest.param(
            "from torch.utils.data import DataLoader\nimport streamrec.torch\n"
            + code
            + KEEP_UNTIL_EXIT,
            id=name,
            marks=needs("torch", pytest.mark.peer),
        )
        for name, code in TORCH.items()
    ),
    *(
        pytest.param(code + KEEP_UNTIL_EXIT, id=name, marks=needs(name, pytest.mark.peer))
        for name, code in OTHER_LOADERS.items()
    ),
    *(
        pytest.param(ASYNC_PROGRAM.format(*code) + run, id=f"{name}, {how}")
        for name, code in COROUTINES.items()
        for how, run in {
            "loop closed": "asyncio.run(begin())",
            "loop open": "loop = asyncio.new_event_loop()\nloop.run_until_complete(begin())",
        }.items()
    ),
    pytest.param(
        "threading.kept = streamrec.TFRecordWriter('b.tfrecord')\nthreading.kept.write(b'record')",
        id="TFRecordWriter",
    ),
]


def errors_at_exit(code: str, directory: Path) -> str:
    """What a script prints on standard error; it must succeed."""
    write_numbered(directory / "a.tfrecord", 1000)
    script = directory / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        capture_output=True,
        text=True,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.timeout(180)
@pytest.mark.parametrize("code", PROGRAMS)
def test_a_script_that_ends_with_something_open_prints_no_traceback(
    code: str, tmp_path: Path
) -> None:
    said = errors_at_exit(PROGRAM_HEAD + code, tmp_path)
    lines = [line for line in said.splitlines() if "was dropped without close()" not in line]
    assert lines == []
    assert len(said.splitlines()) == ("Writer" in code)  # that nothing of it is kept
