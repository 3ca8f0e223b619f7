"""A record as a person reads it, and as JSON.

- A record is an Example, a SequenceExample, or plain bytes: `kind_of` looks at some of them.
- Bytes that are printable UTF-8 are text. In JSON all others are `{"base64": "..."}`.
- Values are lists in JSON, also where there is one: so they are in an Example.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from google.protobuf.message import DecodeError

from streamrec import Example, SequenceExample
from streamrec.display import escape, is_safe

__all__ = ["Kind", "as_json", "as_lines", "features_in", "image_type", "kind_of", "plain", "text_of"]

Kind = Literal["example", "sequence_example", "bytes"]

VALUES_SHOWN = 8
CHARACTERS_SHOWN = 100
MAGIC = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}


def kind_of(records: Iterable[bytes]) -> Kind:
    """What these records are, all of them.

    Examples:
        >>> from streamrec import encode_example
        >>> kind_of([encode_example({"a": 1})]), kind_of([b"hello"])
        ('example', 'bytes')
    """
    found: Kind = "bytes"
    for record in records:
        try:
            message: Any = SequenceExample.FromString(record)
        except DecodeError:
            return "bytes"
        if message.feature_lists.feature_list:
            return "sequence_example"
        if message.context.feature:
            found = "example"
        elif record:
            return "bytes"
    return found


def image_type(value: bytes) -> str | None:
    """What kind of image it is; None where it is neither JPEG nor PNG."""
    return next((name for magic, name in MAGIC.items() if value.startswith(magic)), None)


def features_in(record: bytes, kind: Kind) -> dict[str, list[Any]]:
    """The features of a record by name, each a list of its values; those of a feature list are lists of lists."""
    if kind == "bytes":
        return {}
    message: Any = (Example if kind == "example" else SequenceExample).FromString(record)
    top = message.features if kind == "example" else message.context
    found = {name: values_of(feature) for name, feature in top.feature.items()}
    if kind == "sequence_example":
        lists = message.feature_lists.feature_list.items()
        found |= {name: [values_of(feature) for feature in steps.feature] for name, steps in lists}
    return dict(sorted(found.items()))


def values_of(feature: Any) -> list[Any]:
    kind = feature.WhichOneof("kind")
    return [] if kind is None else list(getattr(feature, kind).value)


def as_json(record: bytes, kind: Kind, wanted: Sequence[str] | None = None) -> str:
    r"""A record as one line of JSON: an object of its features, or the bytes. What it lacks of `wanted` is null.

    Examples:
        >>> from streamrec import encode_example
        >>> as_json(encode_example({"id": 3, "name": "cat", "raw": b"\xff"}), "example")
        '{"id": [3], "name": ["cat"], "raw": [{"base64": "/w=="}]}'
    """
    if kind == "bytes":
        return json.dumps(plain(record), ensure_ascii=False)
    found = features_in(record, kind)
    if wanted is not None:
        found = {name: found.get(name) for name in wanted}  # type: ignore[misc]
    return json.dumps(plain(found), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The value in terms of JSON; numbers that JSON does not have are text."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if not isinstance(value, bytes):
        return value
    text = text_of(value)
    return {"base64": base64.b64encode(value).decode()} if text is None else text


def text_of(value: bytes) -> str | None:
    """The text that bytes are, or None."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if is_safe(text) else None


def as_lines(record: bytes, kind: Kind, wanted: Sequence[str] | None = None) -> Iterator[str]:
    """A record for people: a line for each feature, long values cut."""
    if kind == "bytes":
        yield format_value(record)
        return
    found = features_in(record, kind)
    for name in found if wanted is None else wanted:
        values = found.get(name)
        yield f"{name}: {'missing' if values is None else format_values(values)}"


def format_values(values: Sequence[Any]) -> str:
    if len(values) == 1:
        return format_value(values[0])
    shown = [format_value(value) for value in values[:VALUES_SHOWN]]
    more = f", ... {len(values):,} values" if len(values) > VALUES_SHOWN else ""
    return f"[{', '.join(shown)}{more}]"


def quoted(text: str) -> str:
    r"""The text as Python writes it, but with all letters as they are.

    Examples:
        >>> quoted("it's\n") == repr("it's\n"), quoted("\u200d")
        (True, "'\u200d'")
    """
    quote = '"' if "'" in text and '"' not in text else "'"
    inner = text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return f"{quote}{escape(inner)}{quote}"


def format_value(value: Any) -> str:
    if isinstance(value, list):
        return format_values(value)
    if isinstance(value, float):
        return f"{value:.7g}"  # a float32 has no more digits
    if not isinstance(value, bytes):
        return str(value)
    text = text_of(value)
    if text is not None:
        more = "" if len(text) <= CHARACTERS_SHOWN else f"... {len(value):,} bytes"
        return f"{quoted(text[:CHARACTERS_SHOWN])}{more}"
    image = image_type(value)
    return f"{image.upper()}, {len(value):,} bytes" if image else f"{len(value):,} bytes, {value[:16].hex(' ')}..."
