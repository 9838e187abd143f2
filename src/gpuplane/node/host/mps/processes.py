"""Processes as the kernel shows them, and whose they are.

A name on a command line and a variable in an environment are anybody's to choose. What a process cannot choose is its
user, its namespaces and its control group, and whether it is a descendant of ours: `mark` is a variable that we put
into the environment of what we start, with a value that nobody else can know.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.value import Value

PROC = Path("/proc")
PID_FILE = "nvidia-cuda-mps-control.pid"
KERNEL_THREAD = 0x00200000
"""PF_KTHREAD, of a process's flags (Linux, include/linux/sched.h)."""
CONTROL_PROGRAM, SERVER_PROGRAM = "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"
PIPE_DIRECTORY_VARIABLE, MARK_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY", "GPUPLANE_MPS_MARK"


class Process(Value):
    """A process: its number, and when it began, in clock ticks since boot. The two together are never another's."""

    pid: int
    began: int


def find_process(pid: int) -> Process | None:
    """The process that has a number now. One that has ended and is not reaped is none."""
    fields = _stat(pid)
    return Process(pid=pid, began=int(fields[19])) if fields else None


def is_alive(found: Process) -> bool:
    """Whether it has not ended."""
    return find_process(found.pid) == found


def send_signal(found: Process, number: signal.Signals) -> None:
    """Send a signal to a process, if it is still there."""
    with suppress(ProcessLookupError):
        fd = os.pidfd_open(found.pid)
        try:
            if is_alive(found):  # of this very process, which the descriptor holds on to
                signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)


def read_environment(found: Process) -> Mapping[str, str]:
    """What a process was started with; nothing where it has ended."""
    return _environment(found.pid)


def read_arguments(found: Process) -> list[str]:
    """Its command line; an empty one where it has ended."""
    return _arguments(found.pid)


def runs_program(found: Process, program: str, *needed: str) -> bool:
    """Whether its command line is that of a program, with these arguments: by its own word."""
    return _named(_arguments(found.pid), program, needed)


def is_our_user(found: Process) -> bool:
    """Whether it runs as our user and sees the processes that we see: no container's does, unless it was let."""
    try:
        status = (PROC / str(found.pid) / "status").read_text(errors="replace")
        user = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[2]
        return int(user) == os.geteuid() and _namespace(found.pid) == _namespace(os.getpid())
    except (OSError, StopIteration):
        return False


def is_in_our_cgroup(found: Process) -> bool:
    """Whether it is in our control group, into which only root of the node can put anything."""
    with suppress(OSError):
        return (PROC / str(found.pid) / "cgroup").read_bytes() == (PROC / "self/cgroup").read_bytes()
    return False


def find_marked(mark: str) -> list[Process]:
    """Those that were started with a mark, and their descendants."""
    return [found for pid in _pids() if _environment(pid).get(MARK_VARIABLE) == mark and (found := find_process(pid))]


def find_lookalikes(program: str, pipe: Path, *needed: str) -> list[Process]:
    """Those that say to be a program of a pipe directory, whosever they are."""
    return [
        found
        for pid in _pids()
        if _named(_arguments(pid), program, needed)
        and _environment(pid).get(PIPE_DIRECTORY_VARIABLE) == str(pipe)
        and (found := find_process(pid))
    ]


def find_starting() -> set[Process]:
    """Those of our control group that are within execve, so that nobody can tell yet what they run.

    The kernel gives a process its new memory, closes descriptors, and only then lays down its arguments (Linux,
    fs/exec.c: begin_new_exec; fs/binfmt_elf.c: create_elf_tables). Until then /proc shows none. On a busy machine that
    takes long, and whoever started it has gone on meanwhile.
    """
    mute = (pid for pid in _pids() if _arguments(pid) == [""] and not _in_kernel(pid))
    return {found for pid in mute if (found := find_process(pid)) and is_in_our_cgroup(found)}


def pid_in_file(pipe: Path) -> int | None:
    """The number that the file in a pipe directory gives: a hint, for clients can write there."""
    try:
        return int(files.read(pipe / PID_FILE, 20, follow=False))
    except (OSError, ValueError):
        return None


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdecimal())  # noqa: PTH208 (a path each takes twice as long)


def _stat(pid: int) -> list[str]:
    """What /proc/PID/stat gives from the state on (proc_pid_stat(5), field 3); nothing where it has ended."""
    with suppress(OSError):
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return [] if fields[0] in "ZX" else fields
    return []


def _in_kernel(pid: int) -> bool:
    """Whether it is a thread of the kernel, or has ended: neither has a command line."""
    fields = _stat(pid)
    return not fields or bool(int(fields[6]) & KERNEL_THREAD)


def _named(words: list[str], program: str, needed: tuple[str, ...]) -> bool:
    return any(os.path.basename(word) == program for word in words[:8]) and set(needed) <= set(words)  # noqa: PTH119


def _namespace(pid: int) -> str:
    return str((PROC / str(pid) / "ns/pid").readlink())


def _environment(pid: int) -> Mapping[str, str]:
    pairs = (each.partition("=") for each in _words(pid, "environ"))
    return {name: value for name, _, value in pairs}


def _arguments(pid: int) -> list[str]:
    return _words(pid, "cmdline")


def _words(pid: int, name: str) -> list[str]:
    """What is in a file of a process, between zeros. Nothing where it has ended or is not ours to read."""
    try:
        return (PROC / str(pid) / name).read_bytes().decode(errors="surrogateescape").split("\0")
    except OSError:
        return []
