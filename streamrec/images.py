"""Decoding of JPEG, PNG, GIF and BMP images to arrays of pixels.

Images are decoded one at a time, or a column at a time.

    from streamrec.images import decode_jpeg

    features = {"image": FixedLenFeature([], bytes), "label": FixedLenFeature([], np.int64)}
    dataset = streamrec.TFRecordDataset("s3://bucket/train-*", num_parallel_reads=16).batch(32)
    images = dataset.parse_example(features).map(
        lambda batch: (decode_jpeg(batch["image"]), batch["label"]), num_parallel_calls=AUTOTUNE
    )

Needs the extra `images`: simplejpeg (libjpeg-turbo) decodes JPEGs, and Pillow the
other formats. Each is imported on first use.

Rules:
- The functions follow `tf.io.decode_jpeg`, `decode_png` and `decode_image`: shapes are equal, and
  pixels nearly equal. The samples of a PNG of 16 bits are equal.
- The decoders release the GIL, so a `map` with `num_parallel_calls` uses that many cores.
- A call starts no threads: the caller decides how many images are decoded at once. In a `map` with
  `num_parallel_calls`, threads that have no batch decode images of a batch of another thread.
- An image that cannot be decoded raises a `FeatureError` with the row's number.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.arguments import check_choice, name_type
from streamrec.errors import FeatureError, MissingExtraError, install_command
from streamrec.example import BytesColumn
from streamrec.example.dtypes import dtype_name
from streamrec.pipeline.engine.shared_items import for_each_item

__all__ = ["decode_image", "decode_jpeg", "decode_png"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


Pixels: TypeAlias = npt.NDArray[Any]

MAX_BYTES: Final = 1 << 29
"""Limit of pixels times channels, as in TensorFlow: a header of a few bytes can claim any size."""

MAX_RATIO: Final = 1000
"""How many pixel bytes a JPEG may have for each of its own bytes.

A JPEG with more must be below `MAX_BYTES` before `ratio` applies.
"""

ENCODED: Final = (bytes, bytearray, memoryview)
RATIOS: Final = (1, 2, 4, 8)
MODES: Final = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
DEEPEST: Final = 65535
"""The largest sample of 16 bits."""

DEEP_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}
"""The channels of a PNG of 16 bits by its color type."""

GREY: Final = np.array([9797, 19234, 3737], np.uint64)
"""The weights of red, green and blue in grey, of 2**15.

They are 0.299, 0.587 and 0.114 as TensorFlow gives them to libpng.
"""

SIGNATURES: Final = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"GIF8": "GIF",
    b"BM": "BMP",
}


def decode_jpeg(contents: Any, channels: int = 0, ratio: int = 1) -> npt.NDArray[Any]:
    """Decodes JPEG images as `tf.io.decode_jpeg` does; also PNGs, and GIFs of one frame.

    Args:
        contents: The encoded image as bytes; or a `BytesColumn`, `Frames`, an array or a list of
            them.
        channels: 0 for as many as the image has (1 or 3), 1 for grey, 3 for RGB.
        ratio: 1, 2, 4 or 8: decodes a JPEG to 1/ratio of its height and width, rounded up, which is
            faster than decoding all pixels. Other formats keep their size.

    Returns:
        For one image uint8 of shape `[height, width, channels]`. For a column an object array of
        its shape that contains such arrays; `np.stack` joins images of equal size.

    Raises:
        FeatureError: The bytes are not an image, or the image is damaged; `record` is the row in
            the column.
        MissingExtraError: The decoder is not installed.
        ValueError: `channels` or `ratio` has another value.

    Examples:
        >>> import simplejpeg
        >>> jpeg = simplejpeg.encode_jpeg(np.zeros((30, 50, 3), np.uint8))
        >>> decode_jpeg(jpeg).shape, decode_jpeg(jpeg, channels=1, ratio=4).shape
        ((30, 50, 3), (8, 13, 1))
        >>> [image.shape for image in decode_jpeg([jpeg, jpeg], ratio=2)]
        [(15, 25, 3), (15, 25, 3)]
    """
    check_choice("channels", channels, (0, 1, 3))
    check_choice("ratio", ratio, RATIOS)

    def decode(data: bytes) -> Pixels:
        kind = detect_format(data)
        if kind == "JPEG":
            return decode_with_simplejpeg(data, channels, ratio)
        if kind == "BMP":
            raise FeatureError("this is a BMP image: use decode_image")
        frames = decode_with_pillow(data, kind, channels)
        return only_frame(frames)

    return decode_all(contents, decode)


def only_frame(frames: Pixels) -> Pixels:
    """The only image of a file. Those of a GIF need a dimension more: `decode_image` gives it."""
    if len(frames) > 1:
        raise FeatureError(f"this is a GIF of {len(frames)} frames: use decode_image")
    first: Pixels = frames[0]
    return first


def decode_png(contents: Any, channels: int = 0, dtype: Any = np.uint8) -> npt.NDArray[Any]:
    """Decodes PNG images as `tf.io.decode_png` does; also JPEGs, and GIFs of one frame.

    Args:
        contents: The encoded image as bytes; or a `BytesColumn`, `Frames`, an array or a list of
            them.
        channels: 0 for as many as the image has, 1 for grey, 3 for RGB, 4 for RGB and alpha.
        dtype: uint8 or uint16, of NumPy or TensorFlow, or by name. A depth map of 16 bits needs
            uint16: as uint8, each sample loses its lower 8 bits, as in TensorFlow. Samples of 8
            bits become uint16 times 257, so that 255 is 65535; those of a JPEG or GIF times 256.

    Returns:
        For one image an array of `dtype` and of shape `[height, width, channels]`. For a column an
        object array of its shape that contains such arrays; `np.stack` joins images of equal size.

    Raises:
        FeatureError: The bytes are not an image, or the image is damaged; `record` is the row in
            the column.
        MissingExtraError: The decoder is not installed.
        ValueError: `channels` or `dtype` has another value.

    Examples:
        >>> from PIL import Image
        >>> file = BytesIO()
        >>> Image.fromarray(np.array([[0, 1000, 65535]], np.uint16)).save(file, "PNG")
        >>> decode_png(file.getvalue(), dtype="uint16").tolist()
        [[[0], [1000], [65535]]]
        >>> decode_png(file.getvalue()).tolist()
        [[[0], [3], [255]]]
    """
    check_choice("channels", channels, (0, 1, 3, 4))
    name = check_choice("dtype", dtype_name(dtype), ("uint8", "uint16"))

    def decode(data: bytes) -> Pixels:
        kind = detect_format(data)
        if kind == "BMP":
            raise FeatureError("this is a BMP image: use decode_image")
        frames = decode_frames(data, kind, channels, name)
        return only_frame(frames)

    return decode_all(contents, decode)


def decode_image(
    contents: Any, channels: int = 0, dtype: Any = np.uint8, *, expand_animations: bool = True
) -> npt.NDArray[Any]:
    """Decodes JPEG, PNG, GIF and BMP images as `tf.io.decode_image` does.

    Args:
        contents: The encoded image as bytes; or a `BytesColumn`, `Frames`, an array or a list of
            them.
        channels: 0 for as many as the image has, 1 for grey, 3 for RGB, 4 for RGB and alpha.
        dtype: uint8, uint16 or float32, of NumPy or TensorFlow, or by name. As uint8, samples of 16
            bits lose the lower 8. As uint16, those of 8 bits are multiplied by 257 in PNGs and by
            256 in other formats. As float32, all are from 0 to 1.
        expand_animations: Whether to decode all frames of a GIF, or only the first one.

    Returns:
        For one image an array of `dtype` and of shape `[height, width, channels]`, for a GIF
        `[frames, height, width, channels]`. Unlike in TensorFlow, a BMP's palette is applied, and
        every format supports every value of `channels`. For a column an object array of its shape
        that contains such arrays.

    Raises:
        FeatureError: The bytes are not an image, or the image is damaged; `record` is the row in
            the column.
        MissingExtraError: The decoder is not installed.
        ValueError: `channels` or `dtype` has another value.

    Examples:
        >>> from PIL import Image
        >>> file = BytesIO()
        >>> Image.new("LA", (5, 3)).save(file, "PNG")
        >>> decode_image(file.getvalue()).shape, decode_image(file.getvalue(), channels=3).shape
        ((3, 5, 2), (3, 5, 3))
    """
    check_choice("channels", channels, (0, 1, 3, 4))
    name = check_choice("dtype", dtype_name(dtype), ("uint8", "uint16", "float32"))

    def decode(data: bytes) -> Pixels:
        kind = detect_format(data)
        frames = decode_frames(data, kind, channels, name, all_frames=expand_animations)
        return frames if kind == "GIF" and expand_animations else frames[0]

    return decode_all(contents, decode)


def decode_by_default(data: bytes, channels: int, dtype: str, out: Pixels | None = None) -> Pixels:
    """One image with the pixels of TensorFlow's default: JPEGs by the fast inverse transform.

    Args:
        data: The file.
        channels, dtype: As for `decode_image`.
        out: An array that may receive the pixels, and is the result then: for a JPEG, of the
            image's shape, in uint8.

    Raises:
        FeatureError: The bytes are not an image, or the image is damaged.
    """

    def decode(data: bytes) -> Pixels:
        kind = detect_format(data)
        if kind == "JPEG" and dtype == "uint8":
            return decode_with_simplejpeg(data, channels, 1, fast=True, out=out)
        first: Pixels = decode_frames(data, kind, channels, dtype, all_frames=False, fast=True)[0]
        return first

    return decode_one(data, None, decode)


def decode_frames(
    data: bytes,
    kind: str,
    channels: int,
    dtype: str,
    *,
    all_frames: bool = True,
    fast: bool = False,
) -> Pixels:
    """The frames of an image of any format, of shape `[frames, height, width, channels]`.

    With `fast`, JPEGs are decoded by the inverse transform that TensorFlow uses by default.
    """
    if kind == "JPEG":
        frames = decode_with_simplejpeg(data, channels, 1, fast=fast)[None]
    elif kind == "PNG" and dtype != "uint8":
        frames = decode_deep_png(data, channels)[None]
    else:
        frames = decode_with_pillow(data, kind, channels, all_frames)
    if dtype == "float32":
        most = np.float32(255 if frames.dtype == np.uint8 else DEEPEST)
        return frames.astype(np.float32) / most
    if dtype == "uint16" and frames.dtype == np.uint8:
        return frames.astype(np.uint16) * np.uint16(256)  # not 257: so does TensorFlow
    return frames


def decode_all(contents: Any, decode: Callable[[bytes], Pixels]) -> npt.NDArray[Any]:
    """Decodes one image, or each image of a column."""
    if isinstance(contents, ENCODED):
        return decode_one(contents, None, decode)
    shape = contents.shape if isinstance(contents, BytesColumn | np.ndarray) else (len(contents),)
    if not shape:
        return decode_one(contents[()], None, decode)
    flat = contents.reshape(-1) if isinstance(contents, BytesColumn | np.ndarray) else contents
    images = np.empty(len(flat), object)
    images_per_row = math.prod(shape[1:])

    def decode_row(index: int) -> None:
        images[index] = decode_one(flat[index], index // images_per_row, decode)

    for_each_item(len(flat), decode_row)
    return images.reshape(shape)


def decode_one(data: Any, row: int | None, decode: Callable[[bytes], Pixels]) -> Pixels:
    """Decodes one image.

    Raises:
        TypeError: `data` is not bytes.
        FeatureError: The image cannot be decoded; `row` is in it.
    """
    if not isinstance(data, ENCODED):
        raise TypeError(f"an encoded image must be bytes, and this is {name_type(data)}")
    try:
        return decode(data := bytes(data))
    except MissingExtraError:
        raise
    except FeatureError as error:
        raise FeatureError(error.reason, None, row) from error.__cause__
    # Decoders raise anything: ValueError, SyntaxError, struct.error, OSError.
    except Exception as error:
        what = f"{detect_format(data)} image of {len(data):,} bytes"
        raise FeatureError(
            f"the {what} cannot be decoded, because it is damaged: {error}", None, row
        ) from error


def detect_format(data: bytes) -> str:
    """The format of an image, from its first bytes."""
    for signature, kind in SIGNATURES.items():
        if data[: len(signature)] == signature:
            return kind
    start = "an empty string"
    if data:
        start = f"{len(data):,} bytes that begin with {bytes(data[:8])!r}"
    raise FeatureError(f"this is not a JPEG, PNG, GIF or BMP image: {start}")


def decode_with_simplejpeg(
    data: bytes, channels: int, ratio: int, *, fast: bool = False, out: Pixels | None = None
) -> Pixels:
    """Decodes a JPEG, into `out` if that has its shape.

    Of libjpeg's warnings, only "Premature end" is an error (as in TensorFlow).
    """
    simplejpeg = import_decoder("simplejpeg")
    height, width, space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    channels = channels or (1 if space == "Gray" else 3)
    # Some JPEGs are decoded whole before they are made smaller.
    if height * width * channels > MAX_RATIO * len(data):
        check_size(height, width, channels)
    height = -(-height // ratio)
    width = -(-width // ratio)
    check_size(height, width, channels)
    options = {"colorspace": MODES[channels].replace("L", "GRAY"), "fastdct": fast}
    shape = (height, width, channels)
    if ratio > 1:
        options |= {"min_factor": ratio, "min_height": height, "min_width": width}
    elif out is None or out.shape != shape or not out.flags.c_contiguous:
        out = empty(shape)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, buffer=out, **options)
    except ValueError as error:
        if "Premature end" in str(error):
            raise
        pixels = simplejpeg.decode_jpeg(data, strict=False, buffer=out, **options)
    return pixels if out is None else out


def empty(shape: tuple[int, ...], dtype: Any = np.uint8) -> npt.NDArray[Any]:
    """An array of no particular content, in memory that is used again.

    The system clears each page of new memory, which took a third of the time of decoding a batch.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if kind.hasobject or not size:
        return np.empty(shape, kind)
    return np.frombuffer(memoryview(kernels.allocate(size)), kind).reshape(shape)


def decode_with_pillow(data: bytes, kind: str, channels: int, all_frames: bool = True) -> Pixels:
    """The frames of an image, of shape `[frames, height, width, channels]`.

    Only a GIF may have more than one.
    """
    if kind == "PNG" and (header := png_header(data)).depth == 16:
        return (decode_sixteen_bits(data, header, channels) >> 8).astype(np.uint8)[None]
    pillow = import_decoder("PIL.Image")
    pillow.preinit()
    # `pillow.open` has a lower limit than `MAX_BYTES`.
    with pillow.OPEN[kind][0](BytesIO(data)) as image:
        count = image.n_frames if kind == "GIF" and all_frames else 1
        mode = MODES[channels or count_channels(image, data, kind)]
        frames = []
        for number in range(count):
            image.seek(number)
            # In the loop, since a later frame may be larger than the first.
            check_size(image.height * count, image.width, len(mode))
            frames.append(convert_frame(image, mode))
    return np.stack(frames)


def count_channels(image: Any, data: bytes, kind: str) -> int:
    """The number of channels that TensorFlow decodes by default."""
    if kind == "GIF":
        return 3
    # The number is the bits of a pixel; Pillow leaves out the alpha.
    if kind == "BMP" and int.from_bytes(data[28:30], "little") == 32:
        return 4
    if image.mode == "P":
        return 4 if "transparency" in image.info else 3
    return len(image.getbands())


def convert_frame(image: Any, mode: str) -> Pixels:
    """The pixels of the current frame, converted to a mode of Pillow's."""
    pixels: Pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels.reshape(image.height, image.width, -1)


class PngHeader(NamedTuple):
    """The header of a PNG.

    It says the image's size, the bits of a sample, the color type of the format, and whether the
    rows come in seven passes.
    """

    width: int
    height: int
    depth: int
    color: int
    interlaced: bool


def png_header(data: bytes) -> PngHeader:
    """The header, which is the first chunk of a PNG."""
    width, height, depth, color, _, _, interlaced = struct.unpack_from(">IIBBBBB", data, 16)
    return PngHeader(width, height, depth, color, bool(interlaced))


def decode_deep_png(data: bytes, channels: int) -> Pixels:
    """The pixels of a PNG as uint16, of shape `[height, width, channels]`."""
    header = png_header(data)
    if header.depth == 16:
        return decode_sixteen_bits(data, header, channels)
    if channels == 1:  # libpng's grey, and not Pillow's, which may differ by 1, here by 257
        colors = decode_with_pillow(data, "PNG", 0)[0]
        pixels = convert_channels(colors, 1, None)
    else:
        pixels = decode_with_pillow(data, "PNG", channels)[0]
    return pixels.astype(np.uint16) * np.uint16(257)


def decode_sixteen_bits(data: bytes, header: PngHeader, channels: int) -> npt.NDArray[np.uint16]:
    """The pixels of a PNG of 16 bits.

    Pillow reads such PNGs with several channels as 8 bits. But its decoder of a PNG's rows undoes
    their filters for pixels of any width. So it decodes the rows as pixels of the same width, whose
    bytes are those of the samples; or, as there are no pixels of 6 or 8 bytes, it keeps one byte of
    each sample in a first pass, and the other one in a second pass.
    """
    kept = DEEP_CHANNELS.get(header.color)
    if kept is None:
        raise ValueError(f"a PNG of 16 bits has no color type {header.color}")
    check_size(header.height, header.width, max(kept, channels))
    rows = b"".join(body for kind, body in png_chunks(data) if kind == b"IDAT")
    if kept < 3:
        mode = MODES[2 * kept]
        raw = decode_rows(rows, header, mode, mode)
        samples = raw.view(">u2").astype(np.uint16)
    else:
        high, low = (
            decode_rows(rows, header, MODES[kept], f"{MODES[kept]};16{order}") for order in "BL"
        )
        samples = high.astype(np.uint16) << np.uint16(8) | low
    key = None
    for kind, body in png_chunks(data):
        if kind == b"tRNS" and kept in (1, 3):
            key = np.frombuffer(body, ">u2", kept)
    return convert_channels(samples, channels or kept, key)


def decode_rows(rows: bytes, header: PngHeader, mode: str, raw: str) -> npt.NDArray[np.uint8]:
    """Decodes compressed rows as pixels of a mode of Pillow's, whose bytes `raw` picks."""
    size = header.width, header.height
    image = import_decoder("PIL.Image").frombytes(mode, size, rows, "zip", (raw, header.interlaced))
    return np.ascontiguousarray(image).reshape(header.height, header.width, -1)


def png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The kind and the body of each chunk of a PNG, after a check of its CRC."""
    place = 8
    kind = b""
    while kind != b"IEND" and place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        (crc,) = struct.unpack_from(">I", data, place + 8 + length)
        if zlib.crc32(body, zlib.crc32(kind)) != crc:
            raise ValueError(f"the CRC of the chunk at byte {place:,} is wrong")
        yield kind, body
        place += length + 12


def convert_channels(
    pixels: npt.NDArray[Any], channels: int, key: npt.NDArray[Any] | None
) -> npt.NDArray[Any]:
    """The pixels of an image with as many channels as libpng makes of them.

    Those of the color `key` are transparent.
    """
    most = np.iinfo(pixels.dtype).max
    kept = pixels.shape[-1]
    colors = pixels[..., : kept - 1 + kept % 2]
    if channels == kept:
        return pixels
    if channels == 1 and colors.shape[-1] == 1:
        return colors
    if channels == 1:
        # Of 16 bits the sum is rounded, of 8 bits it is cut off.
        half = np.uint64(1 << 14 if most == DEEPEST else 0)
        grey = (colors.astype(np.uint64) @ GREY + half) >> np.uint64(15)
        return grey.astype(pixels.dtype)[..., None]
    if colors.shape[-1] == 1:
        colors = np.repeat(colors, 3, axis=-1)
    if channels == 3:
        return colors
    if kept % 2 == 0:
        alpha = pixels[..., -1:]
    else:
        alpha = np.full_like(pixels[..., :1], most)
        if key is not None:
            alpha[(pixels == key).all(axis=-1)] = 0
    return np.concatenate([colors, alpha], axis=-1)


def check_size(height: int, width: int, channels: int) -> None:
    """Refuses an image of more than `MAX_BYTES` samples before memory is allocated for it."""
    if height * width * channels > MAX_BYTES:
        raise FeatureError(
            f"the image has {height:,} x {width:,} pixels: more than {MAX_BYTES >> 20} MiB are "
            "refused"
        )


def import_decoder(name: str) -> Any:
    """Imports a module of the extra `images`.

    Raises:
        MissingExtraError: It is not installed; the message says how to install it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"decoding images needs more packages: {install_command('images')}"
        ) from error
