"""The table and the chart of docs/benchmarks.md, made from the data in `benchmarks/results/`.

    python -m benchmarks.table [--check]

`make bench` measures all rows and then writes the table, and the chart (`bars.py`). Rows are
sorted: first those where streamrec is slowest or takes most processor time beside its peer.
`--check` writes nothing; it fails where the page shows another table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from functools import partial
from pathlib import Path
from textwrap import fill

from benchmarks.bars import files
from benchmarks.harness.program import run
from benchmarks.harness.results import RESULTS, Data, load

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
ASSETS = PAGE.parent / "assets"
BEGIN, END = "<!-- the table, by benchmarks.table -->", "<!-- the end of the table -->"
HEADER = [
    "| work | compared with | speed | CPU | streamrec | the other | module |",
    "|---|---|---|---|---|---|---|",
]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        module: The benchmark, and so the file of its data.
        work: What is done.
        peer: What it is compared with.
        ours: What streamrec delivered, in `unit`; if `measure` is "cpu", the processor time that it
            took.
        theirs: The same for the peer.
        unit: Of both.
        measure: "rate", where more is better; "time", where less is better; "cpu", where the store
            or the network limits both sides, so that their speeds say nothing.
        cpu_ratio: streamrec's processor time, divided by the peer's; None where it was not
            measured.
        bar: The speed that the benchmark was written to reach, if any.
    """

    module: str
    work: str
    peer: str
    ours: float
    theirs: float
    unit: str
    measure: str = "rate"
    cpu_ratio: float | None = None
    bar: float | None = None

    @property
    def speed(self) -> float | None:
        """The quotient of the two figures that are shown: above 1, streamrec is faster."""
        if self.measure == "cpu":
            return None
        return self.ours / self.theirs if self.measure == "rate" else self.theirs / self.ours

    @property
    def cpu(self) -> float | None:
        """Below 1, streamrec takes less processor time."""
        return self.ours / self.theirs if self.measure == "cpu" else self.cpu_ratio

    @property
    def rank(self) -> float:
        """Below 1 where the peer is better, by speed or by processor time."""
        return min(self.speed or float("inf"), 1 / self.cpu if self.cpu else float("inf"))

    @property
    def cells(self) -> list[str]:
        """What both the page and README show of it."""
        speed = digits(self.speed, rounding=ROUND_FLOOR)
        return [self.work, self.peer, speed, amount(self.ours, self.unit), digits(self.theirs, 3)]

    def __str__(self) -> str:
        work, peer, speed, ours, theirs = self.cells
        cpu = digits(self.cpu, rounding=ROUND_CEILING)
        return f"| {' | '.join([work, peer, speed, cpu, ours, theirs, self.module])} |"


def find(rows: list[Data], **wanted: object) -> Data:
    """The one row that has these values."""
    [found] = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return found


def digits(value: float | None, places: int = 2, rounding: str = ROUND_HALF_EVEN) -> str:
    """A number with this many significant digits.

    >>> digits(0.714), digits(171.3), digits(3_140_000, 3)
    ('0.71', '170', '3,140,000')
    >>> digits(50.53, rounding=ROUND_FLOOR), digits(0.111, rounding=ROUND_CEILING)
    ('50', '0.12')
    """
    if value is None:
        return ""
    # six places first: 0.3 may be 0.29999999999999998 as a float, and would be rounded down
    exact = Decimal(f"{value:.6g}")
    last = Decimal(1).scaleb(exact.adjusted() - places + 1)
    rounded = float(exact.quantize(last, rounding=rounding))
    return f"{rounded:,.0f}" if rounded >= 10 ** (places - 1) else f"{rounded:g}"


def amount(value: float, unit: str) -> str:
    """A figure of one machine."""
    return f"{digits(value, 3)} {unit}"


def local(data: Data) -> Iterator[Row]:
    for row in data["rows"]:
        size = amount(row["record_bytes"], "B") if row["record_bytes"] < 1000 else "110 kB"
        yield Row(
            module="local",
            work=f"a local file in batches, {size}",
            peer="tf.data on one core",
            ours=row["mb_s"]["streamrec"],
            theirs=row["mb_s"]["tensorflow"],
            unit="MB/s",
            bar=row["bar"],
        )


def pipeline(data: Data) -> Iterator[Row]:
    works = {
        "four": "records of four features, `shuffle(100_000)`, to columns",
        "forty": "records of forty features, `shuffle(100_000)`, to columns",
        "images": "images of 110 kB, `shuffle(2000)`, as `BytesColumn`",
    }
    for kind, work in works.items():
        row = find(data["rows"], row=kind)
        peer = row["tf.data"]
        yield Row(
            module="pipeline",
            work=work,
            peer="tf.data at its best, two cores",
            ours=row["streamrec"]["records_s"],
            theirs=peer["records_s"],
            unit="records/s",
            cpu_ratio=1 / peer["cpu_ratio"],
            bar=row["bar"],
        )


def parse(data: Data) -> Iterator[Row]:
    for name, how in (("", "as `bytes` objects"), (", string_columns", "`string_columns=True`")):
        row = find(data["rows"], name=f"image bytes and label{name}", way="memory")
        yield Row(
            module="parse",
            work=f"images out of records in memory, {how}",
            peer="TensorFlow's `parse_example`",
            ours=row["streamrec"],
            theirs=row["peer_speed"],
            unit="records/s",
        )


def encode(data: Data) -> Iterator[Row]:
    for records, side, work, bar in (
        ("four scalar features", "encode_examples", "encoding columns: four scalars", True),
        (
            "four scalar features",
            "encode_example",
            "`encode_example`, four scalars, one record at a time",
            False,
        ),
        (
            "eight dense float[64]",
            "encode_example",
            "`encode_example`, eight float[64], one record at a time",
            False,
        ),
    ):
        row = find(data["rows"], records=records)
        yield Row(
            module="encode",
            work=work,
            peer="`tf.train.Example`",
            ours=row["records_per_second"][side],
            theirs=row["records_per_second"]["tensorflow"],
            unit="records/s",
            bar=row["bar"] if bar else None,
        )


def stream(data: Data) -> Iterator[Row]:
    for server, client, records, block, where in (
        ("s3", "s3fs", "680 B", 1024, "SeaweedFS, 680 B, 1,024 records in turn"),
        ("nginx", "s3fs", "680 B", 1, "nginx as S3, 680 B, record by record"),
        ("nginx", "s3fs", "110 kB", 1, "nginx as S3, 110 kB, record by record"),
        ("gcs", "gcsfs", "680 B", 1024, "fake-gcs-server, 680 B, 1,024 records in turn"),
        ("gcs", "gcsfs", "110 kB", 1, "fake-gcs-server, 110 kB, record by record"),
    ):
        row = find(data["rows"], server=server, records=records, block_length=block)
        yield Row(
            module="stream",
            work=where,
            peer=f"{client}' GETs, bytes discarded",
            ours=row["streamrec_mb_s"],
            theirs=row["bare_mb_s"],
            unit="MB/s",
            cpu_ratio=row["cpu_ratio"],
        )


def tls(data: Data) -> Iterator[Row]:
    row = find(data["rows"], server="nginx", tls=True)
    ours = row["streamrec"]
    for side, peer in (
        ("sockets", "Python's `ssl` sockets, bytes discarded"),
        ("bare", "s3fs' GETs, bytes discarded"),
        ("obstore", "obstore's streams, bytes discarded"),
    ):
        yield Row(
            module="tls",
            work="TLS from nginx, 110 kB",
            peer=peer,
            ours=ours["mb_s"],
            theirs=row[side]["mb_s"],
            unit="MB/s",
            cpu_ratio=ours[f"cpu_of_{side}"],
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
        yield Row(
            module="paced",
            work=work,
            peer=peer,
            ours=ours["mb_s"],
            theirs=theirs["mb_s"],
            unit="MB/s",
            cpu_ratio=ours["cpu_s_gb"] / theirs["cpu_s_gb"],
        )


def small_shards(data: Data) -> Iterator[Row]:
    for way, work in (("", "one after the other"), (", in turn", "16 in turn")):
        ours = find(data["rows"], side=f"streamrec{way}")
        theirs = find(data["rows"], side=f"tf.data{way}")
        yield Row(
            module="small_shards",
            work=f"10,000 local shards of 20 records, {work}",
            peer="tf.data",
            ours=ours["us"],
            theirs=theirs["us"],
            unit="µs a shard",
            measure="time",
            cpu_ratio=ours["cpu_us"] / theirs["cpu_us"],
        )
    yield Row(
        module="small_shards",
        work="2,000 shards of 20 records from SeaweedFS",
        peer="s3fs' `_cat_file`",
        ours=find(data["s3"], side="streamrec")["cpu_us"],
        theirs=find(data["s3"], side="client")["cpu_us"],
        unit="µs of CPU a shard",
        measure="cpu",
    )


def writing(data: Data) -> Iterator[Row]:
    for size, name in ((84, "84 B"), (110_000, "110 kB")):
        row = find(data["rows"], row=f"write {size} B")
        yield Row(
            module="writing",
            work=f"files, records of {name}",
            peer="TensorFlow's writer",
            ours=row["mb_s"]["records"],
            theirs=row["mb_s"]["tensorflow"],
            unit="MB/s",
            cpu_ratio=row["cpu_s_gb"]["records"] / row["cpu_s_gb"]["tensorflow"],
        )


def compression(data: Data) -> Iterator[Row]:
    row = find(data["rows"], row="inflate")
    # one shard at a time on both sides: until tf.data is measured with `num_parallel_reads`, its
    # figure on two cores is that of one shard after the other
    for side, peer in (("isal alone", "ISA-L alone"), ("tf.data", "tf.data")):
        yield Row(
            module="compression",
            work="GZIP, one shard at a time, one core",
            peer=peer,
            ours=row["mb_s"]["one at a time"],
            theirs=row["mb_s"][side],
            unit="MB/s",
            cpu_ratio=row["cpu_s_gb"]["one at a time"] / row["cpu_s_gb"][side],
        )


def uploads(data: Data) -> Iterator[Row]:
    bare, botocore = "a bare PUT, signed before", "botocore's `put_object`"
    for tls, way, side, peer in (
        (False, "plain HTTP", "http.client", bare),
        (True, "TLS", "http.client", bare),
        (True, "TLS", "botocore", botocore),
    ):
        row = find(data["rows"], record=110_000, tls=tls)["cpu_s_gb"]
        yield Row(
            module="uploads",
            work=f"uploads of batches, {way}, 110 kB",
            peer=peer,
            ours=row["frames"],
            theirs=row[side],
            unit="CPU-s/GB",
            measure="cpu",
        )


def global_shuffle(data: Data) -> Iterator[Row]:
    for records, side, work in (
        ("1kB", "blocks", "global shuffle in blocks, 1 kB"),
        ("110kB", "blocks", "global shuffle in blocks, 110 kB"),
        ("110kB", "exact", "global shuffle, exact, 110 kB"),
    ):
        row = find(data["rows"], records=records)
        ours, plain = row[side], row["plain"]
        yield Row(
            module="global_shuffle",
            work=work,
            peer="the plain data set",
            ours=ours["mb_s"],
            theirs=plain["mb_s"],
            unit="MB/s",
            cpu_ratio=ours["cpu_s_gb"] / plain["cpu_s_gb"],
        )


def images(data: Data) -> Iterator[Row]:
    row = find(data["rows"], images="500 x 375")
    # the pixels that streamrec gives; it is also tf.data's faster way
    speeds = row["images_a_second"]
    cpu = row["cpu_ms_an_image"]
    side = "tf.data, accurate"
    yield Row(
        module="images",
        work="JPEGs of 500 x 375, parsed and decoded",
        peer="tf.data, `INTEGER_ACCURATE`",
        ours=speeds["streamrec"],
        theirs=speeds[side],
        unit="images/s",
        cpu_ratio=cpu["streamrec"] / cpu[side],
    )


def loaders(data: Data) -> Iterator[Row]:
    for kind, name in (("images", "JPEGs"), ("tokens", "tokens")):
        ours = find(data["rows"], kind=kind, side="DataLoader, 0 workers")
        theirs = find(data["rows"], kind=kind, side="WebDataset")
        yield Row(
            module="loaders",
            work=f"a DataLoader of {name}, no workers",
            peer="WebDataset, two workers",
            ours=ours["samples_s"],
            theirs=theirs["samples_s"],
            unit="samples/s",
            cpu_ratio=ours["cpu_ms"] / theirs["cpu_ms"],
        )
        if kind == "images":
            yield Row(
                module="loaders",
                work="the first batch of a DataLoader",
                peer="WebDataset",
                ours=ours["first_s"],
                theirs=theirs["first_s"],
                unit="s",
                measure="time",
            )


def ray_data(data: Data) -> Iterator[Row]:
    peer = "ray.data.read_tfrecords"
    yield Row(
        module="ray_data",
        work="rows of nine features in Ray Data",
        peer=f"`{peer}`",
        ours=data["rows_per_second"]["streamrec.ray.read_tfrecords"],
        theirs=data["rows_per_second"][peer],
        unit="rows/s",
    )


def training(data: Data) -> Iterator[Row]:
    """No rows where the sides did not carry the same load; `benchmarks.training` says why."""
    if not data["same_load"]:
        return
    ours = find(data["rows"], side="streamrec")
    for side in ("tf.data", "DataLoader"):
        yield Row(
            module="training",
            work=f"a training loop that asks for {digits(data['mb_s_wanted'], 3)} MB/s",
            peer=side,
            ours=ours["mb_s"],
            theirs=find(data["rows"], side=side)["mb_s"],
            unit="MB/s",
        )


MODULES: tuple[Callable[[Data], Iterator[Row]], ...] = (
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
    global_shuffle,
    images,
    training,
    loaders,
    ray_data,
)
"""A function for each benchmark, with its name, that makes its rows."""


def measured() -> list[Callable[[Data], Iterator[Row]]]:
    """The benchmarks that have data. A row that turns out to be wrong goes with its data, until
    `make bench` measures it again.
    """
    return [module for module in MODULES if (RESULTS / f"{module.__name__}.json").exists()]


def rows() -> list[Row]:
    """All rows, the worst first."""
    found = [row for module in measured() for row in module(load(module.__name__))]
    return sorted(found, key=lambda row: row.rank)


def text() -> str:
    """The table, and what it was measured on: one line where all modules agree."""
    machines: dict[str, list[str]] = {}
    for module in measured():
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
    return "\n".join(
        [BEGIN, "", *lines, "", *HEADER, *map(str, rows()), "", *map(bullet, notes()), "", END]
    )


def bullet(text: str) -> str:
    """An item of a list, in lines as long as those of the other pages."""
    return fill(text, 128, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def notes() -> Iterator[str]:
    """What the table does not show and a reader should know, with figures from the same data."""
    down = partial(digits, rounding=ROUND_FLOOR)
    missed = [
        f"{row.work}: {down(row.speed)} of {row.bar:g}"
        for row in rows()
        if row.bar and row.speed and row.speed < row.bar
    ]
    works = "; ".join(missed)
    yield f"**Bars.** Some benchmarks set a speed to reach. These rows miss it: {works}."
    parsing = [
        f"{row['name']}: {down(row['ratio'])} of {row['bar']:g}"
        for row in load("parse")["rows"]
        if row["bar"] and row["ratio"] < row["bar"]
    ]
    encoding = [
        f"{row['records']}: {down(row['ratio'])} of {row['bar']:g}"
        for row in load("encode")["rows"]
        if not row["met"]
    ]
    yield (
        "**Bars of rows that are only in the data.** These miss theirs: parsing from a file, "
        f"{'; '.join(parsing)}; encoding columns, {'; '.join(encoding)}."
    )
    first = [row["first_speed_ratio"] for row in load("stream")["rows"]]
    yield (
        "**The first pass** of a process does not count in the rows of `stream` and `tls`. In "
        f"`stream`, its speed is {down(min(first))} to {down(max(first))} of the bare client's, "
        "because it loads modules and touches memory for the first time."
    )
    tried = find(load("pipeline")["rows"], row="images")["tried_records_s"]
    yield (
        "**Images as `bytes` objects** instead of a `BytesColumn`, in the trial runs of `pipeline`:"
        f" streamrec {digits(tried['streamrec']['parse_example'], 3)} records/s, tf.data's best "
        f"{digits(max(tried['tf.data'].values()), 3)}."
    )
    rounds = {name: len(speeds) for name, speeds in load("ray_data")["rounds"].items()}
    yield (
        f"**Ray's own reader** was measured in {rounds['ray.data.read_tfrecords']} round, because "
        f"it takes so long; streamrec's in {rounds['streamrec.ray.read_tfrecords']}."
    )


def main(*, check: bool = False) -> int:
    """Writes the table into the page, and the chart; or compares them."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    made = {PAGE: before + text() + rest.partition(END)[2]}
    made |= {ASSETS / name: drawing for name, drawing in files(rows()).items()}
    if check:
        return int(any(path.read_text() != content for path, content in made.items()))
    for path, content in made.items():
        path.write_text(content)
    return 0


if __name__ == "__main__":
    run(main)
