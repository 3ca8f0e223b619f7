"""What notebooks show: drawn, escaped, bounded; and the tutorial notebook, executed."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import streamrec
from streamrec import BytesColumn, Dataset, Frames
from streamrec.notebook import show
from tests.pages import ROOT

NOTEBOOK = ROOT / "examples" / "notebook" / "tutorial.ipynb"


def html_of(value: Any) -> str:
    drawn: str = value._repr_html_()
    assert drawn.count("<div") == drawn.count("</div>")
    assert "<script" not in drawn
    return drawn


def jpeg(side: int = 16) -> bytes:
    file = io.BytesIO()
    Image.fromarray(
        np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    ).save(file, "jpeg")
    return file.getvalue()


def double(number: int) -> int:
    return 2 * number


def images(drawn: str) -> list[bytes]:
    return [
        base64.b64decode(data)
        for data in re.findall(r'<img src="data:image/\w+;base64,([^"]+)"', drawn)
    ]


def test_a_dataset_draws_its_stages_in_order() -> None:
    drawn = html_of(
        Dataset.zip((Dataset.range(9).map(double), Dataset.range(4))).repeat(2).batch(3)
    )
    assert re.findall("<b>(.*?)</b>", drawn) == [
        *("range", "map: your function double", "range"),
        *("zip", "repeat", "batch"),
    ]
    assert drawn.count('class="inner"') == 2


def test_statistics_have_a_bar_for_each_stage() -> None:
    with Dataset.range(2000).map(double).batch(100).iterate() as run:
        assert len(list(run)) == 20
        stats = run.stats()
    drawn = html_of(stats)
    assert drawn.count('class="bar"') == 4  # the consumer has one, too
    assert f"bottleneck: <b>{stats.bottleneck}</b>" in drawn
    assert all(float(width) <= 100 for width in re.findall(r"width: ([\d.]+)%", drawn))
    assert "2,000" in drawn


def test_a_batch_shows_its_columns() -> None:
    records = [
        streamrec.encode_example(
            {"image": jpeg(), "name": f"<b>{n}</b>", "raw": b"\xff\x00", "words": [b"w"] * n}
        )
        for n in range(12)
    ]
    features = {
        **{name: streamrec.FixedLenFeature([], "string") for name in ("image", "name", "raw")},
        "words": streamrec.RaggedFeature("string"),
        "sparse": streamrec.VarLenFeature("int64"),
    }
    batch = streamrec.parse_example(records, features)
    drawn = html_of(show(batch))
    assert images(drawn) == [jpeg()] * 8
    assert "<b>3</b>" not in drawn
    assert "&lt;b&gt;3&lt;/b&gt;" in drawn
    assert "2 bytes: ff 00" in drawn
    assert "[w, w, w]</td>" in drawn
    assert "and 4 rows more" in drawn
    assert "name: bytes [12]" in repr(show(batch)).splitlines()
    assert "words: ragged bytes [66]" in repr(show(batch)).splitlines()


def test_pixels_are_images() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (3, 20, 30, 3), dtype=np.uint8)
    grey = pixels[..., :1]
    for column in (pixels, grey):
        for data, wanted in zip(images(html_of(show({"x": column}))), column, strict=True):
            found = np.asarray(Image.open(io.BytesIO(data)))
            np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)
    [large] = images(html_of(show(np.zeros((1, 4000, 2000, 3), np.uint8))))
    assert Image.open(io.BytesIO(large)).size == (125, 250)


def test_a_notebook_page_of_large_records_stays_small() -> None:
    large = jpeg() + bytes(1 << 20)
    many = [jpeg(400) + bytes(700_000)] * 8
    assert f"JPEG, {len(large):,} bytes" in html_of(Frames.of([large]))
    drawn = html_of(Frames.of(many))
    assert 0 < len(images(drawn)) < 8
    assert len(drawn) < 6_000_000
    assert len(html_of(Frames.of([b"x" * 10_000_000] * 20 + [b"x" * 1000] * 1000))) < 10_000
    assert (
        len(
            html_of(
                show({"numbers": np.zeros((1000, 1000)), "text": np.array([b"t" * 10**6], object)})
            )
        )
        < 10_000
    )


@pytest.mark.parametrize(
    "value",
    [
        Frames.of([]),
        Frames.of([b"", b"text", b"\xff"]),
        BytesColumn(b"onetwo", np.array([[[0, 3]], [[3, 6]]])),
        show(np.float32(0.5)),
        show((np.arange(3), {"a": [1, 2]})),
        show({}),
        show(b"record"),
        show({"object": np.array([None, "cat<"], object), "bool": np.array([True])}),
        Dataset.from_generator(lambda: iter([1])),
        show(Dataset.range(3).batch(2)),
    ],
    ids=repr,
)
def test_whatever_is_shown_is_html(value: Any) -> None:
    assert "cat<" not in html_of(value)


def test_a_batch_of_images_is_short() -> None:
    """In HTML as `show` draws it, in text with the ends of its strings, ragged and sparse ones
    too.
    """
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    shell.run_line_magic("load_ext", "streamrec.notebook")
    records = [streamrec.encode_example({"image": jpeg(400), "n": n}) for n in range(16)]
    features = {
        "image": streamrec.FixedLenFeature([], "string"),
        "n": streamrec.FixedLenFeature([], "int64"),
    }
    batch = streamrec.parse_example(records, features)
    data, _ = shell.display_formatter.format(batch)
    assert data["text/html"] == html_of(show(batch))
    assert len(data["text/plain"]) < 2000
    assert "'n': array([ 0,  1," in data["text/plain"]
    for kind in (streamrec.RaggedFeature("string"), streamrec.VarLenFeature("string")):
        column = streamrec.parse_example(records, {"image": kind})["image"]
        assert len(repr(column)) < 2000
        assert repr(column).count(r"b'\xff\xd8") == 16
        data, _ = shell.display_formatter.format({"image": column})
        assert data["text/html"] == html_of(show({"image": column}))
    assert "text/html" not in shell.display_formatter.format({"a": 1})[0]
    assert shell.display_formatter.format(jpeg(400))[0]["text/plain"].startswith(r"b'\xff\xd8")


@pytest.mark.timeout(300)
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), (
        "outputs are not kept: clear them"
    )
    nbclient.NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    outputs = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.output_type != "stream"
    ]
    shards, drawn, batch, progress, stats, count, some = [output.data for output in outputs]
    assert shards["text/plain"] == "4"
    assert re.findall("<b>(.*?)</b>", drawn["text/html"]) == [
        "TFRecordDataset",
        "shuffle",
        "batch",
        "parse_example",
    ]
    assert len(images(batch["text/html"])) == 8
    assert progress["text/plain"].startswith("streamrec: 16 elements (1,000 records read)")
    assert "bottleneck" in stats["text/html"]
    assert count["text/plain"] == "(1000, [100, 100, 100, 100, 100, 100, 100, 100, 100, 100])"
    assert len(images(some["text/html"])) == 3
