"""The pages that `streamrec stat --html` and `streamrec bench --html` write, in a real browser."""

import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streamrec import TFRecordWriter, encode_example
from tests.cli.conftest import CommandLine, run_command

BROWSER = shutil.which("chromium")
FLAGS = [
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-prefers-color-scheme=light",
    ),
    *(
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    ),
]
BAR, RED = (47, 111, 181), (254, 0, 0)


pytestmark = pytest.mark.skipif(BROWSER is None, reason="apt-get install chromium")


def screenshot(page: Path) -> np.ndarray:
    picture = page.with_suffix(".png")
    command = [
        str(BROWSER),
        *FLAGS,
        f"--user-data-dir={page.parent / 'browser'}",
        "--window-size=1000,2000",
    ]
    subprocess.run(
        [*command, f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)


def test_a_browser_shows_bars_and_thumbnails(tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (64, 64), (254, 0, 0)).save(image, "PNG")
    with TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for number in range(100):
            writer.write(encode_example({"number": number % 7, "image": image.getvalue()}))
    page = tmp_path / "page.html"
    assert run_command("stat", str(tmp_path / "a.tfrecord"), "--html", str(page)).code == 0
    pixels = screenshot(page)
    assert (pixels == BAR).all(axis=1).sum() > 5_000
    assert (pixels == RED).all(axis=1).sum() > 64 * 64


def test_a_browser_shows_curves(shard: Path, tmp_path: Path, cli: CommandLine) -> None:
    page = tmp_path / "page.html"
    done = cli("bench", "--seconds", "0.05", "--html", page, shard)
    assert done.code == 0, done.err
    assert done.out.count("█") > 20  # the best of the bars in the terminal is 40 wide
    text = page.read_text()
    assert text.count("<polyline") == 4
    assert done.out.splitlines()[-1] in text
    assert (screenshot(page) == BAR).all(axis=1).sum() > 1_000
