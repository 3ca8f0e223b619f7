"""Makes image files of arrays of pixels, for features that are stored as files.

PNGs need no other package, and keep 8 and 16 bits in 1 to 4 channels exactly. JPEGs need the extra
`images`.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.images import import_decoder
from streamrec.tfds.features import LeafFeature

Pixels = npt.NDArray[Any]

COLOR_TYPES: Final = {1: 0, 2: 4, 3: 2, 4: 6}
"""The color type of a PNG by its channels: grey, grey and alpha, RGB, RGB and alpha."""

SUBTRACTED: Final = 1
"""The filter of a row whose bytes are differences from the pixel to their left."""

JPEG_QUALITY: Final = 95
"""As TensorFlow's `encode_jpeg`."""


def encode_pixels(pixels: Pixels, leaf: LeafFeature) -> bytes:
    """The file of an image: a JPEG if its feature says so, else a PNG.

    Args:
        pixels: `[height, width, channels]`, of the feature's dtype.
        leaf: The feature. One of float32 has a single channel, whose bytes become the four channels
            of a PNG.

    Raises:
        FeatureError: The image has no pixels, or too many channels.
        MissingExtraError: A JPEG needs the extra `images`.
    """
    if not pixels.size:
        raise FeatureError(f"an image of shape {list(pixels.shape)} has no pixels")
    if leaf.dtype == "float32":
        pixels = np.ascontiguousarray(pixels, "<f4").view(np.uint8)
    if pixels.shape[-1] not in COLOR_TYPES:
        raise FeatureError(f"an image has 1 to 4 channels, and not {pixels.shape[-1]}")
    return encode_jpeg(pixels) if leaf.encoding == "jpeg" else encode_png(pixels)


def encode_jpeg(pixels: Pixels) -> bytes:
    """A JPEG of uint8 pixels with 1 or 3 channels."""
    if pixels.shape[-1] not in (1, 3):
        raise FeatureError(f"a JPEG has 1 or 3 channels, and not {pixels.shape[-1]}")
    simplejpeg = import_decoder("simplejpeg")
    grey = pixels.shape[-1] == 1
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels),
        quality=JPEG_QUALITY,
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling="Gray" if grey else "420",
    )
    return data


def encode_png(pixels: Pixels) -> bytes:
    """A PNG of uint8 or uint16 pixels with 1 to 4 channels.

    Examples:
        >>> from streamrec.images import decode_png
        >>> pixels = np.arange(24, dtype=np.uint16).reshape(2, 4, 3)
        >>> bool((decode_png(encode_png(pixels), dtype=np.uint16) == pixels).all())
        True
    """
    height, width, channels = pixels.shape
    depth = 8 * pixels.itemsize
    stored = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">"))
    rows = stored.view(np.uint8).reshape(height, -1)
    # The byte of the pixel to the left is one pixel's bytes before; the first pixel has none.
    step = channels * pixels.itemsize
    filtered = np.empty((height, rows.shape[1] + 1), np.uint8)
    filtered[:, 0] = SUBTRACTED
    filtered[:, 1 : 1 + step] = rows[:, :step]
    np.subtract(rows[:, step:], rows[:, :-step], out=filtered[:, 1 + step :])
    header = struct.pack(">IIBBBBB", width, height, depth, COLOR_TYPES[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(filtered.data)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def chunk(kind: bytes, data: bytes) -> bytes:
    """One chunk of a PNG: its length, kind, content and CRC."""
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
