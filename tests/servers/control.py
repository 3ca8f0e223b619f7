"""Control: the faults of a running server, and how other processes set them.

One `FaultControl` belongs to one server. Its owner uses it directly; another process speaks to it over HTTP
at `/_control`, through `RemoteControl`:

* GET `/_control` gives `{"faults": {...}, "counters": {...}}`
* GET `/_control/log` gives a list of entries
* POST `/_control` takes `{"faults": {...}}`, `{"clear": true}` and `{"wait_idle": seconds}`, in any union,
  and gives what GET gives, with `"idle": true | false` where it waited

To set faults begins the ordinals anew: the same faults set again give the same decisions again.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
from collections import Counter
from typing import Any, Final
from urllib.parse import urlsplit

from tests.servers.faults import NO_FAULTS, Fate, Faults, Kind, decide
from tests.servers.requestlog import Counters, Entry, RequestLog

__all__ = ["CONTROL_PATH", "FaultControl", "RemoteControl"]

CONTROL_PATH: Final = "/_control"


class FaultControl:
    """The faults in force, the ordinals of requests, and the log; safe to use from any thread."""

    def __init__(self, faults: Faults = NO_FAULTS) -> None:
        self._log = RequestLog()
        self._lock = threading.Lock()
        self._faults = faults
        self._asked: Counter[tuple[Kind, str]] = Counter()

    @property
    def faults(self) -> Faults:
        """The faults in force; setting them affects the next request and restarts the ordinals."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        with self._lock:
            self._faults = faults
            self._asked.clear()

    @property
    def log(self) -> tuple[Entry, ...]:
        """One entry for each request, in the order in which they came; see `wait_idle`."""
        return self._log.entries()

    @property
    def counters(self) -> Counters:
        """The sums over all requests that have ended."""
        return self._log.counters()

    def clear(self) -> None:
        """Forgets the log and the sums. Faults and ordinals stay."""
        self._log.clear()

    def wait_idle(self, seconds: float = 5.0) -> bool:
        """Waits until only stalled answers are in progress; returns False after the time limit."""
        return self._log.wait_idle(seconds)

    def wait_closed(self, seconds: float = 5.0) -> bool:
        """Waits until stalled answers have ended too, because their peers closed; whether that came true in time."""
        return self._log.wait_closed(seconds)

    def next(self, kind: Kind, name: str) -> tuple[Faults, Fate, int]:
        """The faults in force, the fate of a request that has just come, and its ordinal."""
        with self._lock:
            faults, ordinal = self._faults, self._asked[kind, name]
            self._asked[kind, name] += 1
        return faults, decide(faults, kind, name, ordinal), ordinal

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Answers a request to the control path: status and JSON body."""
        if method == "GET" and target == f"{CONTROL_PATH}/log":
            return 200, json.dumps([dataclasses.asdict(entry) for entry in self._log.entries()]).encode()
        if method not in ("GET", "POST") or target != CONTROL_PATH:
            return 404, json.dumps({"error": f"no {method} {target}; see tests.servers.control"}).encode()
        try:
            orders = json.loads(body) if method == "POST" else {}
            told = self._obey(orders)
        except (ValueError, AttributeError, TypeError) as exc:
            return 400, json.dumps({"error": str(exc)}).encode()
        return 200, json.dumps({**self._state(), **told}).encode()

    def _obey(self, orders: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(orders.keys() - {"faults", "clear", "wait_idle"})
        if unknown:
            raise ValueError(f"unknown order {unknown[0]!r}: faults, clear and wait_idle are known")
        if "faults" in orders:
            self.faults = Faults.from_dict(orders["faults"])
        told = {"idle": self._log.wait_idle(float(orders["wait_idle"]))} if "wait_idle" in orders else {}
        if orders.get("clear"):
            self.clear()
        return told

    def _state(self) -> dict[str, Any]:
        return {"faults": self._faults.to_dict(), "counters": dataclasses.asdict(self.counters)}


class RemoteControl:
    """The control of a server in another process, over its control path.

    Args:
        url: The server's URL.

    Each use is one request on a connection of its own.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def faults(self) -> Faults:
        """The faults in force; can be set."""
        return Faults.from_dict(self._ask("GET")["faults"])

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._ask("POST", {"faults": faults.to_dict()})

    @property
    def counters(self) -> Counters:
        """The sums over all requests that have ended."""
        return Counters(**self._ask("GET")["counters"])

    @property
    def log(self) -> tuple[Entry, ...]:
        """One entry for each request, in order."""
        return tuple(Entry(**fields) for fields in self._ask("GET", path=f"{CONTROL_PATH}/log"))

    def clear(self) -> None:
        """Forgets the log and the sums."""
        self._ask("POST", {"clear": True})

    def wait_idle(self, seconds: float = 5.0) -> bool:
        """Waits until only stalled answers are in progress; returns False after the time limit."""
        return bool(self._ask("POST", {"wait_idle": seconds})["idle"])

    def _ask(self, method: str, orders: dict[str, Any] | None = None, path: str = CONTROL_PATH) -> Any:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc)
        try:
            connection.request(method, path, None if orders is None else json.dumps(orders))
            answer = connection.getresponse()
            body = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(body["error"])
        return body
