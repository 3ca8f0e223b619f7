"""The store and the proxy as processes of their own: their URL, the control path, and that they end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers.control import RemoteControl
from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore
from tests.servers.plainclient import ask
from tests.servers.program import ServerProcess

KEY = "/bucket/dir/key"
STORE = "tests.servers.objectstore"


@pytest.fixture
def process(root: Path) -> Iterator[ServerProcess]:
    """A store over `root` in a process of its own."""
    with ServerProcess(STORE, ("--root", str(root)), replace(NO_FAULTS, corrupt=1.0, at=0.0)) as process:
        yield process


def test_it_serves_and_is_switched_from_here(process: ServerProcess, content: bytes) -> None:
    assert process.faults == replace(NO_FAULTS, corrupt=1.0, at=0.0)
    assert ask(process.url, KEY).body[1:] == content[1:]
    process.faults = replace(NO_FAULTS, script=("reset",), at=0.5)
    assert ask(process.url, KEY).body == content[:150_000]
    assert ask(process.url, KEY).body == content
    assert process.wait_idle()
    assert [entry.fault for entry in process.log] == ["corrupt", "reset", ""]
    assert process.counters.by_fault == {"corrupt": 1, "reset": 1}
    assert process.counters.sent == 300_000 + 150_000 + 300_000
    process.clear()
    assert process.log == ()


def test_it_ends_with_whoever_holds_it(root: Path) -> None:
    code = """if True:
        import os, sys
        from tests.servers.program import ServerProcess
        process = ServerProcess("tests.servers.objectstore", ("--root", sys.argv[1]))
        print(process.pid, process.url, flush=True)
        os.kill(os.getpid(), 9)
    """
    line = [sys.executable, "-c", code, str(root)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    pid, url = done.stdout.split()
    assert url.startswith("http://127.0.0.1:")
    assert done.returncode == -9
    reaped = os.pidfd_open(int(pid)) if Path(f"/proc/{pid}").exists() else None
    if reaped is not None:  # readable when the process has ended
        assert select.select([reaped], [], [], 20)[0]
        os.close(reaped)


def test_it_ends_when_it_is_terminated(root: Path) -> None:
    line = [sys.executable, "-m", STORE, "--root", str(root)]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert ask(url, KEY).status == 200
        process.terminate()
        assert process.wait(20) == 0


def test_a_root_that_is_none_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="before it served"):
        ServerProcess(STORE, ("--root", str(tmp_path / "nothing")))
    assert "NotADirectoryError" in capfd.readouterr().err


def test_it_can_be_pinned(root: Path) -> None:
    ours = os.sched_getaffinity(0)
    cpu = max(ours)
    with ServerProcess(STORE, ("--root", str(root)), cpus={cpu}) as process:
        tasks = os.listdir(f"/proc/{process.pid}/task")
        assert len(tasks) > 1
        assert all(os.sched_getaffinity(int(task)) == {cpu} for task in tasks)
    assert os.sched_getaffinity(0) == ours


def test_the_proxy_is_a_program_too(store: ObjectStore, content: bytes) -> None:
    with ServerProcess(
        "tests.servers.proxy", ("--target", store.url), replace(NO_FAULTS, truncate=1.0, at=0.5)
    ) as proxy:
        assert ask(proxy.url, KEY).body == content[:150_000]
        proxy.faults = NO_FAULTS
        assert ask(proxy.url, KEY).body == content


def test_the_control_path_in_process(store: ObjectStore) -> None:
    control = RemoteControl(store.url)
    control.faults = replace(NO_FAULTS, seed=9, script=("reset",))
    assert store.faults == control.faults == replace(NO_FAULTS, seed=9, script=("reset",))
    ask(store.url, KEY)
    assert control.wait_idle()
    assert control.log == store.log
    assert control.counters.requests == 1  # the control path is not counted


@pytest.mark.parametrize(
    "orders",
    [b"{", b"[]", b'{"rain": 1}', b'{"faults": {"reset": 2}}', b'{"faults": 1}', b'{"wait_idle": "x"}'],
)
def test_orders_that_make_no_sense_change_nothing(store: ObjectStore, orders: bytes) -> None:
    answer = ask(store.url, "/_control", method="POST", body=orders)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]
    assert store.faults == NO_FAULTS
    assert ask(store.url, "/_control/nothing").status == 404


def test_a_refusal_is_an_error_here(store: ObjectStore) -> None:
    control = RemoteControl(store.url)
    with pytest.raises(ValueError, match="unknown order"):
        control._ask("POST", {"rain": True})
