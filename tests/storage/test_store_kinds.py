"""The table of all kinds of stores: each row is complete, and no two rows contradict each other."""

import importlib
import tomllib
from collections import Counter
from pathlib import Path

import fsspec
import pytest
from fsspec.registry import known_implementations

from streamrec.display import display_name
from streamrec.errors import StorageError
from streamrec.storage import Storages
from streamrec.storage.identity import identities
from streamrec.store_kinds import (
    KINDS,
    MISNOMERS,
    OWN_PROTOCOLS,
    StoreKind,
    kind_of_filesystem,
    kind_of_protocol,
    shows_login,
)

OWN = [kind for kind in KINDS if kind.module]
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_each_protocol_is_in_one_row() -> None:
    counts = Counter(protocol for kind in KINDS for protocol in kind.protocols)
    assert max(counts.values()) == 1
    assert all(kind_of_protocol(protocol) is kind for kind in KINDS for protocol in kind.protocols)


def test_each_misnomer_is_in_one_row_and_no_protocol() -> None:
    counts = Counter(name for kind in KINDS for name in kind.misnomers)
    assert max(counts.values()) == 1
    assert counts.keys() == MISNOMERS.keys()
    known = {*(protocol for kind in KINDS for protocol in kind.protocols), *known_implementations}
    assert counts.keys().isdisjoint(known)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
def test_a_backend_of_our_own_can_connect(kind: StoreKind) -> None:
    module = importlib.import_module(f"streamrec.storage.backends.{kind.module}")
    assert callable(module.connect)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
def test_the_users_own_filesystem_is_of_the_kind(kind: StoreKind) -> None:
    if not kind.filesystem:
        return
    assert kind_of_filesystem(kind.filesystem) is kind
    for protocol in kind.protocols:
        classes = fsspec.get_filesystem_class(protocol).__mro__
        assert kind.filesystem in {each.__module__ for each in classes}


def test_each_extra_is_one_of_the_project() -> None:
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    assert {kind.extra for kind in KINDS} - {""} <= extras.keys()


def test_fsspec_knows_the_kinds_that_are_used_through_it() -> None:
    unknown = {
        protocol
        for kind in KINDS
        for protocol in kind.protocols
        if not kind.module and protocol not in known_implementations
    }
    assert not unknown


def test_spellings_of_a_protocol_name_one_object() -> None:
    for kind in KINDS:
        found = [identities(f"{protocol}://place/x") for protocol in kind.protocols]
        assert frozenset.intersection(*found)


def test_kinds_have_objects_of_their_own() -> None:
    found = [identities(f"{kind.name}://place/x") for kind in KINDS]
    assert sum(map(len, found)) == len(frozenset.union(*found))


@pytest.mark.parametrize("scheme", sorted(MISNOMERS))
async def test_a_misnomer_is_answered_with_what_to_write(scheme: str) -> None:
    async with Storages() as storages:
        with pytest.raises(StorageError) as caught:
            await storages.at(f"{scheme}://place/x")
    assert MISNOMERS[scheme] in str(caught.value)


@pytest.mark.parametrize("scheme", [*OWN_PROTOCOLS, "sftp", "abfs", "wasbs", "webdav", "ftp"])
def test_a_name_before_the_at_sign_is_shown_where_it_is_no_secret(scheme: str) -> None:
    shown = display_name(f"{scheme}://someone@place/x")
    assert ("someone" in shown) is shows_login(scheme)


def test_a_protocol_without_a_row_has_all_defaults() -> None:
    assert kind_of_protocol("ftp") == StoreKind(protocols=("ftp",))
    assert kind_of_protocol("ftp") is kind_of_protocol("ftp")
