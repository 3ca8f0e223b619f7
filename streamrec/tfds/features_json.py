"""Reads `features.json`, in its form of today and in the one from before TensorFlow Datasets 4.7.

Today each feature is a message in JSON: its class, and one field that is named after its kind
(`{"pythonClassName": "...Tensor", "tensor": {...}}`). Before, it was
`{"type": "...Tensor", "content": {...}}`; with `proto_cls`, the content is the message of today, or
its text. Both are brought to a kind and its members, whose names are in either spelling
(`numClasses`, `num_classes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from streamrec.arguments import describe_value
from streamrec.errors import FeatureError
from streamrec.tfds.features import Feature, FeaturesDict, LeafFeature, SequenceFeature, Shape

STEPS: Final = "dataset_feature.Dataset"
"""How the class of a nested data set ends; its message is that of a sequence."""

KINDS: Final = {
    "FeaturesDict": "featuresDict",
    "Sequence": "sequence",
    "Dataset": "sequence",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "Text": "text",
    "ClassLabel": "classLabel",
    "Image": "image",
    "LabeledImage": "image",
    "Video": "video",
    "Audio": "audio",
    "BBox": "boundingBox",
    "BBoxFeature": "boundingBox",
    "Translation": "translation",
    "TranslationVariableLanguages": "translation",
}
"""The kinds of the classes that old files name."""

MESSAGES: Final = {
    "FeaturesDict": "featuresDict",
    "Sequence": "sequence",
    "TensorFeature": "tensor",
    "TextFeature": "text",
    "ClassLabel": "classLabel",
    "ImageFeature": "image",
    "VideoFeature": "video",
    "AudioFeature": "audio",
    "BoundingBoxFeature": "boundingBox",
    "TranslationFeature": "translation",
}
"""The kinds of the messages that old files name in `proto_cls`."""


class Members:
    """The members of one feature, under either spelling of their names.

    Attributes:
        name: The feature's name, for errors.
        class_name: The Python class that wrote it.
    """

    def __init__(self, name: str, class_name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.class_name = class_name
        self._values = values

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a member by its name in camel case; the default if it is absent or null."""
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
        value = self._values.get(key, self._values.get(snake))
        return default if value is None else value

    def integer(self, key: str) -> int | None:
        """A whole number, which JSON may have as text; None if it is absent."""
        value = self.get(key)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            raise self.error(f"{key} is {describe_value(value)}, not a number") from None

    def shape(self, default: Shape = ()) -> Shape:
        """The sizes; -1 and null are those that differ from example to example."""
        value = self.get("shape")
        if value is None:
            return default
        sizes = value.get("dimensions", []) if isinstance(value, Mapping) else value
        try:
            return tuple(None if size is None or int(size) < 0 else int(size) for size in sizes)
        except (TypeError, ValueError):
            raise self.error(f"shape is {describe_value(value)}, not a list of sizes") from None

    def dtype(self, default: str) -> str:
        """The name of the dtype; strings are "bytes"."""
        name = str(self.get("dtype") or default).rpartition(".")[2]
        return {"string": "bytes", "object": "bytes", "str": "bytes"}.get(name, name)

    def error(self, reason: str) -> FeatureError:
        """An error that names the feature."""
        return FeatureError(f"features.json: {reason}", self.name or None)


def features_from_json(text: str | bytes) -> Feature:
    """The tree of features in a `features.json`.

    Raises:
        FeatureError: The text is not JSON, or a feature is of an unknown kind; the feature's name
            is in it.

    Examples:
        >>> tree = features_from_json(
        ...     '{"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": {"label": '
        ...     '{"pythonClassName": "x.ClassLabel", "classLabel": {"numClasses": "2"}}}}}'
        ... )
        >>> print(tree["label"])
        label, 2 classes (0, 1)
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise FeatureError(f"features.json is not JSON: {error}") from None
    return to_feature(value, "")


def to_feature(value: Any, name: str) -> Feature:
    """One feature, and those within it."""
    if not isinstance(value, Mapping):
        raise FeatureError(f"features.json: a feature is {describe_value(value)}", name or None)
    kind, members = old_form(value, name) if "type" in value else new_form(value, name)
    return READERS[kind](members)


def new_form(value: Mapping[str, Any], name: str) -> tuple[str, Members]:
    """The kind and the members of a feature in the form of today."""
    class_name = str(value.get("pythonClassName", value.get("python_class_name", "")))
    for kind in READERS:
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind)
        for key in (kind, snake):
            if isinstance(value.get(key), Mapping):
                return kind, Members(name, class_name, value[key])
    # A class without a message of its own has its old content, as text.
    custom = value.get("jsonFeature", value.get("json_feature"))
    if isinstance(custom, Mapping):
        return old_form({"type": class_name, "content": custom.get("json")}, name)
    raise unknown_kind(class_name or "without a class", name)


def old_form(value: Mapping[str, Any], name: str) -> tuple[str, Members]:
    """The kind and the members of a feature in the old form."""
    class_name = str(value["type"])
    message = str(value.get("proto_cls") or "").rpartition(".")[2]
    kind = MESSAGES.get(message) or KINDS.get(class_name.rpartition(".")[2])
    if kind is None:
        raise unknown_kind(class_name, name)
    content = value.get("content") or {}
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError as error:
            raise FeatureError(
                f"features.json: its field 'content' is not JSON: {error}", name
            ) from None
    # The children are the content of an old FeaturesDict, and a member of a message.
    if kind == "featuresDict" and not message:
        content = {"features": content}
    if not isinstance(content, Mapping):
        raise FeatureError(f"features.json: content is {describe_value(content)}", name or None)
    return kind, Members(name, class_name, content)


def unknown_kind(class_name: str, name: str) -> FeatureError:
    """The error for a feature that this version cannot read."""
    return FeatureError(
        f"features.json: this feature is {class_name}, which is not a kind that streamrec reads: "
        "read the records with Folder.records(), or leave it out with features=",
        name or None,
    )


def read_dict(members: Members) -> Feature:
    prefix = f"{members.name}/" if members.name else ""
    children = members.get("features", {})
    return FeaturesDict(
        {str(key): to_feature(child, prefix + str(key)) for key, child in sorted(children.items())}
    )


def read_sequence(members: Members) -> Feature:
    length = members.integer("length")
    return SequenceFeature(
        feature=to_feature(members.get("feature"), members.name),
        length=None if length is None or length < 0 else length,
        is_steps=members.class_name.endswith(STEPS),
    )


def read_tensor(members: Members) -> Feature:
    return LeafFeature(
        kind="tensor",
        shape=members.shape(),
        dtype=members.dtype("int64"),
        encoding=str(members.get("encoding", "none")).lower(),
        optional=bool(members.get("optional", False)),
    )


def read_text(members: Members) -> Feature:
    # Texts of the first versions were stored as the numbers of words.
    if members.get("useEncoder") or members.get("encoder"):
        return LeafFeature(kind="tensor", shape=(None,), dtype="int64")
    # Whether a text may be missing is not written down.
    return LeafFeature(kind="text", dtype="bytes", optional=True)


def read_label(members: Members) -> Feature:
    count = members.integer("numClasses") or 0
    return LeafFeature(kind="label", names=tuple(map(str, range(count))))


def read_image(members: Members) -> Feature:
    label = members.get("label")
    names = None
    if members.class_name.endswith("LabeledImage") or label is not None:
        classes = Members(members.name, members.class_name, label or {})
        names = tuple(map(str, range(classes.integer("numClasses") or 0)))
    return LeafFeature(
        kind="image" if names is None else "labeled image",
        shape=members.shape((None, None, 3)),
        dtype=members.dtype("uint8"),
        encoding=str(members.get("encodingFormat", "")),
        names=names,
    )


def read_video(members: Members) -> Feature:
    return LeafFeature(
        kind="video",
        shape=members.shape((None, None, None, 3)),
        dtype=members.dtype("uint8"),
        encoding=str(members.get("encodingFormat", "")),
    )


def read_audio(members: Members) -> Feature:
    rate = members.integer("sampleRate")
    lazy = bool(members.get("lazyDecode", False))
    return LeafFeature(
        kind="audio",
        shape=members.shape((None,)),
        dtype=members.dtype("int64"),
        encoding="file" if lazy else str(members.get("encoding", "none")).lower(),
        sample_rate=rate or None,
    )


def read_box(members: Members) -> Feature:
    return LeafFeature(kind="box", shape=(4,), dtype="float32")


def read_translation(members: Members) -> Feature:
    text = LeafFeature(kind="text", dtype="bytes", optional=True)
    varies = members.get("variableLanguagesPerExample", False)
    if varies or members.class_name.endswith("TranslationVariableLanguages"):
        return SequenceFeature(feature=FeaturesDict({"language": text, "translation": text}))
    return FeaturesDict({str(language): text for language in members.get("languages", [])})


READERS: Final[Mapping[str, Callable[[Members], Feature]]] = {
    "featuresDict": read_dict,
    "sequence": read_sequence,
    "tensor": read_tensor,
    "text": read_text,
    "classLabel": read_label,
    "image": read_image,
    "video": read_video,
    "audio": read_audio,
    "boundingBox": read_box,
    "translation": read_translation,
}
