"""What is known of a cluster without running it: its directory, who runs it, and what it is to have."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuplane.base import files

RECORD_FILE, LOCK_FILE = "cluster.json", "lock"
MAX_RECORD_BYTES = 1 << 20


class AlreadyRunning(Exception):
    """A cluster runs in this directory."""


class WantedNode(NamedTuple):
    """A node to play: its name, and the content of the machine file that it begins with."""

    name: str
    machine: bytes


class ClusterRecord(msgspec.Struct, frozen=True):
    """What is known of a cluster that runs: who runs it, and where to find it."""

    pid: int
    version: str
    url: str
    kubeconfig: str
    nodes: tuple[str, ...]
    directory: str


def default_directory(environment: Mapping[str, str]) -> Path:
    """Where a cluster is of which nobody says where (XDG Base Directory Specification)."""
    return own_directory(environment, "XDG_STATE_HOME", ".local/state") / "sandbox"


def own_directory(environment: Mapping[str, str], variable: str, below_home: str) -> Path:
    """Our directory below the one that a variable names, or below the user's own where it names none."""
    base = environment.get(variable, "")
    return (Path(base) if base.startswith("/") else Path.home() / below_home) / "gpuplane"


def running_process(directory: Path) -> int | None:
    """The process that runs a cluster in a directory, or starts one; None where none does. Raises OSError."""
    try:
        with locked(directory):
            return None
    except FileNotFoundError:
        return None
    except AlreadyRunning:
        text = files.read(directory / LOCK_FILE, MAX_RECORD_BYTES).decode(errors="replace")
        return int(text) if text.isdecimal() else None


def read_record(directory: Path) -> ClusterRecord | None:
    """The cluster that runs in a directory; None where none does, or is still starting. Raises OSError."""
    if running_process(directory) is None:
        return None
    try:
        return msgspec.json.decode(files.read(directory / RECORD_FILE, MAX_RECORD_BYTES), type=ClusterRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else runs a cluster there meanwhile. Raises AlreadyRunning."""
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.write(lock, b"%d" % os.getpid())
        yield
    except BlockingIOError:
        raise AlreadyRunning(f"a cluster runs in {directory} already: gpuplane sandbox down ends it") from None
    finally:
        os.close(lock)
