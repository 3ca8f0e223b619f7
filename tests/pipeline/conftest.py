"""What tests of pipelines may rely on."""

from pathlib import Path

import pytest

from tests.pipeline.small_shards import written


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The paths of the small shards."""
    return written(tmp_path)
