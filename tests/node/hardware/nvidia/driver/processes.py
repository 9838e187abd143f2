"""What Linux says of processes: theirs and ours."""

import os
from pathlib import Path


def state(pid: int) -> str:
    """A process's state, as ps shows it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def opened(pid: int) -> set[str]:
    """What a process has open."""
    return {f"{each.readlink()}" for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink()}


def family() -> list[int]:
    """This process and its children."""
    mine = os.getpid()
    others = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal())
    return [mine, *(pid for pid in others if parent(pid) == mine)]


def parent(pid: int) -> int:
    """The parent of a process; 0 where the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
