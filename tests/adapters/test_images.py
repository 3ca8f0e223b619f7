"""streamrec.images: what is decoded, what is refused, and where in the data it lies."""

import re
import struct
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import streamrec
from streamrec import BytesColumn, FeatureError, FixedLenFeature, TFRecordDataset, encode_example
from streamrec.errors import MissingExtraError, install_command
from streamrec.images import decode_by_default, decode_image, decode_jpeg, decode_png
from tests.effort import drawn_examples
from tests.runs import in_new_interpreter, until_error, write_shards

PIL = pytest.importorskip("PIL.Image")
simplejpeg = pytest.importorskip("simplejpeg")

FEATURES = {"image": FixedLenFeature([], bytes), "label": FixedLenFeature([], np.int64)}


def picture(height: int = 37, width: int = 53, seed: int = 0) -> Any:
    """Smooth colours, as photographs have them."""
    few = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return PIL.fromarray(few).resize((width, height))


def encoded_image(image: Any, kind: str = "JPEG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def image_of_16_bits() -> Any:
    return PIL.fromarray(np.random.default_rng(1).integers(0, 1 << 16, (37, 53)).astype(np.uint16))


ANIMATED = encoded_image(
    picture(), "GIF", save_all=True, append_images=[picture(seed=1), picture(seed=2)]
)

JPEGS = {
    "colour": encoded_image(picture()),
    "colour, whole chroma": encoded_image(picture(), subsampling=0),
    "progressive": encoded_image(picture(), progressive=True),
    "grey": encoded_image(picture().convert("L")),
    "CMYK": encoded_image(picture().convert("CMYK")),
}
OTHER_IMAGES = {
    **{
        f"PNG {mode}": encoded_image(picture().convert(mode), "PNG")
        for mode in ("RGB", "RGBA", "L", "LA", "P", "1")
    },
    "PNG 16 bits": encoded_image(image_of_16_bits(), "PNG"),
    "PNG palette with a transparent colour": encoded_image(
        picture().convert("P"), "PNG", transparency=3
    ),
    "GIF": encoded_image(picture(), "GIF"),
    "GIF of three frames": ANIMATED,
    **{
        f"BMP {mode}": encoded_image(picture().convert(mode), "BMP")
        for mode in ("RGB", "RGBA", "L")
    },
}


def png_chunk(kind: bytes, body: bytes) -> bytes:
    crc = zlib.crc32(body, zlib.crc32(kind))
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)


def png(
    samples: npt.NDArray[Any], depth: int, seed: int = 0, key: Sequence[int] | None = None
) -> bytes:
    """A PNG of 8 or 16 bits, of any number of channels, each row of which has a drawn filter."""
    height, width, channels = samples.shape
    rows = samples.astype(">u2" if depth == 16 else "u1").view("u1").reshape(height, -1)
    pixel = channels * depth // 8
    random = np.random.default_rng(seed)
    data, above = b"", np.zeros(rows.shape[1], int)
    for row in rows.astype(int):
        left = np.concatenate([np.zeros(pixel, int), row[:-pixel]])
        corner = np.concatenate([np.zeros(pixel, int), above[:-pixel]])
        guess = left + above - corner
        distances = np.abs(np.stack([guess - left, guess - above, guess - corner]))
        paeth = np.choose(distances.argmin(axis=0), [left, above, corner])
        number = int(random.integers(5))
        predicted = [0 * row, left, above, (left + above) // 2, paeth][number]
        data += bytes([number]) + ((row - predicted) % 256).astype(np.uint8).tobytes()
        above = row
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    parts = [png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))]
    if key is not None:
        parts.append(png_chunk(b"tRNS", struct.pack(f">{len(key)}H", *key)))
    packed = zlib.compress(data)
    half = len(packed) // 2
    parts += [
        png_chunk(b"IDAT", packed[:half]),
        png_chunk(b"IDAT", packed[half:]),
        png_chunk(b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def assert_pixels_near(
    found: npt.NDArray[np.uint8], wanted: npt.NDArray[np.uint8], most: int
) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert int(np.abs(found.astype(int) - wanted).max(initial=0)) <= most


@pytest.mark.peer
@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
@pytest.mark.parametrize("channels", [0, 1, 3])
@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_is_what_tensorflow_makes_of_it(kind: str, channels: int, ratio: int) -> None:
    """Exactly with its accurate inverse transform; its default is a faster one, which differs by
    some steps of 256.
    """
    tf = pytest.importorskip("tensorflow")
    found = decode_jpeg(JPEGS[kind], channels, ratio)
    if kind == "CMYK" and channels == 1:
        assert found.shape[-1] == 1  # TensorFlow has no such conversion
        return
    assert_pixels_near(
        found, tf.io.decode_jpeg(JPEGS[kind], channels=channels, ratio=ratio).numpy(), 6
    )
    accurate = tf.io.decode_jpeg(
        JPEGS[kind], channels=channels, ratio=ratio, dct_method="INTEGER_ACCURATE"
    )
    assert_pixels_near(found, accurate.numpy(), 0 if kind != "CMYK" else 2)


@pytest.mark.peer
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", JPEGS)
def test_default_of_data_sets_is_that_of_tensorflow(kind: str, channels: int) -> None:
    """Folders of TensorFlow Datasets are decoded by the fast inverse transform, in place."""
    tf = pytest.importorskip("tensorflow")
    if kind == "CMYK" and channels == 1:
        return  # TensorFlow has no such conversion
    wanted = tf.io.decode_jpeg(JPEGS[kind], channels=channels).numpy()
    assert_pixels_near(
        decode_by_default(JPEGS[kind], channels, "uint8"), wanted, 0 if kind != "CMYK" else 2
    )
    place = np.zeros(wanted.shape, np.uint8)
    assert decode_by_default(JPEGS[kind], channels, "uint8", place) is place
    assert_pixels_near(place, wanted, 0 if kind != "CMYK" else 2)


def test_memory_of_dropped_images_is_not_shared_with_living_ones() -> None:
    """Decoders use memory again, but never while a view of it lives."""
    files = [encoded_image(picture(300, 400, seed)) for seed in range(6)]
    wanted = [decode_jpeg(file).copy() for file in files]
    living: list[Any] = []
    for turn in range(30):
        column = decode_jpeg(files)
        # A part of one image lives on, without the array that it is a part of.
        living.append((turn % 6, column[turn % 6][50:60, ::2]))
        del column
        for seed, part in living:
            np.testing.assert_array_equal(part, wanted[seed][50:60, ::2])
        living = living[-5:]


@pytest.mark.peer
@pytest.mark.parametrize("channels", [0, 1, 3, 4])
@pytest.mark.parametrize("kind", [*JPEGS, *OTHER_IMAGES])
def test_any_image_is_what_tensorflow_makes_of_it(kind: str, channels: int) -> None:
    tf = pytest.importorskip("tensorflow")
    data = {**JPEGS, **OTHER_IMAGES}[kind]
    for expand in (True, False):
        found = decode_image(data, channels, expand_animations=expand)
        assert found.shape[-1] == channels or not channels
        if kind == "PNG 1" and channels == 4:
            continue  # TensorFlow makes such pixels nearly transparent
        try:
            wanted = tf.io.decode_image(data, channels=channels, expand_animations=expand).numpy()
        except tf.errors.InvalidArgumentError:
            continue  # no 4 channels of a JPEG, no 1 of a BMP or GIF
        assert_pixels_near(found, wanted, 6)


@pytest.mark.peer
@pytest.mark.parametrize("channels", [0, 1, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@given(st.integers(1, 4), st.sampled_from([8, 16]), st.integers(1, 9), st.integers(0, 1 << 20))
@drawn_examples(20)
def test_samples_of_a_png_are_those_of_tensorflow(
    dtype: str, channels: int, kept: int, depth: int, width: int, seed: int
) -> None:
    """Exactly, in all channels, whatever the filters of the rows; grey of 8 bits within 1."""
    tf = pytest.importorskip("tensorflow")
    samples = np.random.default_rng(seed).integers(0, 1 << depth, (5, width, kept))
    key = samples[0, 0] if kept in (1, 3) and seed % 2 else None
    data = png(samples, depth, seed, key)
    wanted = tf.io.decode_png(data, channels=channels, dtype=dtype).numpy()
    most = 0 if depth == 16 or dtype == "uint16" else 1
    for found in (
        decode_png(data, channels, dtype),
        decode_png(data, channels, tf.dtypes.as_dtype(dtype)),
        decode_image(data, channels, np.dtype(dtype)),
    ):
        assert_pixels_near(found, wanted, most)


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
@pytest.mark.parametrize("channels", [0, 1, 3, 4])
@pytest.mark.parametrize("kind", [*JPEGS, *OTHER_IMAGES])
def test_dtypes_of_any_image_are_those_of_tensorflow(kind: str, channels: int, dtype: str) -> None:
    tf = pytest.importorskip("tensorflow")
    data = {**JPEGS, **OTHER_IMAGES}[kind]
    found = decode_image(data, channels, dtype)
    assert found.dtype == dtype
    if kind == "PNG 1" and channels == 4:
        return  # TensorFlow makes such pixels nearly transparent
    try:
        wanted = tf.io.decode_image(data, channels=channels, dtype=dtype).numpy()
    except tf.errors.InvalidArgumentError:
        return  # no 4 channels of a JPEG, no 1 of a BMP or GIF
    scale = {"uint16": 257, "float32": 1 / 255}[dtype]
    assert found.shape == wanted.shape
    assert np.abs(found.astype(float) - wanted).max() <= 6 * scale + 1e-6


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_no_bit_of_a_deep_png_is_lost(kept: int) -> None:
    """A depth map: the lower 8 bits are most of it."""
    samples = np.random.default_rng(kept).integers(0, 1 << 16, (37, 53, kept))
    data = png(samples, 16, kept)
    for found in (decode_png(data, dtype="uint16"), decode_image(data, dtype=np.uint16)):
        assert (found.dtype, found.shape) == (np.uint16, samples.shape)
        assert (found == samples).all()
    assert (decode_png(data) == samples >> 8).all()
    column = decode_png([data, data], dtype="uint16")
    assert (np.stack(column) == samples).all()


def test_deep_png_with_interlaced_rows() -> None:
    """Rows in seven passes, which Pillow reads and does not write."""
    samples = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4097
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4)]
    passes += [(2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    for kept in (1, 3):
        deep = np.repeat(samples[..., None], kept, axis=-1) + np.arange(kept, dtype=np.uint16)
        rows = b""
        for top, left, down, right in passes:
            part = deep[top::down, left::right]
            rows += b"".join(b"\0" + row.astype(">u2").tobytes() for row in part if row.size)
        header = struct.pack(">IIBBBBB", 4, 4, 16, {1: 0, 3: 2}[kept], 0, 0, 1)
        body = (
            png_chunk(b"IHDR", header)
            + png_chunk(b"IDAT", zlib.compress(rows))
            + png_chunk(b"IEND", b"")
        )
        assert (decode_png(b"\x89PNG\r\n\x1a\n" + body, dtype="uint16") == deep).all()


def test_damage_of_a_deep_png_is_an_error() -> None:
    data = png(np.arange(300).reshape(10, 10, 3) * 200, 16)
    for place in range(16, len(data) - 12):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(FeatureError):
            decode_png(bytes(damaged), dtype="uint16")
    for end in (data[:-30], data[:40], data[:20], data[:9]):
        with pytest.raises(FeatureError, match=r"PNG image of .* bytes cannot be decoded"):
            decode_png(end, dtype="uint16")


def test_dtypes_that_an_image_cannot_have_are_refused() -> None:
    data = OTHER_IMAGES["PNG RGB"]
    with pytest.raises(
        ValueError, match=r"dtype is 'float32' .*: it must be one of 'uint8', 'uint16'"
    ):
        decode_png(data, dtype="float32")
    with pytest.raises(
        ValueError, match=r"dtype is 'int32' .*: it must be one of 'uint8', 'uint16'"
    ):
        decode_image(data, dtype=np.int32)
    with pytest.raises(ValueError, match="channels is 2"):
        decode_png(data, 2)
    with pytest.raises(FeatureError, match="BMP image: use decode_image"):
        decode_png(OTHER_IMAGES["BMP RGB"])
    with pytest.raises(FeatureError, match="GIF of 3 frames: use decode_image"):
        decode_png(ANIMATED)


@pytest.mark.peer
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 4, 8]), st.integers(1, 100))
@drawn_examples(60)
def test_sizes_round_as_in_tensorflow(height: int, width: int, ratio: int, quality: int) -> None:
    tf = pytest.importorskip("tensorflow")
    data = encoded_image(picture(height, width), quality=quality)
    wanted = tf.io.decode_jpeg(data, ratio=ratio, dct_method="INTEGER_ACCURATE").numpy()
    assert_pixels_near(
        decode_jpeg(data, ratio=ratio), wanted, 1 if min(height, width) >= 16 else 255
    )  # colours of a part of a block


def test_a_column_keeps_its_shape_and_sizes_may_differ() -> None:
    images = [encoded_image(picture(10 + row, 20)) for row in range(6)]
    lengths = np.cumsum([0, *map(len, images)])
    column = BytesColumn(b"".join(images), np.stack([lengths[:-1], lengths[1:]], axis=1)).reshape(
        3, 2
    )
    for contents in (column, column.to_numpy()):
        found = decode_jpeg(contents)
        assert found.shape == (3, 2)
        assert [image.shape for image in found.flat] == [(10 + row, 20, 3) for row in range(6)]
    assert np.stack(decode_jpeg(streamrec.Frames.of(images[:1] * 4))).shape == (4, 10, 20, 3)
    assert decode_jpeg(column[0, 0]).shape == (10, 20, 3)
    assert decode_jpeg(BytesColumn(images[0], np.array([0, len(images[0])]))).shape == (10, 20, 3)
    assert decode_jpeg([]).shape == (0,)


def test_warnings_of_libjpeg_are_not_errors_but_missing_data_is() -> None:
    data = JPEGS["colour"]
    assert decode_jpeg(data[:-2] + bytes(15) + data[-2:]).shape == (37, 53, 3)
    assert decode_jpeg(data + b"behind").shape == (37, 53, 3)
    for cut in (data[:-2], data[:-40], data[:300], data[:20], data[:4]):
        with pytest.raises(
            FeatureError, match=f"the JPEG image of {len(cut)} bytes cannot be decoded"
        ):
            decode_jpeg(cut)


@pytest.mark.parametrize("decode", [decode_jpeg, decode_image])
@pytest.mark.parametrize(
    "data", [b"", b"text", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", bytes(99)]
)
def test_bytes_that_are_not_an_image_are_an_error_with_their_row(data: bytes, decode: Any) -> None:
    with pytest.raises(FeatureError, match="image") as caught:
        decode([JPEGS["grey"], JPEGS["colour"], data])
    assert caught.value.record == 2
    assert str(caught.value).startswith("record 2: ")
    with pytest.raises(FeatureError) as alone:
        decode(data)
    assert alone.value.record is None


@given(st.sampled_from([*JPEGS.values(), *OTHER_IMAGES.values()]), st.data())
@drawn_examples(150)
def test_damage_gives_pixels_or_an_error_of_ours(image: bytes, data: st.DataObject) -> None:
    damaged = bytearray(image)
    for place in data.draw(st.lists(st.integers(0, len(image) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    for decode in (decode_jpeg, decode_image):
        with suppress(FeatureError):
            assert decode(bytes(damaged)).dtype == np.uint8


def test_an_image_of_another_format_names_the_function_that_decodes_it() -> None:
    with pytest.raises(FeatureError, match="this is a GIF of 3 frames: use decode_image"):
        decode_jpeg(ANIMATED)
    with pytest.raises(FeatureError, match="this is a BMP image: use decode_image"):
        decode_jpeg(OTHER_IMAGES["BMP RGB"])
    for refused in ({"channels": 2}, {"ratio": 3}):
        with pytest.raises(ValueError, match="must be one of"):
            decode_jpeg(JPEGS["grey"], **refused)
    with pytest.raises(TypeError, match="must be bytes, and this is a str"):
        decode_jpeg(["text"])


def test_an_image_may_be_larger_than_pillow_opens() -> None:
    """It warns above 89 million pixels, and refuses 179 million."""
    written = BytesIO()
    Image.new("1", (18_000, 10_000)).save(written, "PNG")
    assert decode_image(written.getvalue()).shape == (10_000, 18_000, 1)
    assert decode_jpeg(written.getvalue()).shape == (10_000, 18_000, 1)


def test_a_header_that_claims_too_much_allocates_nothing() -> None:
    for kind, marker, ratio in (("colour", b"\xff\xc0", 1), ("progressive", b"\xff\xc2", 8)):
        data = bytearray(
            JPEGS[kind]
        )  # progressive ones are decoded whole before they are made smaller
        frame = data.index(marker)
        data[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"
        with pytest.raises(
            FeatureError, match="65,500 x 65,500 pixels: more than 512 MiB are refused"
        ):
            decode_jpeg(bytes(data), ratio=ratio)
    data = bytearray(ANIMATED)
    second = data.index(b"\x21\xf9\x04", data.index(b"\x2c\0\0\0\0")) + 8
    data[second + 5 : second + 9] = b"\x28\x23\x28\x23"
    with pytest.raises(FeatureError, match="27,000 x 9,000 pixels: more than 512 MiB are refused"):
        decode_image(bytes(data))


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Three shards of 21 images; one image of the second one is none."""
    images = [[encoded_image(picture(seed=shard))] * 21 for shard in range(3)]
    images[1][13] = b"lost"
    rows = [[{"image": image, "label": row} for row, image in enumerate(each)] for each in images]
    return write_shards(tmp_path, [map(encode_example, each) for each in rows])


@pytest.mark.parametrize("calls", [None, 2])
@pytest.mark.parametrize("cycle", [1, 3])
def test_a_pipeline_says_in_which_shard_and_record(
    shards: list[str], calls: int | None, cycle: int
) -> None:
    files = shards if cycle > 1 else shards[1]
    parsed = (
        TFRecordDataset(files, num_parallel_reads=cycle)
        .batch(8)
        .parse_example(FEATURES, string_columns=True)
    )
    images = parsed.map(lambda batch: decode_jpeg(batch["image"]), num_parallel_calls=calls)
    number = 13 if cycle == 1 else 40
    _, error = until_error(images, FeatureError, f"record {number % 8}: this is not a JPEG")
    (note,) = error.__notes__
    assert note.endswith(f"element {number // 8} of this run: {shards[1]}, record 13")


def test_images_pass_through_a_pipeline(shards: list[str]) -> None:
    parsed = TFRecordDataset(shards[0]).batch(8).parse_example(FEATURES, string_columns=True)
    pairs = parsed.map(
        lambda batch: (decode_jpeg(batch["image"]), batch["label"]), num_parallel_calls=2
    )
    rows = list(pairs.unbatch())
    assert [int(label) for _, label in rows] == list(range(21))
    assert {image.shape for image, _ in rows} == {(37, 53, 3)}
    (batch,) = pairs.unbatch().batch(21)
    assert np.stack(batch[0]).shape == (21, 37, 53, 3)


def test_a_budget_counts_pixels() -> None:
    from streamrec.pipeline.elements.chunk import weigh

    images = decode_jpeg([JPEGS["colour"]] * 10)
    assert weigh([images]) > 10 * 37 * 53 * 3


def test_the_interpreters_lock_is_free_meanwhile() -> None:
    """Another thread works while one long call decodes."""
    large = encoded_image(picture(4000, 4000))
    ticks: list[int] = []
    thread = Thread(target=decode_jpeg, args=(large,))
    thread.start()
    while thread.is_alive():
        ticks.append(1)
    assert len(ticks) > 1000


def test_decoders_are_imported_when_an_image_comes() -> None:
    code = "import sys, streamrec.images; print('PIL' in sys.modules, 'simplejpeg' in sys.modules)"
    assert in_new_interpreter(code) == "False False\n"


@pytest.mark.parametrize(
    ("package", "data"), [("simplejpeg", JPEGS["grey"]), ("PIL.Image", OTHER_IMAGES["PNG L"])]
)
def test_a_missing_decoder_says_what_to_type(
    package: str, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("images"))):
        decode_image([data])


@pytest.mark.peer
def test_torch_gets_lists_of_tensors() -> None:
    torch = pytest.importorskip("torch")
    from streamrec.torch import to_tensors

    images = to_tensors({"image": decode_jpeg([JPEGS["grey"], encoded_image(picture(5, 6))])})[
        "image"
    ]
    assert [tuple(image.shape) for image in images] == [(37, 53, 1), (5, 6, 3)]
    assert images[0].dtype == torch.uint8
