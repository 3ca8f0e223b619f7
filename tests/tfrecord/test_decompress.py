"""decode_compressed: what tf.io.decode_compressed gives, and what it refuses."""

import gzip
import zlib

import numpy as np
import pytest

import streamrec
from streamrec import decode_compressed

TEXT = b"a text " * 1000


@pytest.mark.parametrize(("kind", "compress"), [("GZIP", gzip.compress), ("ZLIB", zlib.compress), ("", bytes)])
def test_each_string_by_itself(kind: str, compress: object) -> None:
    assert callable(compress)
    assert decode_compressed(compress(TEXT), kind) == TEXT
    several = decode_compressed([[compress(TEXT)], [compress(b"")]], kind)
    assert several.tolist() == [[TEXT], [b""]]
    assert several.dtype == np.dtype(object)


def test_damage_is_told() -> None:
    with pytest.raises(streamrec.errors.TruncatedShardError):
        decode_compressed(gzip.compress(TEXT)[:-9], "GZIP")
    with pytest.raises(streamrec.CorruptRecordError):
        decode_compressed(b"no gzip at all", "GZIP")
    with pytest.raises(TypeError, match="compressed bytes are wanted"):
        decode_compressed(5, "GZIP")
    with pytest.raises(ValueError, match="compression_type='LZ4'"):
        decode_compressed(b"", "LZ4")


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_tensorflow_gives_the_same(kind: str) -> None:
    tf = pytest.importorskip("tensorflow")
    data = gzip.compress(TEXT) if kind == "GZIP" else zlib.compress(TEXT)
    assert tf.io.decode_compressed([data], kind).numpy().tolist() == decode_compressed([data], kind).tolist()
