"""The table of docs/benchmarks.md, made from the data in `benchmarks/results/`.

    python -m benchmarks.table [--check]

`make bench` measures all rows and then writes the table. Rows are sorted: first those where
streamrec is slowest or takes most processor time beside its peer. `--check` writes nothing; it
fails where the page shows another table.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- the table, by benchmarks.table -->", "<!-- the end of the table -->"
HEADER = [
    "| work | compared with | speed | CPU | streamrec | module |",
    "|---|---|---|---|---|---|",
]

Data = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        module: The benchmark, and so the file of its data.
        work: What is done.
        peer: What it is compared with.
        speed: streamrec's speed, divided by the peer's; None where the store or the network limits
            both.
        cpu: streamrec's processor time, divided by the peer's; None where it was not measured.
        figure: One figure of streamrec's own.
    """

    module: str
    work: str
    peer: str
    speed: float | None = None
    cpu: float | None = None
    figure: str = ""

    @property
    def rank(self) -> float:
        """Below 1 where the peer is better, by speed or by processor time."""
        return min(self.speed or float("inf"), 1 / self.cpu if self.cpu else float("inf"))

    def __str__(self) -> str:
        cells = [
            self.work,
            self.peer,
            digits(self.speed),
            digits(self.cpu),
            self.figure,
            self.module,
        ]
        return f"| {' | '.join(cells)} |"


def load(name: str) -> Data:
    """A benchmark's data."""
    data: Data = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def find(rows: list[Data], **wanted: object) -> Data:
    """The one row that has these values."""
    [found] = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return found


def digits(value: float | None, places: int = 2) -> str:
    """A number with this many significant digits.

    >>> digits(0.714), digits(171.3), digits(3_140_000, 3)
    ('0.71', '170', '3,140,000')
    """
    if value is None:
        return ""
    rounded = float(f"{value:.{places}g}")
    return f"{rounded:,.0f}" if rounded >= 10 ** (places - 1) else f"{rounded:g}"


def amount(value: float, unit: str) -> str:
    """A figure of one machine."""
    return f"{digits(value, 3)} {unit}"


def local(data: Data) -> Iterator[Row]:
    for row in data["rows"]:
        size = amount(row["record_bytes"], "B") if row["record_bytes"] < 1000 else "110 kB"
        figure = amount(row["mb_s"]["streamrec"], "MB/s")
        yield Row(
            "local",
            f"a local file in batches, {size}",
            "tf.data on one core",
            row["ratio"],
            None,
            figure,
        )


def pipeline(data: Data) -> Iterator[Row]:
    works = {
        "four": "records of four features, `shuffle(100_000)`, to columns",
        "forty": "records of forty features, `shuffle(100_000)`, to columns",
        "images": "images of 110 kB, `shuffle(2000)`, as `BytesColumn`",
    }
    for kind, work in works.items():
        row = find(data["rows"], row=kind)
        peer, figure = row["tf.data"], amount(row["streamrec"]["records_s"], "records/s")
        yield Row(
            "pipeline",
            work,
            "tf.data at its best, two cores",
            peer["ratio"],
            1 / peer["cpu_ratio"],
            figure,
        )


def parse(data: Data) -> Iterator[Row]:
    for name, how in (("", "as `bytes` objects"), (", string_columns", "`string_columns=True`")):
        row = find(data["rows"], name=f"image bytes and label{name}", way="memory")
        work, figure = (
            f"images out of records in memory, {how}",
            amount(row["streamrec"], "records/s"),
        )
        yield Row("parse", work, "TensorFlow's `parse_example`", row["ratio"], None, figure)


def encode(data: Data) -> Iterator[Row]:
    row = find(data["rows"], records="four scalar features")
    figure = amount(row["records_per_second"]["encode_examples"], "records/s")
    yield Row(
        "encode", "encoding columns: four scalars", "`tf.train.Example`", row["ratio"], None, figure
    )
    row = find(data["rows"], records="eight dense float[64]")
    figure = amount(row["records_per_second"]["encode_example"], "records/s")
    work = "`encode_example`, eight float[64], one record at a time"
    yield Row("encode", work, "`tf.train.Example`", row["ratio_record_by_record"], None, figure)


def stream(data: Data) -> Iterator[Row]:
    for server, client, records, block, where in (
        ("s3", "s3fs", "680 B", 1024, "SeaweedFS, 680 B, 1,024 records in turn"),
        ("nginx", "s3fs", "680 B", 1, "nginx as S3, 680 B, record by record"),
        ("nginx", "s3fs", "110 kB", 1, "nginx as S3, 110 kB, record by record"),
        ("gcs", "gcsfs", "110 kB", 1, "fake-gcs-server, 110 kB, record by record"),
    ):
        row = find(data["rows"], server=server, records=records, block_length=block)
        peer = f"{client}' GETs, which drop the bytes"
        yield Row(
            "stream",
            where,
            peer,
            row["speed_ratio"],
            row["cpu_ratio"],
            amount(row["streamrec_mb_s"], "MB/s"),
        )


def tls(data: Data) -> Iterator[Row]:
    row = find(data["rows"], server="nginx", tls=True)["streamrec"]
    figure = amount(row["mb_s"], "MB/s")
    sockets = "Python's `ssl` sockets, which drop the bytes"
    yield Row(
        "tls",
        "TLS from nginx, 110 kB",
        sockets,
        row["mb_s_of_sockets"],
        row["cpu_of_sockets"],
        figure,
    )
    bare = "s3fs' GETs, which drop the bytes"
    yield Row(
        "tls", "TLS from nginx, 110 kB", bare, row["mb_s_of_bare"], row["cpu_of_bare"], figure
    )
    obstore = "obstore's streams, which drop the bytes"
    yield Row(
        "tls",
        "TLS from nginx, 110 kB",
        obstore,
        row["mb_s_of_obstore"],
        row["cpu_of_obstore"],
        figure,
    )


def paced(data: Data) -> Iterator[Row]:
    for name, work, side, peer in (
        ("large", "one 1 GB shard, far store", "s3fs_open", "`fs.open()` of s3fs"),
        ("large", "one 1 GB shard, far store", "gcsfs_open", "`fs.open()` of gcsfs"),
        ("small", "1,000 shards of 100 kB, far store", "s3fs_open", "`fs.open()` of s3fs"),
        ("small", "1,000 shards of 100 kB, far store", "bare", "s3fs' GETs, 16 at a time"),
        (
            "crawl",
            "16 shards, one connection in fifty slow, far store",
            "bare",
            "s3fs' GETs, 16 at a time",
        ),
    ):
        row = find(data["rows"], row=name)
        ours, theirs = row["dataset"], row[side]
        speed, cpu = ours["mb_s"] / theirs["mb_s"], ours["cpu_s_gb"] / theirs["cpu_s_gb"]
        yield Row("paced", work, peer, speed, cpu, amount(ours["mb_s"], "MB/s"))


def small_shards(data: Data) -> Iterator[Row]:
    ours, theirs = (
        find(data["rows"], side="streamrec, in turn"),
        find(data["rows"], side="tf.data, in turn"),
    )
    speed, cpu = theirs["us"] / ours["us"], ours["cpu_us"] / theirs["cpu_us"]
    work = "10,000 local shards of 20 records, 16 in turn"
    yield Row("small_shards", work, "tf.data", speed, cpu, amount(ours["us"], "µs a shard"))
    ours, theirs = find(data["s3"], side="streamrec"), find(data["s3"], side="client")
    figure = amount(ours["cpu_us"], "µs of CPU a shard")
    work = "2,000 shards of 20 records from SeaweedFS"
    yield Row(
        "small_shards", work, "s3fs' `_cat_file`", None, ours["cpu_us"] / theirs["cpu_us"], figure
    )


def writing(data: Data) -> Iterator[Row]:
    for size, name in ((84, "84 B"), (110_000, "110 kB")):
        row = find(data["rows"], row=f"write {size} B")
        speed = row["mb_s"]["records"] / row["mb_s"]["tensorflow"]
        cpu = row["cpu_s_gb"]["records"] / row["cpu_s_gb"]["tensorflow"]
        figure = amount(row["mb_s"]["records"], "MB/s")
        yield Row("writing", f"files, records of {name}", "TensorFlow's writer", speed, cpu, figure)


def compression(data: Data) -> Iterator[Row]:
    for name, side, peer, work in (
        ("inflate", "one at a time", "isal alone", "GZIP, one shard at a time, one core"),
        ("inflate, two cores", "four at a time", "tf.data", "GZIP, four shards in turn, two cores"),
    ):
        row = find(data["rows"], row=name)
        speed = row["mb_s"][side] / row["mb_s"][peer]
        cpu = row["cpu_s_gb"][side] / row["cpu_s_gb"][peer]
        named = {"isal alone": "ISA-L alone"}.get(peer, peer)
        yield Row("compression", work, named, speed, cpu, amount(row["mb_s"][side], "MB/s"))


def uploads(data: Data) -> Iterator[Row]:
    for tls, way in ((False, "plain HTTP"), (True, "TLS")):
        row = find(data["rows"], record=110_000, tls=tls)["cpu_s_gb"]
        work, figure = f"uploads of batches, {way}, 110 kB", amount(row["frames"], "CPU-s/GB")
        peer = "a bare PUT, signed before"
        yield Row("uploads", work, peer, None, row["frames"] / row["http.client"], figure)
        if tls:
            yield Row(
                "uploads",
                work,
                "botocore's `put_object`",
                None,
                row["frames"] / row["botocore"],
                figure,
            )


def global_shuffle(data: Data) -> Iterator[Row]:
    for records, side, work in (
        ("1kB", "blocks", "global shuffle in blocks, 1 kB"),
        ("110kB", "blocks", "global shuffle in blocks, 110 kB"),
        ("110kB", "exact", "global shuffle, exact, 110 kB"),
    ):
        row = find(data["rows"], records=records)
        ours, plain = row[side], row["plain"]
        cpu, figure = ours["cpu_s_gb"] / plain["cpu_s_gb"], amount(ours["mb_s"], "MB/s")
        yield Row("global_shuffle", work, "the plain data set", ours["speed_ratio"], cpu, figure)


def images(data: Data) -> Iterator[Row]:
    row = find(data["rows"], images="500 x 375")
    cpu = row["cpu_ms_an_image"]["streamrec"] / row["cpu_ms_an_image"]["tf.data"]
    figure = amount(row["images_a_second"]["streamrec"], "images/s")
    yield Row(
        "images",
        "JPEGs of 500 x 375, parsed and decoded",
        "tf.data",
        row["ratio_to"]["tf.data"],
        cpu,
        figure,
    )


def loaders(data: Data) -> Iterator[Row]:
    for kind, name in (("images", "JPEGs"), ("tokens", "tokens")):
        ours = find(data["rows"], kind=kind, side="DataLoader, 0 workers")
        theirs = find(data["rows"], kind=kind, side="WebDataset")
        speed, cpu = ours["samples_s"] / theirs["samples_s"], ours["cpu_ms"] / theirs["cpu_ms"]
        figure = amount(ours["samples_s"], "samples/s")
        yield Row(
            "loaders",
            f"a DataLoader of {name}, no workers",
            "WebDataset, two workers",
            speed,
            cpu,
            figure,
        )
        if kind == "images":
            work, figure = "the first batch of a DataLoader", amount(ours["first_s"], "s")
            yield Row(
                "loaders", work, "WebDataset", theirs["first_s"] / ours["first_s"], None, figure
            )


def ray_data(data: Data) -> Iterator[Row]:
    peer = "ray.data.read_tfrecords"
    figure = amount(data["rows_per_second"]["streamrec.ray.read_tfrecords"], "rows/s")
    yield Row(
        "ray_data",
        "rows of nine features in Ray Data",
        f"`{peer}`",
        data["ratio"][peer],
        None,
        figure,
    )


MODULES: tuple[Callable[[Data], Iterator[Row]], ...] = (
    *(
        local,
        pipeline,
        parse,
        encode,
        stream,
        tls,
        paced,
        small_shards,
        writing,
        compression,
        uploads,
    ),
    *(global_shuffle, images, loaders, ray_data),
)
"""A function for each benchmark, with its name, that makes its rows."""


def rows() -> list[Row]:
    """All rows, the worst first."""
    found = [row for module in MODULES for row in module(load(module.__name__))]
    return sorted(found, key=lambda row: row.rank)


def text() -> str:
    """The table, and what it was measured on: one line where all modules agree."""
    machines: dict[str, list[str]] = {}
    for module in MODULES:
        machine = load(module.__name__)["machine"]
        commit = machine.get("commit", "an earlier commit")
        seen = (
            f"{machine.get('cpu', 'unknown')}, {machine['cores']} cores, {machine['date']}, commit "
            f"{commit}"
        )
        machines.setdefault(seen, []).append(module.__name__)
    most = max(machines, key=lambda seen: len(machines[seen]))
    lines = [f"Measured on: {most}."]
    lines += [
        f"Except {', '.join(names)}: {seen}." for seen, names in machines.items() if seen != most
    ]
    return "\n".join([BEGIN, "", *lines, "", *HEADER, *map(str, rows()), "", END])


def main() -> int:
    """Writes the table into the page, or compares them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    made = before + text() + rest.partition(END)[2]
    if parser.parse_args().check:
        return int(made != page)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
