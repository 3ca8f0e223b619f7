"""Runs the work of a command on a Ray cluster (`--ray ADDRESS`).

Each shard, or each part of the shards, is a task. The workers need streamrec, and must reach all
paths. If a machine fails, Ray runs its tasks again on another one.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Final, TypeVar

import anyio
import click

from streamrec import StorageError, StreamrecError
from streamrec.cli.library import MissingExtraError, install_command
from streamrec.cli.reading import run

ENDING_SECONDS: Final = 10
"""How long a cluster may take to accept a connection, and cancelled tasks to end."""

A = TypeVar("A")
B = TypeVar("B")


def ray_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--ray ADDRESS`."""
    help_text = "Run on this Ray cluster: HOST:PORT, ray://..., auto, or local to start one here."
    return click.option("--ray", "ray_address", metavar="ADDRESS", help=help_text)(function)


def connect(address: str) -> None:
    """Connects this process to a cluster. Call it before the event loop runs.

    The main thread waits for the answer, so that Ctrl-C ends it. A cluster on this machine lives as
    long as the thread that starts it.

    Raises:
        MissingExtraError: Ray is not installed.
        StorageError: No cluster answers.
    """
    try:
        ray = import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"--ray needs another package: {install_command('ray')}") from error
    where = {} if address == "local" else {"address": address}
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        # Ray itself would try for more than a minute, and ignore Ctrl-C.
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), ENDING_SECONDS).close()
        ray.init(
            **where, ignore_reinit_error=True, logging_level=logging.ERROR, log_to_driver=False
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"no Ray cluster answers at {address} ({error}): check --ray") from error


async def map_on(function: Callable[[A], Coroutine[Any, Any, B]], items: Sequence[A]) -> list[B]:
    """Calls an async function for each item, each in a task of the connected cluster.

    A worker must be able to import the function, or the one that a `partial` of it calls.

    Returns:
        The results in the order of the items.

    Raises:
        StorageError: The cluster lost a task several times.
        StreamrecError: The first error of a task, which cancels the others.
    """
    ray = import_module("ray")
    task = make_remote(ray, function)
    # Four tasks for each processor keep the cluster busy; more of them would only wait.
    limit = 4 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    left = iter(enumerate(items))
    pending: dict[Any, int] = {}
    results: dict[int, B] = {}
    try:
        while True:
            while len(pending) < limit and (following := next(left, None)) is not None:
                pending[task.remote(following[1])] = following[0]
            if not pending:
                return [results[number] for number in range(len(items))]
            waiting = partial(ray.wait, list(pending), num_returns=1, timeout=0.5)
            ready, _ = await anyio.to_thread.run_sync(waiting)
            for reference in ready:
                results[pending.pop(reference)] = await anyio.to_thread.run_sync(
                    fetch, ray, reference
                )
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(cancel, ray, list(pending))


def cancel(ray: Any, references: list[Any]) -> None:
    """Cancels tasks, and waits up to ten seconds while they clean up."""
    for reference in references:
        ray.cancel(reference)
    if references:
        ray.wait(references, num_returns=len(references), timeout=ENDING_SECONDS)


def make_remote(ray: Any, function: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Makes a remote function of an async one; Ray itself accepts no `partial`.

    Workers on this machine use the current directory, so that relative paths stay valid.
    """
    here = os.getcwd()

    def call(item: Any) -> Any:
        with suppress(OSError):  # another machine may lack the directory
            os.chdir(here)
        return run(function(item))

    return ray.remote(num_cpus=1)(call)


def fetch(ray: Any, reference: Any) -> Any:
    """Waits for the result of a task.

    Raises:
        StreamrecError: The task failed; it is the error of the task, not Ray's.
        StorageError: The cluster lost the task.
    """
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, StreamrecError | OSError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise StorageError(
            f"the Ray cluster lost a task ({type(error).__name__}): {error}: run it again"
        ) from error
