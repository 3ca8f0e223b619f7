"""The tutorial runs, and what it reads is what it wrote."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples import tfrecord_tutorial as tutorial


def test_it_runs_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tutorial.main(tmp_path)
    printed = capsys.readouterr().out
    assert 'value: "test_string"' in printed
    assert "'feature2': FixedLenFeature([], 'string')" in printed
    assert "label 1: (427, 640, 3)" in printed


def test_observations_come_back(tmp_path: Path) -> None:
    written = tutorial.observations()
    tutorial.write_observations(tmp_path / "test.tfrecord", written)
    read = tutorial.read_observations(tmp_path / "test.tfrecord")
    assert len(read["feature0"]) == 10_000
    np.testing.assert_array_equal(read["feature0"], written["feature0"].astype(np.int64), strict=True)
    np.testing.assert_array_equal(read["feature1"], written["feature1"], strict=True)
    np.testing.assert_array_equal(read["feature2"], written["feature2"], strict=True)
    np.testing.assert_array_equal(read["feature3"], written["feature3"].astype(np.float32), strict=True)
    first = tutorial.read_one_by_hand(tmp_path / "test.tfrecord")
    assert first["feature2"] == [written["feature2"][0]]


def test_photos_come_back(tmp_path: Path) -> None:
    images = tutorial.photos()
    tutorial.write_photos(tmp_path / "images.tfrecords", images)
    assert all(jpeg in (tmp_path / "images.tfrecords").read_bytes() for jpeg in images.values())
    for array, jpeg in zip(tutorial.read_photos(tmp_path / "images.tfrecords"), images.values(), strict=True):
        with Image.open(io.BytesIO(jpeg)) as image:
            np.testing.assert_array_equal(array, np.asarray(image))


def test_message() -> None:
    message = tutorial.one_message()
    assert message.features.feature["feature2"].bytes_list.value == [b"goat"]


@pytest.mark.peer
def test_tensorflow_reads_the_file(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    written = tutorial.observations()
    tutorial.write_observations(tmp_path / "test.tfrecord", written)
    description = {
        "feature0": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "feature2": tf.io.FixedLenFeature([], tf.string, default_value=""),
    }
    (records,) = tf.data.TFRecordDataset(str(tmp_path / "test.tfrecord")).batch(20_000)
    parsed = tf.io.parse_example(records, description)
    np.testing.assert_array_equal(parsed["feature0"], written["feature0"])
    np.testing.assert_array_equal(parsed["feature2"], written["feature2"])
