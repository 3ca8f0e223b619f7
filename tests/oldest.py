"""A plugin of pytest for the oldest anyio (`make oldest`): `anyio_mode = "auto"`, which it does not
have.

python -m pytest -p tests.oldest ...
"""

from inspect import iscoroutinefunction
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("anyio_mode", "known to later versions")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> None:
    """Marks what is `async`, as anyio's own hook does for tests that are marked."""
    function = getattr(obj, "__func__", obj)
    drawn = getattr(function, "hypothesis", None)
    if collector.istestfunction(obj, name) and iscoroutinefunction(
        drawn.inner_test if drawn else function
    ):
        pytest.mark.anyio(pytest.mark.usefixtures("anyio_backend")(function))
