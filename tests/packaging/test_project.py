"""What the repository says about itself: workflows, constraints, addresses, and who to tell."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
USES = re.compile(r"uses: (\S+)(.*)")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_commits_and_the_version_is_named(workflow: Path) -> None:
    """A tag can be moved to other code, and a workflow that publishes would run it."""
    used = USES.findall(workflow.read_text())
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_that_the_makefile_has(workflow: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make ([\w-]+)", workflow.read_text())) <= targets


def test_pull_requests_are_tested_on_each_python_that_is_supported() -> None:
    checks = (ROOT / ".github" / "workflows" / "checks.yml").read_text()
    [matrix] = re.findall(r"python: \[(.*)\]", checks)
    supported = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if " :: 3." in name]
    assert re.findall(r"[\d.]+", matrix) == supported


def test_constraints_allow_what_the_project_requires() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["dev"], *extras["s3"], *extras["cli"]]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(pins[name], prereleases=True), name


@pytest.mark.parametrize("page", ["SECURITY.md", "CONTRIBUTING.md"])
def test_links_of_the_pages_at_the_root_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert all((ROOT / target).exists() for target in targets), targets
