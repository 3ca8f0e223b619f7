r"""Which message a record is.

Nothing in a record says so, and almost any message parses as almost any other one.

Rules of this file:
- A record is an Example, a SequenceExample or an ExampleListWithContext only if nothing else is in
  it: no unknown field at any level, no key or kind that protobuf would drop because it occurs
  twice. Else parsing it would lose that without a word, in the worst case all of it.
- `parse_example` is more lenient, as TensorFlow is: it looks up the features that it is told to.

    >>> from streamrec.example.encode import encode_example
    >>> record = encode_example({"id": 3})
    >>> kind_of(record), kind_of(record + b"\x2a\x05hello")
    ('example', 'bytes')
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from streamrec.display import join_names, shorten, text_of
from streamrec.example import messages

Kind: TypeAlias = Literal["example", "sequence_example", "example_list", "bytes"]
"""The type of a record."""

CAN_COPY: Final = (
    "`streamrec reshard` copies such records as they are, and `streamrec cat --json` prints them "
    "as base64"
)


def kind_of(record: bytes) -> Kind | None:
    r"""The type of a record; None if it is empty or has no features, which may be of several types.

    Examples:
        >>> kind_of(b"hello"), kind_of(b"\n\x00"), kind_of(b"")
        ('bytes', None, None)
    """
    return kind_and_message(record)[0]


def kind_and_message(record: bytes) -> tuple[Kind | None, Any]:
    """The type of a record, and the record as a SequenceExample.

    An Example is one without feature lists. If the record is neither, None takes its place.
    """
    message = parse_exact(record)
    if message is None:
        return ("example_list" if is_example_list(record) else "bytes"), None
    names = [*message.context.feature, *message.feature_lists.feature_list]
    # The names are whole features where an ExampleListWithContext is read as a SequenceExample.
    if names and all(name[:1] in "\n" for name in names) and is_example_list(record):
        return "example_list", None
    if message.feature_lists.feature_list:
        return "sequence_example", message
    return ("example" if message.context.feature else None), message


def parse_exact(record: bytes) -> Any:
    """The record as a SequenceExample.

    None if it does not parse, or has something that such a message does not keep.
    """
    try:
        message: Any = messages.SequenceExample.FromString(record)
        exact: Any = messages.ExactSequenceExample.FromString(record)
    except DecodeError:
        return None
    if has_unknown_fields(exact):
        return None
    # What protobuf drops makes the message shorter. Only then is it worth looking at each feature.
    # (It also writes keys and values of maps that a record leaves out, which makes it longer.)
    if exact.ByteSize() != message.ByteSize() and any(dropped_in(exact)):
        return None
    return message


def has_unknown_fields(message: Any) -> bool:
    """Whether there are fields that the type does not have, at any level; removes them."""
    size = message.ByteSize()
    message.DiscardUnknownFields()
    return bool(message.ByteSize() != size)


def dropped_in(exact: Any) -> Iterator[str]:
    """Describes each place of an ExactSequenceExample that has several keys or kinds.

    protobuf keeps the last one.
    """
    entries = [*exact.context.feature, *exact.feature_lists.feature_list]
    for entry in entries:
        name = entry.key[-1] if entry.key else ""
        if len(entry.key) > 1:
            yield f"{len(entry.key):,} names of one feature, {quote(name)}"
        values = getattr(entry.value, "feature", [entry.value])
        if any(len(value.ListFields()) > 1 for value in values):
            yield f"several kinds of values in the feature {quote(name)}"


def is_example_list(record: bytes) -> bool:
    """Whether a record is an ExampleListWithContext with a value.

    Parsed as one, an Example has unknown fields.
    """
    try:
        exact: Any = messages.ExactExampleList.FromString(record)
    except DecodeError:
        return False
    if has_unknown_fields(exact):
        return False
    found: Any = messages.ExampleListWithContext.FromString(record)
    examples = (*found.examples, found.context)
    features = (feature for each in examples for feature in each.features.feature.values())
    return any(feature.WhichOneof("kind") for feature in features)


def describe_other(record: bytes) -> str:
    r"""What a record of kind "bytes" is, for a message.

    Examples:
        >>> describe_other(b"hello")
        '5 bytes that are not an Example'
        >>> describe_other(b"\x08\x01\x12\x02hi")
        '6 bytes of another message type, with the fields 1, 2, not an Example'
    """
    size = f"{len(record):,} bytes"
    try:
        fields = unknown_numbers(messages.AnyMessage.FromString(record))
    except DecodeError:
        return f"{size} that are not an Example"
    shown = f"field{'s' if len(fields) > 1 else ''} {join_names(map(str, sorted(fields)), 30)}"
    other = f"{size} of another message type, with the {shown}, not an Example"
    if text_of(record) is not None:  # some words happen to parse
        return f"{size} that are not an Example"
    try:
        exact: Any = messages.ExactSequenceExample.FromString(record)
    except DecodeError:
        return other
    lists = exact.feature_lists.feature_list
    keys = [key for entry in (*exact.context.feature, *lists) for key in entry.key]
    if keys and (lists or any(entry.value.ListFields() for entry in exact.context.feature)):
        more = join_names([*other_fields(exact, ""), *dropped_in(exact)])
        names = join_names(map(quote, dict.fromkeys(keys)), 60)
        return f"{size}, an Example ({names}) with something else in it: {more}"
    return other


def unknown_numbers(message: Any) -> dict[int, None]:
    """The numbers of the fields that a message's type does not have, each once, in their order."""
    fields: Any = UnknownFieldSet(message)
    return dict.fromkeys(field.field_number for field in fields)


def other_fields(message: Any, path: str) -> Iterator[str]:
    """Names each unknown field by its place, such as "field 7 of features"."""
    where = f" of {path}" if path else ""
    for number in unknown_numbers(message):
        yield f"field {number}{where}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            # Asked this way, since newer protobufs deprecate `label`, and older ones lack
            # `is_repeated`.
            parts = [value] if hasattr(value, "ListFields") else value
            for part in parts:
                yield from other_fields(part, f"{path}.{field.name}" if path else field.name)


def quote(name: str) -> str:
    return shorten(repr(name), 40)
