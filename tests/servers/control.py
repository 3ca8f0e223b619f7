"""Control: the faults of a running server, and how other processes set them.

One `FaultControl` belongs to one server. Its owner uses it directly; another process speaks to it
over HTTP at `/_control`, through `RemoteControl`:

* GET `/_control` gives `{"faults": {...}, "counters": {...}}`
* POST `/_control` takes `{"faults": {...}}` and `{"clear": true}`, one or both, and gives what GET
  gives

To set faults restarts the ordinals: the same faults set again give the same decisions again.
"""

import dataclasses
import http.client
import json
from collections import Counter
from typing import Any, Final
from urllib.parse import urlsplit

from tests.servers.faults import NO_FAULTS, Fate, Faults, Kind, decide
from tests.servers.requestlog import Counters, RequestLog

CONTROL_PATH: Final = "/_control"


class FaultControl(RequestLog):
    """The faults in force, the ordinals of requests, and the log; safe to use from any thread."""

    def __init__(self, faults: Faults = NO_FAULTS) -> None:
        super().__init__()
        self._faults = faults
        self._asked: Counter[tuple[Kind, str]] = Counter()

    @property
    def faults(self) -> Faults:
        """The faults in force; setting them affects the next request and restarts the ordinals."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        with self._changed:
            self._faults = faults
            self._asked.clear()

    def next(self, kind: Kind, name: str) -> tuple[Faults, Fate, int]:
        """The faults in force, the fate of a request that has just come, and its ordinal."""
        with self._changed:
            faults, ordinal = self._faults, self._asked[kind, name]
            self._asked[kind, name] += 1
        return faults, decide(faults, kind, name, ordinal), ordinal

    def answer(self, body: bytes) -> bytes:
        """Does what a request to the control path says, and answers it."""
        orders = json.loads(body or b"{}")
        if "faults" in orders:
            self.faults = Faults(**orders["faults"])
        if orders.get("clear"):
            self.clear()
        return json.dumps(
            {"faults": self._faults.to_dict(), "counters": dataclasses.asdict(self.counters)}
        ).encode()


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
        return Faults(**self._ask("GET")["faults"])

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._ask("POST", {"faults": faults.to_dict()})

    @property
    def counters(self) -> Counters:
        """The sums over all requests that have ended."""
        return Counters(**self._ask("GET")["counters"])

    def clear(self) -> None:
        """Forgets the log and the sums."""
        self._ask("POST", {"clear": True})

    def _ask(self, method: str, orders: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc)
        try:
            connection.request(method, CONTROL_PATH, None if orders is None else json.dumps(orders))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()
