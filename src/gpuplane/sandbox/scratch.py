"""A directory for as long as something is played."""

import shutil
import tempfile
from pathlib import Path


class Scratch:
    """`with Scratch() as directory:`; it is removed with all that is in it."""

    def __init__(self) -> None:
        self._made: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Path:
        self._made = tempfile.TemporaryDirectory(prefix="gpuplane-")
        return Path(self._made.name)

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            self._made.cleanup()

    def remove(self) -> None:
        """Remove it now, whoever still uses it, before the process ends."""
        if self._made is not None:
            shutil.rmtree(self._made.name, ignore_errors=True)
