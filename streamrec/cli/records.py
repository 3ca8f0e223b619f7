"""Shows records: as text for people, and as JSON.

- A record is one of three messages, or plain bytes; `kind_of_all` finds out from some records.
- `text_of` says which bytes are text. In JSON all others are `{"base64": "..."}`.
- In JSON the values of a feature are always a list, even if there is only one, as in an Example.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final, NoReturn

import click

from streamrec import FeatureError, Frames
from streamrec.cli.library import (
    ExampleListWithContext,
    Feature,
    Kind,
    describe_other,
    escape,
    image_type,
    is_example_list,
    join_names,
    kind_of,
    parse_exact,
    text_of,
)
from streamrec.cli.options import COMPARISONS

KINDS: Final[tuple[Kind, ...]] = ("bytes", "example_list", "sequence_example", "example")
"""The kinds of records, the one that includes most first.

Every record can be shown as bytes, and every Example can be read as a SequenceExample.
"""

VALUES_SHOWN = 8
CHARACTERS_SHOWN = 100


def kind_of_all(records: Iterable[bytes], most: int | None = None) -> Kind | None:
    """The kind that all of these records can be read as.

    It looks at no more than `most` records that are not empty. The result is None if all are empty:
    an empty record may be of any kind.

    Examples:
        >>> from streamrec import encode_example
        >>> kind_of_all([encode_example({}), encode_example({"a": 1})])
        'example'
        >>> kind_of_all([b"hello"]), kind_of_all([b""])
        ('bytes', None)
    """
    found = set(islice(filter(None, map(kind_of, records)), most))
    return next((kind for kind in KINDS if kind in found), None)


def parts_of(record: bytes, kind: Kind) -> dict[str, dict[str, list[Any]]]:
    """The features of a record: by part, then by name, each a list of values.

    An Example has one part, "features". A SequenceExample has "context" and "feature_lists"; both
    may have a feature of the same name, and the values of the latter are lists of lists. An
    ExampleListWithContext has "context" and "examples". Plain bytes have no part.
    """
    if kind == "example_list" and is_example_list(record):
        found = ExampleListWithContext.FromString(record)
        rows = [each.features.feature for each in found.examples]
        # Each Example may lack features of the others: the lists of all have one length.
        columns = {
            name: [values_of(row.get(name, Feature())) for row in rows]
            for name in sorted({*chain(*rows)})
        }
        return {
            "context": parts_of(found.context.SerializeToString(), "example")["features"],
            "examples": columns,
        }
    message = None if kind == "bytes" else parse_exact(record)
    if message is None:
        return {}
    context = {
        name: values_of(feature) for name, feature in sorted(message.context.feature.items())
    }
    lists = sorted(message.feature_lists.feature_list.items())
    if kind == "example" and not lists:
        return {"features": context}
    steps = {name: [values_of(feature) for feature in found.feature] for name, found in lists}
    return {"context": context, "feature_lists": steps}


def values_of(feature: Any) -> list[Any]:
    """The values of a `Feature` message; an empty list if it has no kind."""
    kind = feature.WhichOneof("kind")
    return [] if kind is None else list(getattr(feature, kind).value)


def find_matching(
    frames: Frames, where: tuple[Any, ...], seen: set[str], first: int = 0
) -> list[int]:
    """The indices of the records that match `--where`.

    Args:
        frames: The records.
        where: The tree of `--where`.
        seen: Receives the names of all features of the records.
        first: The number of the first record, for errors.

    Raises:
        FeatureError: A record has no features, or a value cannot be compared.
    """
    kind = kind_of_all(frames, most=100) or "example"
    names = names_in(where)
    found = []
    for number, record in enumerate(frames):
        parts = parts_of(record, kind)
        if not parts and record:
            raise FeatureError(
                f"--where needs features, and these are {describe_other(record)}: leave it out",
                None,
                first + number,
            )
        features: dict[str, list[Any]] = {name: [] for name in names}
        for part in parts.values():
            seen.update(part)
            for name in names & part.keys():
                # A feature list matches if one value of any of its steps does.
                for value in part[name]:
                    features[name] += value if isinstance(value, list) else [value]
        try:
            if is_true(where, features):
                found.append(number)
        except TypeError:
            wrong = next(name for name in names if features[name])
            reason = (
                "--where compares bytes with a number, or a number with text: write only text in "
                "quotes"
            )
            raise FeatureError(reason, wrong, first + number) from None
    return found


def is_true(where: tuple[Any, ...], features: Mapping[str, list[Any]]) -> bool:
    """Evaluates an expression; a comparison is true if it is true for one value of the feature."""
    match where:
        case "and", one, other:
            return is_true(one, features) and is_true(other, features)
        case "or", one, other:
            return is_true(one, features) or is_true(other, features)
        case "not", one:
            return not is_true(one, features)
        case "has", name:
            return bool(features[name])
    compare, name, wanted = where
    return any(COMPARISONS[compare](*comparable(value, wanted)) for value in features[name])


def comparable(value: Any, wanted: str | float) -> tuple[Any, Any]:
    """Both sides of a comparison in types that Python compares exactly.

    Text becomes UTF-8; a number that is compared with a float32 is rounded to float32.

    Raises:
        TypeError: One side is bytes, the other a number.
    """
    if isinstance(value, bytes) != isinstance(wanted, str):
        raise TypeError
    if isinstance(wanted, str):
        return value, wanted.encode()
    if isinstance(value, float):
        # "<f" refuses what float32 does not hold; "f" would make it infinite. The same holds for
        # whole numbers that no float holds, of which Python's comparison is exact.
        with suppress(OverflowError, struct.error):
            return value, struct.unpack("<f", struct.pack("<f", wanted))[0]
    return value, wanted


def names_in(where: tuple[Any, ...]) -> set[str]:
    """The names of the features in an expression."""
    if where[0] in ("and", "or", "not"):
        return set[str]().union(*map(names_in, where[1:]))
    return {where[1]}


def check_where(where: tuple[Any, ...], seen: set[str]) -> None:
    """Refuses an expression that names a feature which no record has: it is misspelt."""
    if unknown := sorted(names_in(where) - seen):
        refuse_unknown("--where", unknown, seen)


def refuse_unknown(option: str, names: Iterable[str], known: Iterable[str]) -> NoReturn:
    """Refuses names of features that no record has; the message lists those that records have."""
    have = join_names(sorted(known)) or "no features"
    raise click.UsageError(f"{option}: no record has {', '.join(names)}: they have {have}")


def as_json(record: bytes, kind: Kind, wanted: Sequence[str] | None = None) -> str:
    r"""A record as one line of JSON: an object of its features, or the bytes.

    A SequenceExample is an object with two such objects, "context" and "feature_lists". If
    `wanted` is given, there are only these features, and those that the record lacks are null.

    Examples:
        >>> from streamrec import encode_example, encode_sequence_example
        >>> as_json(encode_example({"id": 3, "name": "cat", "raw": b"\xff"}), "example")
        '{"id": [3], "name": ["cat"], "raw": [{"base64": "/w=="}]}'
        >>> as_json(encode_sequence_example({"id": 3}, {"id": [1, 2]}), "sequence_example")
        '{"context": {"id": [3]}, "feature_lists": {"id": [[1], [2]]}}'
    """
    parts: dict[str, Any] = parts_of(record, kind)
    if not parts:
        return json.dumps(plain(record), ensure_ascii=False)
    if wanted is not None:
        lists = parts.get("feature_lists", parts.get("examples", {}))
        parts = {
            part: {
                name: found.get(name)
                for name in wanted
                if name in found or (found is not lists and name not in lists)
            }
            for part, found in parts.items()
        }
    found = parts.get("features", parts)
    return json.dumps(plain(found), ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The value in types that JSON has; NaN and infinities become text."""
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


def as_lines(
    record: bytes,
    kind: Kind,
    wanted: Sequence[str] | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[str]:
    """A record for people: one line for each feature, with long values cut.

    The values of a feature in `classes` are numbers of these names, which are shown.
    """
    parts = parts_of(record, kind)
    if not parts:
        yield format_value(record)
        return
    for part, found in parts.items():
        for name in found if wanted is None else filter(found.__contains__, wanted):
            names = (classes or {}).get(name)
            values = found[name] if names is None else [name_class(v, names) for v in found[name]]
            yield f"{'' if part == 'features' else f'{part} '}{name}: {format_values(values)}"
    for name in wanted or ():
        if not any(name in found for found in parts.values()):
            yield f"{name}: missing"


def name_class(value: Any, names: Sequence[str]) -> Any:
    """A label with the name of its class; the value as it is if it has none, or only its number.

    Examples:
        >>> name_class(1, ["cat", "dog"]), name_class(1, ["0", "1"]), name_class(-1, ["cat"])
        ('1 (dog)', 1, -1)
    """
    if not isinstance(value, int) or not 0 <= value < len(names) or names[value] == str(value):
        return value
    return f"{value} ({escape(names[value])})"


def format_values(values: Sequence[Any]) -> str:
    """The values of a feature as text: one without brackets, of several the first eight."""
    if len(values) == 1:
        return format_value(values[0])
    shown = [format_value(value) for value in values[:VALUES_SHOWN]]
    more = f", ... {len(values):,} values" if len(values) > VALUES_SHOWN else ""
    return f"[{', '.join(shown)}{more}]"


def quote_text(text: str) -> str:
    r"""The text in quotes as Python writes it, but with all letters as they are.

    Examples:
        >>> quote_text("it's\n") == repr("it's\n"), quote_text("\u200d")
        (True, "'\u200d'")
    """
    quote = '"' if "'" in text and '"' not in text else "'"
    inner = text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return f"{quote}{escape(inner)}{quote}"


def format_value(value: Any) -> str:
    """One value as text: bytes that are not text show their length and their first bytes."""
    if isinstance(value, list):
        return format_values(value)
    if isinstance(value, float):
        return f"{value:.7g}"  # a float32 has no more digits
    if not isinstance(value, bytes):
        return str(value)
    text = text_of(value)
    if text is not None:
        more = "" if len(text) <= CHARACTERS_SHOWN else f"... {len(value):,} bytes"
        return f"{quote_text(text[:CHARACTERS_SHOWN])}{more}"
    image = image_type(value)
    return (
        f"{image.upper()}, {len(value):,} bytes"
        if image
        else f"{len(value):,} bytes, {value[:16].hex(' ')}..."
    )
