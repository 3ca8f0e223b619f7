"""`--where`: the tree of an expression, and for which features it is true; exit codes of errors."""

from typing import Any

import click
import pytest

from streamrec.cli.options import parse_where
from streamrec.cli.program import exit_code_of
from streamrec.cli.records import comparable, is_true
from streamrec.errors import (
    AlreadyExistsError,
    CorruptRecordError,
    FeatureError,
    ManifestError,
    MissingExtraError,
    NotFoundError,
    StorageError,
)

PARAMETER = click.Option(["--where"])
CONTEXT = click.Context(click.Command("head"))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", ("has", "a")),
        ("a or b and c", ("or", ("has", "a"), ("and", ("has", "b"), ("has", "c")))),
        ("(a or b) and c", ("and", ("or", ("has", "a"), ("has", "b")), ("has", "c"))),
        ("not a or b", ("or", ("not", ("has", "a")), ("has", "b"))),
        ("not (a or b)", ("not", ("or", ("has", "a"), ("has", "b")))),
        ("a >= -2", (">=", "a", -2)),
        ("`my feature` != 'x y'", ("!=", "my feature", "x y")),
    ],
)
def test_not_binds_most_and_or_binds_least(text: str, tree: tuple[Any, ...]) -> None:
    assert parse_where(CONTEXT, PARAMETER, text) == tree


@pytest.mark.parametrize("text", ["", "(a or b", "a ==", "a and", "3 == a", "a b", "a == b"])
def test_an_expression_that_is_not_whole_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        parse_where(CONTEXT, PARAMETER, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("number == 3", True),  # one of its values
        ("number > 5", False),
        ("text == 'snö'", True),
        ("text < 'a'", False),
        ("real == 0.1", True),  # in float32
        ("empty", False),
        ("not empty and number", True),
        ("empty or text == 'x'", False),
    ],
)
def test_a_comparison_is_true_for_one_of_the_values(text: str, expected: bool) -> None:
    features = {
        "number": [1, 3],
        "text": ["snö".encode()],
        "real": [0.10000000149011612],
        "empty": [],
    }
    assert is_true(parse_where(CONTEXT, PARAMETER, text) or (), features) is expected


def test_text_and_numbers_are_not_compared() -> None:
    with pytest.raises(TypeError):
        comparable(b"3", 3)
    with pytest.raises(TypeError):
        comparable(3, "3")


@pytest.mark.parametrize("number", [1e300, -1e300, 10**400])
def test_a_number_beyond_float32_is_compared_as_it_is(number: float) -> None:
    assert comparable(0.5, number) == (0.5, number)
    assert comparable(float("inf"), number) == (float("inf"), number)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CorruptRecordError("no", "a"), 1),
        (FeatureError("no", "x"), 1),
        (ManifestError("no", "a"), 1),
        (MissingExtraError("no"), 2),
        (NotFoundError("no", "a"), 3),
        (StorageError("no", "a"), 3),
        (OSError("no"), 3),
        (AlreadyExistsError("no", "a"), 4),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: Any, code: int) -> None:
    assert exit_code_of(error) == code
