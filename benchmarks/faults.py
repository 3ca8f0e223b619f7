"""The table of faults: what each client does when the store misbehaves, after how long, with how
many requests.

    python -m benchmarks.faults [--only "reset,stall"] [--parallel 12]
        measures, and writes the table
    python -m benchmarks.faults --table
        writes the table from the data

Every cell is one process that reads one object of 4 MB from a simulated store of its own, whose
faults come from a script: the same in each run. The clients are as they come, in their default
settings: s3fs and gcsfs by `fs.open(url).read()`, obstore by `obstore.get(store, key).bytes()`,
streamrec by a `TFRecordDataset` (where reading begins in the middle: a stream of its storage).
streamrec alone has a shorter patience (`faultclients.POLICY`), because by default it waits for five
minutes. What was read is compared with what is stored. A cell that has not ended after 90 s is left
there.

The data goes to results/faults.json, the tables to docs/faults.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.program import Names, run
from benchmarks.harness.results import load, save
from streamrec import encode_records
from tests.servers.faults import NO_FAULTS, Faults, decide
from tests.servers.objectstore import ObjectStore

DOCS: Final = Path(__file__).parent.parent / "docs" / "faults.md"
LIMIT: Final = 90.0
MIDDLE: Final = 1_000_003
KEY: Final = "bucket/shard"
STORES: Final[Mapping[str, Sequence[str]]] = {
    "s3": ("streamrec", "s3fs", "obstore"),
    "gcs": ("streamrec", "gcsfs", "obstore"),
}


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes:
        title: What the table calls it.
        does: What streamrec does then.
        faults: Of the simulated store.
        start: Where reading begins.
        place: Where the client asks in place of the store: "missing", "refused", "away" or
            "unknown".
    """

    title: str
    does: str
    faults: Faults = NO_FAULTS
    start: int = 0
    place: str = ""


def once(*names: str, **more: Any) -> Faults:
    """The faults of the first requests; all that follow go well."""
    return replace(NO_FAULTS, **{"script": names, "at": 0.5, **more})


def always(name: str, **more: Any) -> Faults:
    """The same fault for every request."""
    return replace(NO_FAULTS, **{name: 1.0, "at": 0.5, **more})


def late_once() -> Faults:
    """The first answer comes after 30 s, the others at once: a seed for which it is drawn so."""
    late = replace(NO_FAULTS, slow=0.2, slow_first_byte=30.0)
    for seed in range(10_000):
        drawn = replace(late, seed=seed)
        reads = [decide(drawn, "read", KEY, ordinal).slow for ordinal in range(6)]
        if reads == [True] + [False] * 5 and not any(
            decide(drawn, "stat", KEY, n).slow for n in range(3)
        ):
            return drawn
    raise AssertionError("no such seed")


ROWS: Final[Mapping[str, Row]] = {
    "none": Row("none", "reads"),
    "503": Row("503, once", "tries again after a short wait", once("unavailable")),
    "503-always": Row(
        "503, always", "waits for its patience, then raises the error", always("unavailable")
    ),
    "retry-after": Row(
        "503 with Retry-After: 3, once",
        "waits as long as the store asks",
        once("unavailable", retry_after=3),
    ),
    "429": Row("429, once", "as for 503", once("unavailable", status=429)),
    "429-always": Row("429, always", "as for 503", always("unavailable", status=429)),
    "reset": Row("reset in mid-body, once", "continues at the byte reached", once("reset")),
    "reset-five": Row(
        "reset in mid-body, five times in a row",
        "continues, since each attempt makes progress",
        once(*["reset"] * 5),
    ),
    "reset-at-once": Row(
        "each body reset before its first byte",
        "waits for its patience, then raises the error",
        always("reset", at=0.0),
    ),
    "stall": Row(
        "stall in mid-body, once",
        "abandons the body, and continues at the byte reached",
        once("stall"),
    ),
    "stall-always": Row(
        "every body stalls before its first byte", "gives up", always("stall", at=0.0)
    ),
    "slow": Row(
        "first byte after 30 s, once", "abandons the request, and sends it again", late_once()
    ),
    "truncated": Row(
        "a body that is short, and says so",
        "continues, since it has pinned the size and the version",
        once("reset", "truncate"),
    ),
    "short": Row(
        "a body that ends before its Content-Length", "continues at the byte reached", once("cut")
    ),
    "content-range": Row(
        "wrong Content-Range, once",
        "refuses the answer, and sends the request again",
        once("wrong_content_range"),
        MIDDLE,
    ),
    "ignored-range": Row(
        "200 for 206, once",
        "refuses the answer, and sends the request again",
        once("ignore_range"),
        MIDDLE,
    ),
    "corrupt": Row(
        "a flipped byte", "an error after all records before it, thanks to CRC32C", once("corrupt")
    ),
    "changed": Row(
        "object replaced between two requests",
        "an error: it never mixes two versions",
        once("reset", "change"),
    ),
    "missing": Row("missing object", "an error at once", place="missing"),
    "denied": Row("permission denied", "an error at once", always("unavailable", status=403)),
    "expired": Row(
        "expired credentials",
        "an error, unless there are newer ones",
        always("unavailable", status=400),
    ),
    "refused": Row(
        "connection refused", "waits for a first contact, then raises the error", place="refused"
    ),
    "away": Row(
        "server away: connections get no answer",
        "waits for a first contact, then raises the error",
        place="away",
    ),
    "unknown": Row(
        "host name that DNS does not know",
        "waits for a first contact, then raises the error",
        place="unknown",
    ),
}


@dataclass(frozen=True)
class Cell:
    """What one client did.

    Attributes:
        outcome: "data", "wrong data", "error" or "waits".
        error: The exception's class, or "".
        seconds: Until the outcome.
        requests: That the store saw; None where it was not the store that was asked.
    """

    outcome: str
    error: str
    seconds: float
    requests: int | None


def measure(store: str, client: str, row: Row, directory: str, warm: str) -> Cell:
    """One cell: a store, a process that reads from it, and what came of it.

    Args:
        store: "s3" or "gcs".
        client: One of `benchmarks.faultclients.CLIENTS`.
        row: The fault.
        directory: What the store serves.
        warm: The URL of a store without faults.
    """
    with (
        ObjectStore(directory, faults_of(row, store)) as server,
        asked_at(row.place, server.url) as url,
    ):
        key = KEY + "-missing" if row.place == "missing" else KEY
        told, seconds = run_client(
            client, warm=warm, store=store, url=url, key=key, start=row.start
        )
        data = Path(directory, KEY).read_bytes()[row.start :]
        requests = (
            None if url != server.url else server.counters.requests + server.counters.in_flight
        )
        fine = told.get("hash") == hashlib.sha256(data).hexdigest()
        outcome = (
            "waits"
            if not told
            else "error"
            if "error" in told
            else "data"
            if fine
            else "wrong data"
        )
        return Cell(
            outcome, str(told.get("error", "")), round(told.get("seconds", seconds), 1), requests
        )


def faults_of(row: Row, store: str) -> Faults:
    """The faults of a row: Google says with another status that credentials have expired."""
    if row is ROWS["expired"] and store == "gcs":
        return replace(row.faults, status=401)
    return row.faults


@contextlib.contextmanager
def asked_at(place: str, url: str) -> Iterator[str]:
    """Where the client is sent: to the store, or to where there is none."""
    with contextlib.ExitStack() as stack:
        if place == "unknown":
            url = "http://no-such-host.invalid"
        elif place in ("refused", "away"):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            if (
                place == "away"
            ):  # with its queue full, the kernel leaves further connections without an answer
                listener.listen(0)
                for _ in range(2):
                    filler = stack.enter_context(socket.socket())
                    filler.setblocking(False)
                    filler.connect_ex(listener.getsockname())
        yield url


def run_client(client: str, **task: Any) -> tuple[dict[str, Any], float]:
    """Runs a client in a process of its own; what it told, or nothing after the limit, and the
    seconds.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    environment["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = (
        "false"  # else it asks a Google service about the bucket
    )
    command = [sys.executable, "-m", "benchmarks.faultclients", client, json.dumps(task)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "go\n"
        began = time.monotonic()
        killer = threading.Timer(LIMIT, process.kill)
        killer.start()
        try:
            line = process.stdout.readline()
        finally:
            killer.cancel()
        process.kill()
        return (json.loads(line) if line else {}), time.monotonic() - began


def measure_all(names: Sequence[str], parallel: int) -> list[dict[str, Any]]:
    """All cells, so many at a time: most of them only wait."""
    tasks = [
        (store, client, name)
        for store, clients in STORES.items()
        for name in names
        for client in clients
    ]
    with tempfile.TemporaryDirectory() as directory, ObjectStore(directory) as fair:
        Path(directory, "bucket").mkdir()
        for key, count in ((KEY, 4_000), ("bucket/warm", 2_000)):
            Path(directory, key).write_bytes(
                encode_records(random.Random(1).randbytes(1_000) for _ in range(count))
            )

        def one(task: tuple[str, str, str]) -> dict[str, Any]:
            store, client, name = task
            cell = measure(store, client, ROWS[name], directory, fair.url)
            print(f"{store:4} {name:14} {client:10} {words(cell)}", flush=True)
            return {"store": store, "fault": name, "client": client, **dataclasses.asdict(cell)}

        with ThreadPoolExecutor(parallel) as pool:
            return list(pool.map(one, tasks))


def words(cell: Cell) -> str:
    """A cell as the table has it.

    >>> words(Cell("error", "ThrottledError", 4.0, 6)), words(Cell("waits", "", 90.0, 1))
    ('`ThrottledError`, 4.0 s, 6', '**still waits after 90 s**, 1')
    """
    found = {
        "data": "all data",
        "wrong data": "**wrong data, no error**",
        "error": f"`{cell.error}`",
        "waits": f"**still waits after {LIMIT:.0f} s**",
    }[cell.outcome]
    time_taken = "" if cell.outcome == "waits" else f", {cell.seconds:.1f} s"
    return f"{found}{time_taken}{'' if cell.requests is None else f', {cell.requests}'}"


def tables(results: Mapping[str, Any]) -> str:
    """Markdown from the data."""
    names = [field.name for field in dataclasses.fields(Cell)]
    cells = {
        (row["store"], row["fault"], row["client"]): Cell(*[row[name] for name in names])
        for row in results["rows"]
    }
    lines = []
    for store, clients in STORES.items():
        lines += [f"### {'S3' if store == 's3' else 'Google Cloud Storage'}", ""]
        lines += [
            f"| fault | what streamrec does | {' | '.join(clients)} |",
            "|---" * (len(clients) + 2) + "|",
        ]
        for name, row in ROWS.items():
            if (store, name, "streamrec") in cells:
                found = " | ".join(words(cells[store, name, client]) for client in clients)
                lines.append(f"| {row.title} | {row.does} | {found} |")
        lines.append("")
    return "\n".join(lines)


def with_tables(text: str, made: str) -> str:
    """The page with the tables between its two marks."""
    head, begin, rest = text.partition("<!-- begin: benchmarks/faults.py -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    assert begin, "the page has lost its first mark"
    assert end, "the page has lost its last mark"
    return f"{head}{begin}\n{made}\n{end}{tail}"


def main(*, only: Names = tuple(ROWS), parallel: int = 12, table: bool = False) -> None:
    """Measures, unless only the table is wanted, and writes the table."""
    if not table:
        rows = measure_all(only, parallel)
        if set(only) != set(ROWS):
            return
        save("faults", ["s3fs", "gcsfs", "obstore", "aiohttp"], rows=rows)
    DOCS.write_text(with_tables(DOCS.read_text(), tables(load("faults"))))


if __name__ == "__main__":
    run(main)
