"""What all workers of a run need and one of them makes."""

import fcntl
from collections.abc import Callable
from pathlib import Path


def once(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, filled by `make` for whoever asks first; the others wait. Nothing of it is left where `make` fails."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fresh = folder.with_suffix(".new")
            fresh.mkdir(exist_ok=True)
            make(fresh)
            fresh.rename(folder)
    return folder
