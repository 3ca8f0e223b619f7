"""Pages, messages and examples say how to install streamrec, and it works before it is on PyPI."""

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from streamrec.errors import INSTALL, install_command
from tests.pages import ROOT, pages

EXTRAS = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
)
COMMAND = re.compile(r"pip install (?P<options>(?:--?[\w-]+ )*)'?(?P<what>[^\s'`,;)]+)")
RELEASED = "streamrec{extra}" in INSTALL


def texts() -> list[Path]:
    """Whatever a user may read: pages, the package, the examples."""
    sources = [
        *(ROOT / "streamrec").rglob("*.py"),
        *(ROOT / "examples").rglob("*.py"),
        *(ROOT / "examples").rglob("*.ipynb"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
    ]
    return [*pages(), *sources]


def commands() -> list[tuple[Path, str]]:
    """The first requirement of each `pip install` that is written somewhere."""
    return [
        (path, found["what"]) for path in texts() for found in COMMAND.finditer(path.read_text())
    ]


def test_no_command_installs_streamrec_by_a_name_that_nobody_has_registered() -> None:
    named = [(path.name, what) for path, what in commands() if re.match(r"streamrec\b", what)]
    assert not named or RELEASED


def test_every_extra_that_is_to_be_installed_exists() -> None:
    found = {what for _, what in commands() if "[" in what and "{" not in what}
    assert found
    for what in found:
        extras = what.partition("[")[2].rstrip("].").split(",")
        assert set(extras) <= EXTRAS or what.startswith("moto"), what


def test_one_constant_says_how_messages_install(monkeypatch: pytest.MonkeyPatch) -> None:
    before, checkout = install_command("s3"), "`pip install '.[s3,cli]'` in a checkout of streamrec"
    assert "'.[s3]' in a checkout of streamrec" in before or RELEASED
    released = "pip install {options}'streamrec{extra}'"
    monkeypatch.setattr("streamrec.errors.INSTALL", released)
    assert install_command("s3") == "pip install 'streamrec[s3]'"
    assert install_command(options="--no-deps") == "pip install --no-deps 'streamrec'"
    hooks = import_module("docs.hooks")
    monkeypatch.setattr(hooks, "INSTALL", released)
    assert hooks.on_page_markdown(checkout) == "`pip install 'streamrec[s3,cli]'`"
