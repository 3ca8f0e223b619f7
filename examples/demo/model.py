"""The classifier: a network with one hidden layer, trained with Adam, in plain NumPy.

Adam: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015, with its usual constants.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from examples.demo.records import SIDE, Images, Labels

__all__ = ["Classifier"]

Floats = npt.NDArray[np.float32]

CELL = 4
INPUTS = (SIDE // CELL) ** 2
CLASSES = 10
LEARNING_RATE = 0.002
MEAN_DECAY, SQUARE_DECAY = 0.9, 0.999


def shrunk(images: Images) -> Floats:
    """Returns the mean of each 4 x 4 pixels, from -0.35 to 0.65: float32 of shape `[n, INPUTS]`."""
    rows = images.reshape(-1, SIDE // CELL, CELL, SIDE)
    sums = rows[:, :, 0].astype(np.uint16)
    for row in range(1, CELL):
        sums += rows[:, :, row]
    cells = sums.reshape(len(images), INPUTS, CELL).astype(np.float32)
    total: Floats = cells[..., 0] + cells[..., 1] + cells[..., 2] + cells[..., 3]
    return total * np.float32(1 / (255 * CELL * CELL)) - np.float32(0.35)


class Classifier:
    """Classifies images of digits.

    Args:
        hidden: The number of hidden units.
        seed: The seed of the first weights; the same seed and the same batches give the same
            classifier.
    """

    def __init__(self, hidden: int = 256, seed: int = 0) -> None:
        random = np.random.default_rng(seed)

        def layer(inputs: int, outputs: int) -> list[Floats]:
            weights = random.normal(0, inputs**-0.5, (inputs, outputs))
            return [weights.astype(np.float32), np.zeros(outputs, np.float32)]

        self._parameters = layer(INPUTS, hidden) + layer(hidden, CLASSES)
        self._means = [np.zeros_like(each) for each in self._parameters]
        self._squares = [np.zeros_like(each) for each in self._parameters]
        self._steps = 0

    def predict(self, images: Images) -> Labels:
        """Returns the most likely digit of each image."""
        labels: Labels = self._forward(shrunk(images))[1].argmax(axis=1)
        return labels

    def learn(self, images: Images, labels: Labels) -> float:
        """Takes one step on a batch; returns the share of the batch that was right before the
        step.
        """
        inputs = shrunk(images)
        hidden, scores = self._forward(inputs)
        right = float((scores.argmax(axis=1) == labels).mean())
        self._step(self._gradients(inputs, hidden, scores, labels))
        return right

    def _forward(self, inputs: Floats) -> tuple[Floats, Floats]:
        weights, bias, out_weights, out_bias = self._parameters
        hidden = np.maximum(inputs @ weights + bias, 0)
        return hidden, hidden @ out_weights + out_bias

    def _gradients(
        self, inputs: Floats, hidden: Floats, scores: Floats, labels: Labels
    ) -> list[Floats]:
        """Returns the gradients of the mean cross entropy, by parameter."""
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors = odds / odds.sum(axis=1, keepdims=True)
        errors[np.arange(len(labels)), labels] -= 1
        errors /= len(labels)
        hidden_errors = (errors @ self._parameters[2].T) * (hidden > 0)
        return [
            inputs.T @ hidden_errors,
            hidden_errors.sum(axis=0),
            hidden.T @ errors,
            errors.sum(axis=0),
        ]

    def _step(self, gradients: list[Floats]) -> None:
        self._steps += 1
        mean_share, square_share = 1 - MEAN_DECAY**self._steps, 1 - SQUARE_DECAY**self._steps
        parts = zip(self._parameters, self._means, self._squares, gradients, strict=True)
        for parameter, mean, square, gradient in parts:
            mean += (1 - MEAN_DECAY) * (gradient - mean)
            square += (1 - SQUARE_DECAY) * (gradient * gradient - square)
            parameter -= (
                LEARNING_RATE * (mean / mean_share) / (np.sqrt(square / square_share) + 1e-8)
            )
