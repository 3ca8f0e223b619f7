"""One suite over both: each test that takes `kernels` runs on the native module and on its readable twin."""

from types import ModuleType

import pytest

from streamrec.kernels import _native, reference


@pytest.fixture(scope="session", params=[_native, reference], ids=["native", "reference"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The module of kernels under test."""
    module = request.param
    assert isinstance(module, ModuleType)
    return module
