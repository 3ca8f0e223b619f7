"""How hard the tests try.

`make test` and CI run every test that is not marked `thorough`, so one commit passes today and
tomorrow. A test is marked `thorough` if it is another variant of what is tested anyway and takes
long. Of a property, `make test` tries a few drawn examples.

STREAMREC_THOROUGH=1 runs everything, with more examples: every night, before a release, and after
changes of the engine.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

THOROUGH = os.environ.get("STREAMREC_THOROUGH") == "1"
"""Whether everything is tried."""

SECONDS_TO_END = 4.0
"""How long a program may take to end on a busy machine, where a tenth of a second is usual. A
program that does not end when it is told to takes five seconds."""


def example_count(most: int) -> int:
    """This many examples if everything is tried; else a sixth of them, but at least five."""
    return most if THOROUGH else max(5, most // 6)


def drawn_examples(most: int, *suppressed: HealthCheck) -> settings:
    """Settings of Hypothesis: as many examples as `example_count` says, and no deadline, since how
    long one takes depends on what else runs here.
    """
    return settings(
        max_examples=example_count(most), deadline=None, suppress_health_check=suppressed
    )


def thorough(*values: Any) -> list[Any]:
    """Values of a parameter that are other variants of what is tested anyway."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


OTHER_CLIENT = os.environ.get("STREAMREC_OTHER_CLIENT") == "1"
"""Whether these tests run with other clients than the newest (`make test-s3`)."""

newest_client_only = pytest.mark.skipif(
    OTHER_CLIENT, reason="of the newest client, in whose environment all tests run"
)
"""For tests that rest on private details of the newest client."""
