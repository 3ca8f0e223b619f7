"""Packing documents of tokens into rows of 2,048: tokens for each second of processor time.

    python -m benchmarks.packing [--count 6000]

The functions are those of docs/guides/language-models.md. Streamrec reads a shard, parses it and
packs; Grain and Hugging Face datasets pack the same documents from arrays in memory, which saves
them reading and parsing. Each figure is the best of three passes; packages that are not installed
are left out. `filled` is the share of the rows that is not padding; above 1, tokens were dropped.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.harness.meter import Meter
from benchmarks.harness.program import run
from tests.pages import ROOT, blocks

LENGTH = 2048
BATCH = 8
PASSES = 3
GRAIN_BINS = (16, 64, 256)
FEATURES = {"tokens": streamrec.RaggedFeature("int64")}
Rows = Callable[[], int]
"""A pass; returns how many rows it made."""


def main(*, count: int = 6000) -> None:
    """Prints a line for each way to pack so many documents."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(6, 1, count).astype(int), 8, LENGTH)
    documents = [random.integers(0, 50_000, length) for length in lengths]
    tokens = int(lengths.sum())
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder, "shard")
        shard.write_bytes(
            streamrec.encode_records(
                [streamrec.encode_example({"tokens": each}) for each in documents]
            )
        )
        for name, rows in ways(str(shard), documents):
            made, seconds = fastest(rows)
            print(
                f"{name}: {tokens / seconds / 1e6:.1f} M tokens/CPU s, "
                f"filled {tokens / (made * LENGTH):.3f}",
                flush=True,
            )


def ways(shard: str, documents: list[Any]) -> Iterator[tuple[str, Rows]]:
    """Each way to pack, with its name."""
    functions = of_page()
    parsed = streamrec.TFRecordDataset(shard).batch(256).parse_example(FEATURES)
    rows = parsed.map(functions["concatenated"]).unbatch().batch(LENGTH, drop_remainder=True)
    whole = parsed.map(functions["first_fit"]).unbatch()
    yield "streamrec, reading and parsing alone", lambda: count_tokens(parsed) // LENGTH
    for name, dataset in (("one after the other", rows), ("whole documents", whole)):
        yield f"streamrec, {name}", lambda made=dataset: count_rows(made.batch(BATCH))  # type: ignore[misc]
    if find_spec("grain"):
        yield from of_grain(documents)
    if find_spec("datasets"):
        yield from of_hugging_face(documents)


def of_page() -> dict[str, Any]:
    """The functions of the guide, for rows of `LENGTH`."""
    names: dict[str, Any] = {"np": np, "LENGTH": LENGTH}
    for block in blocks(ROOT / "docs/guides/language-models.md"):
        for name in ("concatenated", "first_fit"):
            begins = block.text.find(f"def {name}(")
            if begins >= 0 and not block.title:
                exec(block.text[begins:].split("\n\n\n")[0], names)
    return names


def of_grain(documents: list[Any]) -> Iterator[tuple[str, Rows]]:
    """Grain's packers, as fast as they get here."""
    import grain

    # Threads that read from memory cost more than they save, as Grain's own docs say.
    here = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    stored = grain.MapDataset.source([{"tokens": each} for each in documents])
    source = stored.to_iter_dataset(here)
    wanted = {"tokens": LENGTH}
    cut = grain.experimental.ConcatThenSplitIterDataset(source, length_struct=wanted)
    yield "Grain, one after the other", lambda: count_rows(cut.batch(BATCH))
    for bins in GRAIN_BINS:
        fitted = grain.experimental.FirstFitPackIterDataset(
            source, length_struct=wanted, num_packing_bins=bins, shuffle_bins=False
        )
        name = f"Grain, whole documents, {bins} bins"
        yield name, lambda made=fitted: count_rows(made.batch(BATCH))  # type: ignore[misc]


def of_hugging_face(documents: list[Any]) -> Iterator[tuple[str, Rows]]:
    """The `group_texts` of transformers' examples, the same in Arrow, and TRL's `pack_dataset`.

    Those of Arrow take each 1,000 documents by themselves, as `group_texts` does, and drop what is
    left of them.
    """
    import datasets
    import pyarrow

    def group_texts(batch: dict[str, Any]) -> dict[str, Any]:
        tokens = list(chain(*batch["tokens"]))
        starts = range(0, len(tokens) // LENGTH * LENGTH, LENGTH)
        return {"tokens": [tokens[start : start + LENGTH] for start in starts]}

    def group_arrow(table: Any) -> Any:
        tokens = table["tokens"].combine_chunks().flatten()
        whole = tokens[: len(tokens) // LENGTH * LENGTH]
        return pyarrow.table({"tokens": pyarrow.FixedSizeListArray.from_arrays(whole, LENGTH)})

    stored = datasets.Dataset.from_dict({"tokens": documents}).to_iterable_dataset()
    grouped = stored.map(group_texts, batched=True).with_format("numpy")
    yield "Hugging Face datasets, group_texts", lambda: count_rows(grouped.iter(BATCH))
    arrow = stored.with_format("arrow").map(group_arrow, batched=True).with_format("numpy")
    yield "Hugging Face datasets, in Arrow", lambda: count_rows(arrow.iter(BATCH))
    if find_spec("trl"):
        from trl import pack_dataset

        for strategy, what in (("wrapped", "one after the other"), ("bfd", "whole documents")):
            packed = pack_dataset(stored, LENGTH, strategy).with_format("numpy")
            yield f"TRL, {what}", lambda made=packed: count_rows(made.iter(BATCH))  # type: ignore[misc]


def count_rows(batches: Any) -> int:
    """The rows of all batches."""
    return sum(len(batch["tokens"]) for batch in batches)


def count_tokens(batches: Any) -> int:
    """The tokens of all batches of documents."""
    return sum(batch["tokens"].flat_values.size for batch in batches)


def fastest(rows: Rows) -> tuple[int, float]:
    """How many rows a pass makes, and the least processor seconds of several."""
    seconds = []
    made = 0
    for _ in range(PASSES):
        with Meter() as meter:
            made = rows()
        seconds.append(meter.cpu_seconds)
    return made, min(seconds)


if __name__ == "__main__":
    run(main)
