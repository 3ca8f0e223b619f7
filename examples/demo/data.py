"""The images: real handwritten digits from scikit-learn's wheel, drawn differently for every
record.

The originals are the 1,797 digits of 8 x 8 pixels of the "Optical Recognition of Handwritten
Digits" set (Alpaydin and Kaynak, UCI Machine Learning Repository, 1998). Every record is one of
them, enlarged, rotated, sheared, scaled and shifted, with another contrast and with noise. The
held-out records come from other originals than the training records, so the test measures what the
classifier has learnt, not what it remembers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import ndimage
from sklearn.datasets import load_digits

from examples.demo.records import SIDE, Images, Labels

__all__ = ["HELD_OUT_ORIGINALS", "batches", "originals"]

Floats = npt.NDArray[np.float32]

HELD_OUT_ORIGINALS = 300
ENLARGED = 32
NOISE = 48  # grey values
SHIFT = 5  # pixels, in each direction
CUTS = 4  # records that share a turned digit; each is shifted, lit and disturbed by itself


def originals(held_out: bool) -> tuple[Floats, Labels]:
    """Returns the digits to draw from, enlarged to 32 x 32 and scaled to 0..1, and their labels."""
    digits, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    chosen = order[:HELD_OUT_ORIGINALS] if held_out else order[HELD_OUT_ORIGINALS:]
    padded = np.pad(digits[chosen].reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    enlarged = ndimage.zoom(padded, (1, ENLARGED / 10, ENLARGED / 10), order=3)
    return np.clip(enlarged / 16, 0, 1).astype(np.float32), labels[chosen].astype(np.int64)


def batches(records: int, *, held_out: bool, size: int = 256) -> Iterator[tuple[Images, Labels]]:
    """Yields images and labels of `records` records, `size` at a time; the same ones on every
    call.
    """
    digits, labels = originals(held_out)
    random = np.random.default_rng(2 if held_out else 1)
    for first in range(0, records, size):
        count = min(size, records - first)
        chosen = random.integers(len(digits), size=-(-count // CUTS))
        drawn = [moved(digits[index], random) for index in chosen]
        cuts = [cut(image, random) for image in drawn for _ in range(CUTS)]
        yield photographed(np.stack(cuts[:count]), random), np.repeat(labels[chosen], CUTS)[:count]


def moved(digit: Floats, random: np.random.Generator) -> Floats:
    """Draws a digit in the middle of a wider image, rotated by up to 14 degrees, sheared and
    scaled.
    """
    angle, shear = random.uniform(-0.25, 0.25), random.uniform(-0.15, 0.15)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle) + shear, np.cos(angle)]])
    matrix = turn * (ENLARGED / SIDE * random.uniform(0.9, 1.3))
    wide = SIDE + 2 * SHIFT
    offset = np.full(2, (ENLARGED - 1) / 2) - matrix @ np.full(2, (wide - 1) / 2)
    image: Floats = ndimage.affine_transform(
        digit, matrix, offset, output_shape=(wide, wide), order=1
    )
    return image


def cut(image: Floats, random: np.random.Generator) -> Floats:
    """Cuts SIDE x SIDE pixels out of a wider image, so that the digit is shifted."""
    down, right = random.integers(0, 2 * SHIFT + 1, 2)
    return image[down : down + SIDE, right : right + SIDE]


def photographed(images: Floats, random: np.random.Generator) -> Images:
    """Converts images to uint8, each with its own contrast, and with noise."""
    contrast = random.uniform(120, 255 - NOISE, (len(images), 1, 1)).astype(np.float32)
    return (images * contrast).astype(np.uint8) + random.integers(
        0, NOISE, images.shape, dtype=np.uint8
    )
