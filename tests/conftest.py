"""What every test may rely on."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The backend of async tests: the storage clients stand on asyncio."""
    return "asyncio"
