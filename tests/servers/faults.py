"""Faults: decides which request meets which fault. Pure: no socket and no clock.

The rules that the simulated store and the proxy both keep:

* A decision depends on the seed, the kind of request, the object and the request's ordinal among
  those of the same kind for the same object; never on the clock or on the order in which different
  objects are asked for. The same seed and the same requests give the same faults again.
* At most one fault a request. The shares of one kind of request are laid end to end in [0, 1), so
  that a share of 0.2 is one request in five whatever the other shares are, and shares of one kind
  must not add up to more than 1.
* `slow` and `crawl` are no such faults: they are drawn apart, so that a slow request can be reset
  too.
* A fault that has no meaning for a request (no byte to flip in an empty body, no Range to ignore)
  is not done, and the log does not say that it was.
"""

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Kind = Literal["read", "stat", "list", "write"]
"""Bytes of an object; its metadata (HEAD); anything else that only reads; anything that changes the
store."""

FAULTS_OF: Final[Mapping[Kind, tuple[str, ...]]] = {
    "read": (
        "unavailable",
        "reset",
        "cut",
        "stall",
        "truncate",
        "wrong_content_range",
        "ignore_range",
        "corrupt",
        "change",
    ),
    "stat": ("unavailable", "change"),
    "list": ("unavailable",),
    "write": ("unavailable", "upload_reset", "lost_answer", "upload_stall"),
}
"""Which faults each kind of request can meet, in the order in which their shares are laid end to
end."""

_SHARES: Final = tuple(dict.fromkeys(name for names in FAULTS_OF.values() for name in names))


@dataclass(frozen=True)
class Faults:
    """Network faults: delays, pacing, and the share of requests that meets each fault.

    Args:
        seed: What all decisions are drawn from.
        first_byte: Seconds from the request to the first byte of its answer.
        jitter: Up to this many seconds more, drawn evenly.
        rate: Bytes per second of each connection, paced by the kernel (Linux); None is as fast as
            it goes.
        slow: Share of requests that wait `slow_first_byte` seconds instead.
        slow_first_byte: Seconds that a slow request waits.
        crawl: Share of requests whose answers flow at `crawl_rate` instead of `rate`.
        crawl_rate: Bytes per second of these.
        unavailable: Share answered 503 (SlowDown in S3's words), with nothing done.
        status: What these are answered with in place of 503: 429, 500, 403 (no right), 400 and 401
            (expired credentials, in the words of S3 and of Google).
        retry_after: Seconds in the Retry-After header of each 503; None leaves the header out.
        reset: Share of bodies that break off with a TCP reset. What precedes the place has been
            delivered.
        cut: Share of bodies that end early with an orderly close, short of their Content-Length.
        stall: Share of bodies that stop and never go on, the connection open.
        truncate: Share of bodies that are short and whose Content-Length agrees: only the object's
            size tells.
        wrong_content_range: Share of partial answers that begin later than asked for, and say so in
            Content-Range.
        ignore_range: Share of partial requests that are answered 200 with the whole object.
        corrupt: Share of bodies with one flipped byte.
        change: Share of requests before which the object becomes a new version: other bytes, same
            length.
        upload_reset: Share of uploads that are reset while their body is on the way (proxy only).
        lost_answer: Share of changes that the server does and the client never hears of: a reset in
            place of the answer (proxy only).
        upload_stall: Share of uploads whose body is taken on to a place in it, and never answered
            (proxy only).
        at: Where in the body its fault lies, as a share of its length in [0, 1); None draws the
            place.
        script: The faults of the first requests of each kind for each object, in order, in place of
            drawn ones; "" is a request that goes well. A name that the kind of request cannot meet
            goes well too.

    Raises:
        ValueError: A share outside [0, 1], shares of one kind above 1 in sum, or an unknown name in
            `script`.
    """

    seed: int = 0
    first_byte: float = 0.03
    jitter: float = 0.02
    rate: float | None = None
    slow: float = 0.0
    slow_first_byte: float = 1.0
    crawl: float = 0.0
    crawl_rate: float = 5e6
    unavailable: float = 0.0
    status: int = 503
    retry_after: int | None = None
    reset: float = 0.0
    cut: float = 0.0
    stall: float = 0.0
    truncate: float = 0.0
    wrong_content_range: float = 0.0
    ignore_range: float = 0.0
    corrupt: float = 0.0
    change: float = 0.0
    upload_reset: float = 0.0
    lost_answer: float = 0.0
    upload_stall: float = 0.0
    at: float | None = None
    script: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "script", tuple(self.script))  # JSON gives a list
        for name in (*_SHARES, "slow", "crawl"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(
                    f"{name} is a share of requests in [0, 1], not {getattr(self, name)!r}"
                )
        for kind, names in FAULTS_OF.items():
            total = sum(getattr(self, name) for name in names)
            if total > 1.0 + 1e-9:
                raise ValueError(
                    f"the shares of a {kind} add up to {total:.4g}; make them 1 or less"
                )
        unknown = [name for name in self.script if name and name not in _SHARES]
        if unknown:
            raise ValueError(
                f"script holds {unknown[0]!r}; the faults are {', '.join(_SHARES)}, and '' for none"
            )

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON can hold them: `Faults(**fields)` is the reverse."""
        return {**dataclasses.asdict(self), "script": list(self.script)}


NO_FAULTS: Final = Faults(first_byte=0.0, jitter=0.0)
"""A good network: no delay and no fault."""


@dataclass(frozen=True)
class Fate:
    """What happens to one request.

    Args:
        fault: The fault's name, or "".
        at: Where in the body, as a share of its length in [0, 1).
        delay: Seconds until the first byte of the answer.
        slow: Whether this is a slow request.
        rate: Bytes per second of its answer; None is as fast as it goes.
    """

    fault: str
    at: float
    delay: float
    slow: bool
    rate: float | None = None


def decide(faults: Faults, kind: Kind, name: str, ordinal: int) -> Fate:
    """Draws the fate of the request `ordinal` (from 0) of this kind for the object `name`."""
    draw = random.Random(
        f"{faults.seed}/{kind}/{ordinal}/{name}"
    )  # a string is seeded by its SHA-512: stable
    which, place, wait, sloth, pace = (
        draw.random() for _ in range(5)
    )  # always all: no share moves another's draw
    slow = sloth < faults.slow
    delay = faults.slow_first_byte if slow else faults.first_byte + wait * faults.jitter
    scripted = faults.script[ordinal] if ordinal < len(faults.script) else None
    fault = (
        _drawn(faults, kind, which)
        if scripted is None
        else scripted
        if scripted in FAULTS_OF[kind]
        else ""
    )
    rate = faults.crawl_rate if pace < faults.crawl else faults.rate
    return Fate(fault, place if faults.at is None else faults.at, delay, slow, rate)


def _drawn(faults: Faults, kind: Kind, which: float) -> str:
    edge = 0.0
    for name in FAULTS_OF[kind]:
        edge += getattr(faults, name)
        if which < edge:
            return name
    return ""
