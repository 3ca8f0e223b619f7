"""The page that `streamrec stat --html` writes, in a real browser. (What stands in it: test_figures.py.)"""

import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from streamrec import TFRecordWriter, encode_example
from tests.cli.conftest import run

BROWSER = shutil.which("chromium")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-prefers-color-scheme=light"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
BAR, RED = (47, 111, 181), (254, 0, 0)


@pytest.mark.skipif(BROWSER is None, reason="apt-get install chromium")
def test_a_browser_shows_bars_and_thumbnails(tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (64, 64), (254, 0, 0)).save(image, "PNG")
    with TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for number in range(100):
            writer.write(encode_example({"number": number % 7, "image": image.getvalue()}))
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    assert run("stat", str(tmp_path / "a.tfrecord"), "--html", str(page)).code == 0
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={tmp_path / 'browser'}", "--window-size=1000,2000"]
    subprocess.run([*command, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True, timeout=120)
    pixels = np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3)
    assert (pixels == BAR).all(axis=1).sum() > 5_000
    assert (pixels == RED).all(axis=1).sum() > 64 * 64
