"""The decisions: repeatable, independent of each other, and in the shares that were asked for."""

from __future__ import annotations

import json
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.faults import FAULTS_OF, NO_FAULTS, Faults, Kind, decide

kinds = st.sampled_from(get_args(Kind))
wet = st.builds(
    Faults,
    seed=st.integers(),
    reset=st.floats(0, 0.3),
    stall=st.floats(0, 0.3),
    unavailable=st.floats(0, 0.3),
    lost_answer=st.floats(0, 0.3),
    slow=st.floats(0, 1),
)


@given(wet, kinds, st.text(max_size=5), st.integers(0, 1000))
def test_the_same_request_meets_the_same_fate(faults: Faults, kind: Kind, name: str, ordinal: int) -> None:
    assert decide(faults, kind, name, ordinal) == decide(faults, kind, name, ordinal)


@given(wet, kinds, st.integers(0, 1000))
def test_a_kind_meets_only_its_own_faults(faults: Faults, kind: Kind, ordinal: int) -> None:
    assert decide(faults, kind, "b/k", ordinal).fault in ("", *FAULTS_OF[kind])


@given(st.integers(), st.integers(0, 1000), st.floats(0, 1))
def test_slow_requests_do_not_move_the_other_draws(seed: int, ordinal: int, slow: float) -> None:
    fair, sloth = Faults(seed, reset=0.5), Faults(seed, reset=0.5, slow=slow)
    one, other = decide(fair, "read", "b/k", ordinal), decide(sloth, "read", "b/k", ordinal)
    assert (one.fault, one.at) == (other.fault, other.at)


def test_shares_are_kept_side_by_side() -> None:
    faults = Faults(seed=3, reset=0.2, unavailable=0.1, stall=0.05, slow=0.05, rate=60e6, crawl=0.05, crawl_rate=6e6)
    fates = [decide(faults, "read", f"b/{n % 7}", n) for n in range(10_000)]
    seen = Counter(fate.fault for fate in fates)
    assert {name: round(seen[name] / 10_000, 1) for name in ("reset", "unavailable")} == {
        "reset": 0.2,
        "unavailable": 0.1,
    }
    assert 400 < seen["stall"] < 600
    assert 400 < sum(fate.slow for fate in fates) < 600
    assert Counter(fate.rate for fate in fates).keys() == {60e6, 6e6}
    assert 400 < sum(fate.rate == 6e6 for fate in fates) < 600


@given(st.integers(), st.integers(0, 100))
def test_delays_lie_between_the_first_byte_and_the_jitter(seed: int, ordinal: int) -> None:
    assert 0.03 <= decide(Faults(seed), "read", "b/k", ordinal).delay <= 0.05
    assert decide(NO_FAULTS, "read", "b/k", ordinal).delay == 0.0
    assert decide(Faults(seed, slow=1.0, slow_first_byte=7.0), "read", "b/k", ordinal).delay == 7.0


def test_a_script_goes_before_the_draw() -> None:
    faults = Faults(script=("reset", "", "stall"), corrupt=1.0)
    assert [decide(faults, "read", "b/k", n).fault for n in range(4)] == ["reset", "", "stall", "corrupt"]
    assert [decide(faults, "list", "b/", n).fault for n in range(4)] == ["", "", "", ""]


def test_a_place_can_be_fixed() -> None:
    assert decide(Faults(at=0.25), "read", "b/k", 0).at == 0.25


@given(wet)
def test_json_and_back(faults: Faults) -> None:
    assert Faults.from_dict(json.loads(json.dumps(faults.to_dict()))) == faults


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reset": 1.5}, "reset is a share"),
        ({"reset": 0.6, "cut": 0.6}, "shares of a read add up to 1.2"),
        ({"jitter": -1}, "jitter is a time"),
        ({"rate": 0}, "rate is in bytes per second"),
        ({"crawl_rate": 0}, "crawl_rate is in bytes per second"),
        ({"crawl": 1.5}, "crawl is a share of requests"),
        ({"at": 1.0}, "at is a share of the body"),
        ({"script": ["rain"]}, "script holds 'rain'"),
        ({"rain": 1}, "no fault 'rain'"),
        ({"reset": "much"}, "wrong type"),
    ],
)
def test_nonsense_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Faults.from_dict(fields)


def test_shares_of_different_kinds_are_not_added() -> None:
    assert Faults(reset=0.9, upload_reset=0.9).upload_reset == 0.9
