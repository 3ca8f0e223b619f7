"""How servers of the tests end."""

from __future__ import annotations

import multiprocessing
import sys

import pytest

from tests.servers.real import _running


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")
def test_a_server_ends_though_a_forked_process_holds_its_input() -> None:
    """As the worker processes of a DataLoader do: the pipe to the watchdog does not end when this process closes it."""
    context = multiprocessing.get_context("fork")
    released = context.Event()
    holder = context.Process(target=released.wait)
    with _running([sys.executable, "-c", "import signal; signal.pause()"], lambda: None) as (directory, _):
        assert directory.exists()
        holder.start()
    try:
        assert holder.is_alive()
        assert not directory.exists()
    finally:
        released.set()
        holder.join()
