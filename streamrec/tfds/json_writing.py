"""Writes `features.json` and `dataset_info.json`, in the form of TensorFlow Datasets 4.7 and later.

`features_json.py` and `description.py` read the same. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from streamrec.tfds.description import TEMPLATE, Description, SplitInfo
from streamrec.tfds.features import (
    ENCODED,
    Feature,
    FeaturesDict,
    LeafFeature,
    SequenceFeature,
    Shape,
)

CLASSES: Final = "tensorflow_datasets.core.features."
"""Where the classes that `pythonClassName` names are."""

CLASS_NAMES: Final = {
    "tensor": "tensor_feature.Tensor",
    "text": "text_feature.Text",
    "label": "class_label_feature.ClassLabel",
    "image": "image_feature.Image",
    "labeled image": "labeled_image.LabeledImage",
    "video": "video_feature.Video",
    "audio": "audio_feature.Audio",
    "box": "bounding_boxes.BBoxFeature",
}
"""The classes of leaves, by kind."""

MODULE: Final = "streamrec.tfds"
"""What the description names as the module that made the data set."""


def features_to_json(feature: Feature) -> str:
    """The content of `features.json`.

    Examples:
        >>> tree = FeaturesDict({"label": LeafFeature(kind="label", names=("cat", "dog"))})
        >>> json.loads(features_to_json(tree))["featuresDict"]["features"]["label"]["classLabel"]
        {'numClasses': '2'}
    """
    return as_json(feature_message(feature))


def feature_message(feature: Feature) -> dict[str, Any]:
    """The message of one feature, and of those within it."""
    if isinstance(feature, SequenceFeature):
        name = "dataset_feature.Dataset" if feature.is_steps else "sequence_feature.Sequence"
        length = -1 if feature.length is None else feature.length
        content = {"feature": feature_message(feature.feature), "length": str(length)}
        return message(name, "sequence", content)
    if isinstance(feature, FeaturesDict):
        children = {name: feature_message(child) for name, child in feature.features.items()}
        return message("features_dict.FeaturesDict", "featuresDict", {"features": children})
    kind, content = leaf_content(feature)
    return message(CLASS_NAMES[feature.kind], kind, content)


def message(class_name: str, kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """One feature: its class, and the field of its kind."""
    return {"pythonClassName": CLASSES + class_name, kind: dict(content)}


def leaf_content(leaf: LeafFeature) -> tuple[str, dict[str, Any]]:
    """The name of a leaf's field, and its members."""
    classes = len(leaf.names or ())
    if leaf.kind == "text":
        return "text", {}
    if leaf.kind == "label":
        return "classLabel", {"numClasses": str(classes)}
    shape = shape_message(leaf.shape)
    content: dict[str, Any] = {"dtype": json_dtype(leaf.dtype), "shape": shape}
    if leaf.kind == "box":
        return "boundingBox", content | {"bboxFormat": "REL_YXYX"}
    if leaf.kind in ENCODED:
        # Without a format, each file tells its own.
        if leaf.encoding:
            content["encodingFormat"] = leaf.encoding
        if leaf.kind == "labeled image":
            content |= {"label": {"numClasses": str(classes)}, "useColormap": True}
        return "video" if leaf.kind == "video" else "image", content
    if leaf.kind == "audio":
        return "audio", content | audio_members(leaf)
    optional = {"optional": True} if leaf.optional else {}
    return "tensor", content | {"encoding": leaf.encoding} | optional


def audio_members(leaf: LeafFeature) -> dict[str, Any]:
    """What only audio has; the names of its encodings are in capitals."""
    is_file = leaf.encoding == "file"
    members: dict[str, Any] = {"encoding": "NONE" if is_file else leaf.encoding.upper()}
    if is_file:
        members["lazyDecode"] = True
    if leaf.sample_rate is not None:
        members["sampleRate"] = str(leaf.sample_rate)
    return members


def shape_message(shape: Shape) -> dict[str, Any]:
    """A shape; -1 stands for a size that differs, and a scalar has no dimensions."""
    sizes = [str(-1 if size is None else size) for size in shape]
    return {"dimensions": sizes} if sizes else {}


def json_dtype(name: str) -> str:
    """The name of a dtype in the file: byte strings are "string"."""
    return "string" if name == "bytes" else name


def description_to_json(info: Description) -> str:
    """The content of `dataset_info.json`."""
    value: dict[str, Any] = {
        "name": info.name,
        "version": info.version,
        "fileFormat": "tfrecord",
        "moduleName": MODULE,
        "splits": [split_message(split) for split in info.splits.values()],
    }
    texts = {
        "configName": info.config,
        "description": info.description,
        "citation": info.citation,
    }
    value |= {key: text for key, text in texts.items() if text}
    if info.supervised_keys:
        value["supervisedKeys"] = key_message(info.supervised_keys)
    if info.in_order:
        value["disableShuffling"] = True
    return as_json(value)


def split_message(split: SplitInfo) -> dict[str, Any]:
    """One split; numbers of 64 bits are text in the JSON of such messages."""
    return {
        "name": split.name,
        "filepathTemplate": TEMPLATE,
        "numBytes": str(split.bytes),
        "shardLengths": [str(length) for length in split.shard_lengths],
    }


def key_message(key: Any) -> dict[str, Any]:
    """One supervised key: the name of a feature, or a tuple or a dict of keys."""
    if isinstance(key, str):
        return {"featureKey": key}
    if isinstance(key, Mapping):
        return {"dict": {"dict": {name: key_message(child) for name, child in key.items()}}}
    return {"tuple": {"items": [key_message(child) for child in key]}}


def as_json(value: Mapping[str, Any]) -> str:
    """A file's text, in the form that TensorFlow Datasets writes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
