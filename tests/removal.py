"""Remove a directory that a running process may be writing to."""

import shutil
from pathlib import Path


def remove(directory: Path) -> None:
    """The directory is gone from its place at once, and then what was in it.

    Whoever writes there while `shutil.rmtree` goes through it would have it fail with "Directory not empty".
    """
    gone = directory.with_name(f"{directory.name}.removed")
    directory.rename(gone)
    while gone.exists():
        shutil.rmtree(gone, ignore_errors=True)
