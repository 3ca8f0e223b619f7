"""How much of the package a plain read executes: the shorter the path of the data, the easier the
code is to follow.

The read is one pass of `TFRecordDataset(urls, num_parallel_reads=2).batch(64)` over two shards of
200 records of 100 kB, in a new interpreter. Functions and lambdas count once each; comprehensions,
class bodies and modules do not.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import streamrec
from tests.runs import in_new_interpreter
from tests.servers.real import Store

S3_CEILING = {"files": 50, "functions": 388}
LOCAL_CEILING = {"files": 44, "functions": 304}
"""They may only fall."""

READ = """
import json, sys, threading
import streamrec

urls, options = json.loads(sys.argv[1])
package, seen = streamrec.__path__[0], set()

def note(frame, event, argument):
    code = frame.f_code
    is_function = code.co_flags & 1 and code.co_name not in ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
    if event == "call" and is_function and code.co_filename.startswith(package):
        seen.add((code.co_filename, code.co_qualname, code.co_firstlineno))

threading.setprofile(note)
sys.setprofile(note)
dataset = streamrec.TFRecordDataset(urls, num_parallel_reads=2, storage_options=options)
records = sum(len(batch) for batch in dataset.batch(64))
sys.setprofile(None)
print(json.dumps({"records": records, "seen": sorted(seen)}))
"""  # noqa: E501


def executed(urls: list[str], options: Mapping[str, Any]) -> dict[str, int]:
    """How many files and functions of ours each of three passes executes; under load, one may also
    wait or hedge.
    """
    passes = [
        json.loads(in_new_interpreter(READ, json.dumps([urls, dict(options)]))) for _ in range(3)
    ]
    assert [each["records"] for each in passes] == [400] * 3
    seen = set.intersection(*({tuple(place) for place in each["seen"]} for each in passes))
    return {"files": len({file for file, _, _ in seen}), "functions": len(seen)}


def write_shards(prefix: str, options: Mapping[str, Any]) -> list[str]:
    urls = [f"{prefix}/{index}.tfrecord" for index in range(2)]
    for url in urls:
        with streamrec.TFRecordWriter(url, storage_options=options) as writer:
            for index in range(200):
                writer.write(index.to_bytes(4, "little") * 25_000)
    return urls


def test_a_plain_read_from_s3(s3_store: Store) -> None:
    counts = executed(
        write_shards(f"{s3_store.url}/plain_read", s3_store.options), s3_store.options
    )
    assert all(counts[name] <= ceiling for name, ceiling in S3_CEILING.items()), counts


def test_a_plain_read_of_local_files(tmp_path: Path) -> None:
    counts = executed(write_shards(str(tmp_path), {}), {})
    assert all(counts[name] <= ceiling for name, ceiling in LOCAL_CEILING.items()), counts
