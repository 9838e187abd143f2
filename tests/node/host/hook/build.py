"""The hook, compiled: `build(folder)`, once a session by the fixture `hook`."""

import shutil
import subprocess
from pathlib import Path

PROGRAM = "gpuplane-hook"
SOURCES = Path(__file__).parents[4] / "src/gpuplane/node/host/hook"


def missing(compiler: str = "cc") -> str:
    """What is missing to build it, "" if nothing."""
    return ", ".join(each for each in (compiler, "make") if shutil.which(each) is None)


def build(folder: Path, *variables: str) -> Path:
    """`make` into a folder, with variables of its Makefile: "CC=musl-gcc"."""
    subprocess.run(["make", "-s", "-C", SOURCES, f"OUT={folder}", *variables], check=True, timeout=100)
    return folder / PROGRAM
