"""The versions of shards in states: small, and compared shard by shard."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ObjectChangedError, PositionMismatchError
from streamrec.pipeline.engine.versions import (
    FEW,
    MARK,
    MOST,
    SavedVersions,
    ShardVersions,
    join_marks,
)

KNOWN = st.dictionaries(st.integers(0, 40), st.text(min_size=1, max_size=9), max_size=20)


def versions_of(known: dict[int, str]) -> ShardVersions:
    versions = ShardVersions()
    for shard, version in known.items():
        versions.note(shard, version)
    return versions


@given(KNOWN, st.integers(0, 45))
def test_a_state_has_the_versions_of_the_shards_that_are_left(
    known: dict[int, str], first: int
) -> None:
    saved = SavedVersions.of({"versions": versions_of(known).marks(first)}, first)
    assert saved.marks.keys() == {shard for shard in known if shard >= first}
    for shard, version in known.items():
        saved.check(shard, version, "x")
        saved.check(shard, None, "x")
        if shard >= first:
            with pytest.raises(ObjectChangedError, match="written after the state was saved"):
                saved.check(shard, version + "2", "x")


@given(KNOWN, KNOWN, st.integers(0, 45))
def test_a_run_hands_on_what_it_has_not_opened(
    known: dict[int, str], opened: dict[int, str], first: int
) -> None:
    versions = versions_of(opened)
    versions.restore(SavedVersions.of({"versions": versions_of(known).marks(first)}, first))
    wanted = versions_of({**{n: each for n, each in known.items() if n >= first}, **opened})
    assert versions.marks() == wanted.marks()


@given(st.lists(KNOWN, min_size=1, max_size=4))
def test_workers_join_what_they_know(parts: list[dict[int, str]]) -> None:
    known = {n: f"v{n}" for part in parts for n in part}
    texts = [versions_of({n: known[n] for n in part}).marks() for part in parts]
    assert join_marks(texts) == versions_of(known).marks()


def test_states_stay_small() -> None:
    count = 3 * MOST
    versions = versions_of({number: str(number) for number in range(count)})
    assert len(versions.marks(5)) == MARK * MOST
    whole = versions.of_all(count)
    assert len(whole) < 20
    saved = SavedVersions.of({"versions": whole}, 0)
    paths = list(map(str, range(count)))
    saved.check_all(paths, paths)
    with pytest.raises(PositionMismatchError, match=f"of these {count:,} shards"):
        saved.check_all([*paths[:-1], "other"], paths)
    assert len(versions_of({0: "a", FEW: "b"}).of_all(FEW + 1)) == MARK * (FEW + 1)


def test_the_first_shard_that_differs_is_named() -> None:
    saved = SavedVersions.of({"versions": versions_of({0: "a", 1: "b", 2: "c"}).of_all(3)}, 0)
    with pytest.raises(PositionMismatchError, match="s-1 had another version"):
        saved.check_all(["a", "x", "y"], ["s-0", "s-1", "s-2"])
