"""MPS processes, found by what the kernel says of them.

A control daemon is a process whose program, whose argument -d and whose environment are such a daemon's. Its pipe
directory has a file with its number; that only says where to look first, for its clients can write there. Nothing has
to be remembered to find it again.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuplane.model.value import Value

PROC = Path("/proc")
PID_FILE = "nvidia-cuda-mps-control.pid"
CONTROL, SERVER = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
PIPE = "CUDA_MPS_PIPE_DIRECTORY"


class Process(Value):
    """A process: its number, and when it began, in clock ticks since boot. The two together are never another's."""

    pid: int
    began: int


def daemon(pipe: Path) -> Process | None:
    """The control daemon that serves a pipe directory, or None."""
    return noted(pipe) or next(_all(CONTROL, pipe, "-d"), None)


def noted(pipe: Path) -> Process | None:
    """The control daemon, if the file with its number says the truth."""
    try:
        fd = os.open(pipe / PID_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return _found(int(os.read(fd, 20)), CONTROL, pipe, "-d")
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None


def servers(pipe: Path) -> list[Process]:
    """Every MPS server of a pipe directory, also those whose control daemon is no more."""
    return list(_all(SERVER, pipe))


def process(pid: int) -> Process | None:
    """The process that has a number now. One that has ended and is not reaped is none."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else Process(pid=pid, began=int(fields[19]))


def alive(found: Process) -> bool:
    """Whether it has not ended."""
    return process(found.pid) == found


def end(found: Process, number: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(found.pid)
        try:
            if alive(found):  # of this very process, which the descriptor holds on to
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def environment(found: Process) -> Mapping[str, str]:
    """What a process was started with; nothing where it has ended."""
    try:
        data = (PROC / str(found.pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (each.partition("=") for each in data.decode(errors="surrogateescape").split("\0"))
    return {name: value for name, _, value in pairs}


def arguments(found: Process) -> list[str]:
    """Its command line; an empty one where it has ended."""
    return list(_arguments(found.pid))


def _all(program: str, pipe: Path, *needed: str) -> Iterator[Process]:
    for name in os.listdir(PROC):  # noqa: PTH208 (a path each takes twice as long)
        if name.isdecimal() and (found := _found(int(name), program, pipe, *needed)):
            yield found


def _found(pid: int, program: str, pipe: Path, *needed: str) -> Process | None:
    words = list(_arguments(pid))
    if not any(Path(word).name == program for word in words[:8]) or not set(needed) <= set(words):
        return None
    found = process(pid)
    return found if found is not None and environment(found).get(PIPE) == str(pipe) else None


def _arguments(pid: int) -> Iterator[str]:
    with suppress(OSError):
        data = (PROC / str(pid) / "cmdline").read_bytes()
        yield from data.decode(errors="surrogateescape").split("\0")
