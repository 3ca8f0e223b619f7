"""TensorFlow's tutorial "TFRecord and tf.train.Example", without TensorFlow.

Next to each step is the TensorFlow call that it replaces, in a comment that starts with "TF:". Run
it:

    pip install . pillow scikit-learn     # in a checkout; scikit-learn ships the two photos
    python examples/tfrecord_tutorial.py

The steps are functions that return their results, and tests/examples runs them.
"""

from __future__ import annotations

import importlib.util
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from streamrec import TFRecordDataset, TFRecordWriter
from streamrec.example import (
    Example,
    FixedLenFeature,
    bytes_feature,
    encode_example,
    encode_examples,
    float_feature,
    infer_features,
    int64_feature,
    parse_example,
    parse_single_example,
    parse_tensor,
    serialize_tensor,
)

OBSERVATIONS = 10_000
STRINGS = np.array([b"cat", b"dog", b"chicken", b"horse", b"goat"], dtype=object)
FEATURE_DESCRIPTION = {
    # TF: tf.io.FixedLenFeature([], tf.int64, default_value=0), and so on: the same names and
    # arguments
    "feature0": FixedLenFeature([], np.int64, default_value=0),
    "feature1": FixedLenFeature([], np.int64, default_value=0),
    "feature2": FixedLenFeature([], bytes, default_value=""),
    "feature3": FixedLenFeature([], np.float32, default_value=0.0),
}
PHOTO_LABELS = {"china.jpg": 0, "flower.jpg": 1}


def features_of_values() -> None:
    """Part 1: values become Features."""
    # TF: _bytes_feature(b'test_string'), with a helper that the tutorial writes out; tensors need
    # .numpy()
    print(bytes_feature(b"test_string"))
    print(bytes_feature("test_bytes"))
    # TF: _float_feature(np.exp(1))
    print(float_feature(np.exp(1)))
    # TF: _int64_feature(True), _int64_feature(1)
    print(int64_feature(True))
    print(int64_feature(1))
    # TF: feature = _float_feature(np.exp(1)); feature.SerializeToString()
    print(float_feature(np.exp(1)).SerializeToString())
    # TF: tf.io.serialize_tensor(t), tf.io.parse_tensor(s, out_type=tf.float32), for arrays with a
    # shape
    matrix = np.eye(2, dtype=np.float32)
    print(parse_tensor(serialize_tensor(matrix), np.float32))


def observations() -> dict[str, np.ndarray[Any, Any]]:
    """Part 2: a data set of 10,000 observations of four features."""
    rng = np.random.default_rng(0)
    feature0 = rng.choice([False, True], OBSERVATIONS)
    feature1 = rng.integers(0, 5, OBSERVATIONS)
    feature2 = STRINGS[feature1]
    feature3 = rng.standard_normal(OBSERVATIONS)
    return {"feature0": feature0, "feature1": feature1, "feature2": feature2, "feature3": feature3}


def one_message() -> Any:
    """Part 3: one observation as a tf.train.Example message, and back."""
    # TF: feature = {'feature0': _int64_feature(feature0), ...}
    # TF: example_proto = tf.train.Example(features=tf.train.Features(feature=feature))
    # TF: example_proto.SerializeToString()
    serialized = encode_example(
        {"feature0": False, "feature1": 4, "feature2": b"goat", "feature3": 0.9876}
    )
    print(serialized)
    # TF: tf.train.Example.FromString(serialized_example)
    message = Example.FromString(serialized)
    print(message)
    return message


def write_observations(path: Path, columns: dict[str, np.ndarray[Any, Any]]) -> None:
    """Part 4: all observations into a TFRecord file."""
    # TF: features_dataset = tf.data.Dataset.from_tensor_slices((feature0, feature1, feature2,
    # feature3)) TF: serialized = features_dataset.map(tf_serialize_example)  # a tf.py_function for
    # each record
    records = encode_examples(columns)
    # TF: with tf.io.TFRecordWriter(filename) as writer: writer.write(example)
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)


def read_observations(path: Path) -> dict[str, Any]:
    """Part 5: the file into columns; one call parses all records of a batch."""
    # TF: raw_dataset = tf.data.TFRecordDataset([filename])
    dataset = TFRecordDataset(str(path))
    # TF: for raw_record in raw_dataset.take(10): print(repr(raw_record))
    for record in dataset.take(10):
        print(repr(record))
    # TF: the feature description is written by hand; here one can be proposed, too
    print(infer_features(dataset.take(100)))
    # TF: parsed_dataset = raw_dataset.map(lambda p: tf.io.parse_single_example(p,
    # feature_description))
    batches = [parse_example(frames, FEATURE_DESCRIPTION) for frames in dataset.batch(1024)]
    return {
        name: np.concatenate([batch[name] for batch in batches]) for name in FEATURE_DESCRIPTION
    }


def read_one_by_hand(path: Path) -> dict[str, list[Any]]:
    """Part 6: a record without a description, through the fields of the message."""
    # TF: for raw_record in raw_dataset.take(1): example = tf.train.Example()
    # TF: example.ParseFromString(raw_record.numpy())
    (record,) = TFRecordDataset(str(path)).take(1)
    result = {}
    for key, feature in Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        result[key] = list(getattr(feature, kind).value) if kind else []
    print(result)
    return result


def photos() -> dict[str, bytes]:
    """Part 7: two photos as JPEG files. They are part of scikit-learn, which the program does not
    run.
    """
    # TF: tf.keras.utils.get_file('320px-Felis_catus-cat_on_snow.jpg', 'https://...')
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the photos come with scikit-learn: pip install scikit-learn")
    folder = Path(spec.submodule_search_locations[0]) / "datasets" / "images"
    # TF: open(filename, 'rb').read()
    return {name: (folder / name).read_bytes() for name in PHOTO_LABELS}


def write_photos(path: Path, images: dict[str, bytes]) -> None:
    """Part 8: photos with their sizes and labels; the JPEG bytes stay as they are."""
    with TFRecordWriter(path) as writer:
        for name, jpeg in images.items():
            # TF: image_shape = tf.io.decode_jpeg(image_string).shape
            with Image.open(io.BytesIO(jpeg)) as image:
                width, height = image.size
                depth = len(image.getbands())
            # TF: tf.train.Example(features=tf.train.Features(feature={'height':
            # _int64_feature(...), ...}))
            features = {
                "height": height,
                "width": width,
                "depth": depth,
                "label": PHOTO_LABELS[name],
                "image_raw": jpeg,
            }
            writer.write(encode_example(features))


def read_photos(path: Path) -> list[np.ndarray[Any, Any]]:
    """Part 9: the photos back, as uint8 arrays of `[height, width, depth]`."""
    description = {
        # TF: tf.io.FixedLenFeature([], tf.int64), and tf.string for the image
        "height": FixedLenFeature([], np.int64),
        "width": FixedLenFeature([], np.int64),
        "depth": FixedLenFeature([], np.int64),
        "label": FixedLenFeature([], np.int64),
        "image_raw": FixedLenFeature([], bytes),
    }
    arrays = []
    # TF: raw_image_dataset = tf.data.TFRecordDataset('images.tfrecords')
    for record in TFRecordDataset(str(path)):
        # TF: tf.io.parse_single_example(example_proto, image_feature_description)
        features: dict[str, Any] = parse_single_example(record, description)
        # TF: display.display(display.Image(data=image_features['image_raw'].numpy()))
        with Image.open(io.BytesIO(_scalar(features["image_raw"]))) as image:
            array = np.asarray(image)
        assert array.shape == (features["height"], features["width"], features["depth"])
        print(
            f"label {features['label']}: {array.shape}, mean colour {array.mean((0, 1)).round(1)}"
        )
        arrays.append(array)
    return arrays


def _scalar(value: Any) -> bytes:
    """The bytes in an array without dimensions."""
    return bytes(value.item() if isinstance(value, np.ndarray) else value)


def main(folder: Path) -> None:
    """Runs all parts, with files in `folder`."""
    features_of_values()
    one_message()
    write_observations(folder / "test.tfrecord", observations())
    columns = read_observations(folder / "test.tfrecord")
    print({name: column[:3] for name, column in columns.items()})
    read_one_by_hand(folder / "test.tfrecord")
    write_photos(folder / "images.tfrecords", photos())
    read_photos(folder / "images.tfrecords")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
