"""One suite over both: each test that takes `kernels` runs on the native module and on its readable twin."""

from types import ModuleType

import pytest
from hypothesis import settings

from streamrec.kernels import _native
from tests.oracle import kernels as reference

# A busy machine is no failure; pytest's own time limit catches what hangs.
settings.register_profile("kernels", deadline=None)
settings.load_profile("kernels")


@pytest.fixture(scope="session", params=[_native, reference], ids=["native", "reference"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The module of kernels under test."""
    module = request.param
    assert isinstance(module, ModuleType)
    return module
