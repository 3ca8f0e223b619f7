"""How many files of the package a plain read executes: who follows the data must open them.

The read is one pass of `TFRecordDataset(urls, num_parallel_reads=2).batch(64)` over two shards of
200 records of 100 kB, in a new interpreter. Importing a file does not count, calling one of its
functions does.

Before you raise a limit, look for a file that the read can do without: one that is asked only
whether something is off, one whose single function belongs to its only caller, or two files with
one concept. Files that hold one rule with a unit test beside it (`traffic`, `knee_search`,
`block_sizes`, `range_room`, `latency`) are worth their place in the list.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamrec
from tests.runs import in_new_interpreter
from tests.servers.real import Store

S3_FILES = 70
LOCAL_FILES = 61

ADVICE = "let a plain read do without one of these, or keep one concept in one file"

READ = """
import json, sys, threading
import streamrec

urls, options = json.loads(sys.argv[1])
package, seen = streamrec.__path__[0], set()

def note(frame, event, argument):
    code = frame.f_code
    inner = code.co_name.startswith("<") and code.co_name != "<lambda>"
    if event != "call" or inner or not code.co_flags & 1 or code.co_filename in seen:
        return
    if code.co_filename.startswith(package) and not is_importing(frame):
        seen.add(code.co_filename)

def is_importing(frame):
    # Decorators and the like run while a file is imported, and not for the read. A lazy package
    # imports a file when its name is first used.
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(package) and code.co_name in ("<module>", "import_name"):
            return True
        frame = frame.f_back
    return False

threading.setprofile(note)
sys.setprofile(note)
dataset = streamrec.TFRecordDataset(urls, num_parallel_reads=2, storage_options=options)
records = sum(len(batch) for batch in dataset.batch(64))
sys.setprofile(None)
print(json.dumps({"records": records, "seen": sorted(seen)}))
"""


def files_executed(urls: list[str], options: Mapping[str, Any]) -> list[str]:
    """The files of the package that each of three passes executes; under load, one pass may also
    wait or hedge.
    """
    passes = [
        json.loads(in_new_interpreter(READ, json.dumps([urls, dict(options)]))) for _ in range(3)
    ]
    assert [each["records"] for each in passes] == [400] * 3
    return sorted(set.intersection(*(set(each["seen"]) for each in passes)))


def write_shards(prefix: str, options: Mapping[str, Any]) -> list[str]:
    urls = [f"{prefix}/{index}.tfrecord" for index in range(2)]
    for url in urls:
        with streamrec.TFRecordWriter(url, storage_options=options) as writer:
            for index in range(200):
                writer.write(index.to_bytes(4, "little") * 25_000)
    return urls


def test_a_plain_read_from_s3(s3_store: Store) -> None:
    urls = write_shards(f"{s3_store.url}/plain_read", s3_store.options)
    files = files_executed(urls, s3_store.options)
    assert len(files) <= S3_FILES, f"{len(files)} files: {ADVICE}: {files}"


def test_a_plain_read_of_local_files(tmp_path: Path) -> None:
    files = files_executed(write_shards(str(tmp_path), {}), {})
    assert len(files) <= LOCAL_FILES, f"{len(files)} files: {ADVICE}: {files}"
