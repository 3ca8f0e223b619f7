"""What tests of pipelines may rely on."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.stored_shards import write_small_shards


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The paths of the small shards."""
    return write_small_shards(tmp_path)


@pytest.fixture(scope="module", params=["copied", "scattered"])
def both_layouts(request: pytest.FixtureRequest) -> Iterator[str]:
    """Records of many blocks are copied together, or stay where they lie, however long they are."""
    with pytest.MonkeyPatch.context() as patch:
        least = 0 if request.param == "scattered" else sys.maxsize
        patch.setattr("streamrec.tfrecord.frames.SCATTERED_BYTES", least)
        patch.setattr("streamrec.pipeline.sources.shuffle.buffer_store.LONG_BYTES", least)
        yield request.param
