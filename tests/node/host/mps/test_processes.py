"""What is asked of the kernel about processes, at the moments at which it does not know all of it."""

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.daemonrecord import DaemonRecord
from gpuplane.node.host.mps.processes import (
    CONTROL_PROGRAM,
    MARK_VARIABLE,
    PIPE_DIRECTORY_VARIABLE,
    SERVER_PROGRAM,
    Process,
)
from tests.node.host.mps.standin import make

OFTEN = 100
"""Starts of a process. Nearly half of them are met within execve on an idle machine, and more on a busy one."""


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is looked at but our children: a look is short enough to meet one that is within execve."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    monkeypatch.setattr(processes, "_pids", lambda: map(int, children.read_text().split()))


@contextmanager
def started(program: Path, *words: str, environment: Mapping[str, str]) -> Iterator[Process]:
    """A process, from the moment on at which whoever started it goes on: when it has its new memory, and no more."""
    with subprocess.Popen([program, *words], env=environment) as running:
        try:
            yield Process(pid=running.pid, began=int(processes._stat(running.pid)[19]))
        finally:
            with suppress(ProcessLookupError):
                running.kill()


@pytest.mark.usefixtures("_quick")
def test_a_process_that_shows_no_command_line_yet_is_told_apart_from_none(tmp_path: Path) -> None:
    """Right after its start it is either known by its command line, or said to be arriving."""
    server, environment = make(tmp_path / "bin") / SERVER_PROGRAM, {PIPE_DIRECTORY_VARIABLE: str(tmp_path)}
    met = 0
    for _ in range(OFTEN):
        with started(server, environment=environment) as found:
            arriving = found in processes.find_starting()
            met += arriving
            assert arriving or found in processes.find_lookalikes(SERVER_PROGRAM, tmp_path)
    assert met


def test_what_has_no_command_line_for_good_is_not_awaited() -> None:
    """A process that has ended and is not reaped; and the kernel's own threads, where they are seen."""
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    kernel = {int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal() and _is_kernels(each)}

    assert not {each.pid for each in processes.find_starting()} & {ended.pid, *kernel}
    ended.wait()


def _is_kernels(process: Path) -> bool:
    with suppress(OSError):
        return "VmSize:" not in (process / "status").read_text()
    return False


@pytest.mark.usefixtures("_quick")
async def test_a_server_is_known_from_its_first_moment(tmp_path: Path) -> None:
    """Its daemon may be killed right after it has started one: a server that is overlooked then keeps its GPU."""
    server, pipe = make(tmp_path / "bin") / SERVER_PROGRAM, tmp_path / "pipe"
    pipe.mkdir()
    record = DaemonRecord(tmp_path / "closed", pipe)
    environment = {PIPE_DIRECTORY_VARIABLE: str(pipe), MARK_VARIABLE: record.begin()}
    await record.daemon()
    for _ in range(OFTEN):
        with started(server, environment=environment) as found:
            assert found in await record.servers()


async def test_a_daemon_is_known_from_its_first_moment(tmp_path: Path) -> None:
    """The supervisor may be killed right after it has started one: the next one finds it, and starts no second."""
    control, pipe = make(tmp_path / "bin") / CONTROL_PROGRAM, tmp_path / "pipe"
    pipe.mkdir()
    (tmp_path / "bin/delay").write_text("before it is ready")
    mark = DaemonRecord(tmp_path / "closed", pipe).begin()
    environment = {PIPE_DIRECTORY_VARIABLE: str(pipe), MARK_VARIABLE: mark, "CUDA_MPS_LOG_DIRECTORY": str(tmp_path)}
    with started(control, "-d", environment=environment) as found:
        assert await DaemonRecord(tmp_path / "closed", pipe).daemon() == found
