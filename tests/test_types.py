"""Types of a user's program: what `reveal_type` says under `mypy --strict` and under pyright.

Pyright runs as basedpyright, which is the same checker as a wheel that holds its Node.js.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("typed_program.py")

WRONG = [
    ("records.map(lambda record: record.nonsense())", "nonsense"),
    ("batches.parse_example(5)", "int|Literal"),
    ("Dataset.list_files('a*').interleave(len)", "interleave|Dataset"),
    ("print(next(records.iterate()) + 1)", "operator|Operator"),
]
"""Expressions that are mistakes, and what a checker's message names."""

REVEALED = {
    "records": "Dataset[bytes]",
    "batches": "Dataset[Frames]",
    "batches.map(size)": "Dataset[int]",
    "numbered.map(parts)": "Dataset[tuple[int, bytes]]",
}


def checked(command: list[str], program: str, tmp_path: Path) -> str:
    """What a type checker says of a program outside the repository."""
    (tmp_path / "program.py").write_text(program)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", *command, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


@pytest.fixture(params=["mypy", "pyright"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    if request.param == "pyright":
        settings = {"typeCheckingMode": "standard"}  # pyright's default
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
        return ["basedpyright", "--pythonpath", sys.executable]
    cache = ROOT / ".mypy_cache" / "program"
    return ["mypy", "--strict", "--follow-imports=silent", f"--cache-dir={cache}"]


@pytest.mark.timeout(600)
def test_a_program_has_the_types_that_it_asserts(command: list[str], tmp_path: Path) -> None:
    program = PROGRAM.read_text()
    said = checked(command, program, tmp_path)
    assert re.search("no issues found|0 errors", said), said


@pytest.mark.timeout(600)
def test_types_are_revealed_and_mistakes_are_found(command: list[str], tmp_path: Path) -> None:
    program = PROGRAM.read_text()
    first = program.count("\n") + 1
    expressions = [*(f"reveal_type({one})" for one in REVEALED), *(one for one, _ in WRONG)]
    said = checked(command, program + "\n".join(expressions) + "\n", tmp_path)
    lines = {
        int(number): re.sub(r"\b(?:builtins|streamrec(?:\.\w+)*)\.", "", text)
        for number, text in re.findall(r"program\.py:(\d+)(.*)", said)
    }
    for line, expected in enumerate(REVEALED.values(), first):
        assert f'"{expected}"' in lines[line], said
    for line, (_, named) in enumerate(WRONG, first + len(REVEALED)):
        assert "error" in lines[line], said
        assert re.search(named, lines[line]), said
    assert len(lines) == len(expressions), said
