"""Whether a pipeline resumes exactly, wherever it stops."""

import json
from itertools import islice
from typing import Any

import numpy as np

from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline import Dataset
from streamrec.tfrecord import Frames


def plain(element: Any) -> Any:
    """An element as something that compares with `==`, its kind and its dtypes included."""
    if isinstance(element, Frames):
        return ("frames", list(element))
    if isinstance(element, BytesColumn):
        return ("strings", element.to_numpy().tolist())
    if isinstance(element, np.ndarray):
        return (element.dtype.str, element.tolist())
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple | CompositeTensor):
        parts = element.parts if isinstance(element, CompositeTensor) else element
        return (type(element).__name__, *map(plain, parts))
    return element


def stop_after(dataset: Dataset[Any], count: int) -> tuple[list[Any], dict[str, Any]]:
    """The first elements of a run that ends there, and its state after them, through JSON."""
    with dataset.iterate() as iterator:
        return [next(iterator) for _ in range(count)], json.loads(json.dumps(iterator.state_dict()))


def run(
    dataset: Dataset[Any], state: Any = None, most: int | None = None
) -> tuple[list[Any], list[Any]]:
    """The next elements, at most `most`, as `plain` makes them; and the states around them, through
    JSON.
    """
    with dataset.iterate(state) as iterator:
        states, elements = [iterator.state_dict()], []
        for element in islice(iterator, most):
            elements.append(plain(element))
            states.append(json.loads(json.dumps(iterator.state_dict())))
    return elements, states


def assert_resumes_everywhere(dataset: Dataset[Any]) -> None:
    """Stops a run after each of its elements, and resumes it from the saved state, which goes
    through JSON.

    Args:
        dataset: One that ends. The work is the square of its number of elements.

    Raises:
        AssertionError: What came after resuming was not what the first run gave behind that
            element.
    """
    elements, states = run(dataset)
    for index, state in enumerate(states):
        found, _ = run(dataset, state)
        assert found == elements[index:], (
            f"after element {index} the run went on with {found[:3]} ..."
        )
