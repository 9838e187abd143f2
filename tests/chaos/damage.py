"""What may have become of a state directory while no agent looked after it: by a disk, a person, or another version."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

PARTS = ("mig-parents", "share-layouts", "health")
"""The files that are damaged, by their names without `.json`."""


def damage(directory: Path, parts: tuple[str, ...], how: str) -> None:
    """Damage the files of these parts; nothing is done where there is no such file."""
    for part in parts:
        path = directory / f"{part}.json"
        if path.is_file() and not path.is_symlink():
            DAMAGES[how](path)


def remove(directory: Path) -> None:
    """All of it is removed."""
    shutil.rmtree(directory, ignore_errors=True)


def repair(directory: Path) -> None:
    """Take away what is no regular file where one should be. A person does so who reads the agent's log."""
    for part in PARTS:
        path = directory / f"{part}.json"
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            path.unlink()


def _truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff{" * 100)


def _newer(path: Path) -> None:
    """A newer version's: what it says of a device is more than is known here. Of verdicts it says something beside."""
    file: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    value = file["value"] or {}
    more = {"later": 1} if path.stem == "health" else {}
    changed = value if more else {device: {"was": told, "since": 1.0} for device, told in value.items()}
    path.write_bytes(msgspec.json.encode({**file, "version": file["version"] + 1, "value": {**changed, **more}}))


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path) -> None:
    """What cannot be written over: a disk that refuses, as far as this file goes."""
    path.unlink()
    path.mkdir()
    (path / "lost+found").touch()


def _link(path: Path) -> None:
    """To a file that says something else."""
    aside = path.with_suffix(".aside")
    aside.write_bytes(msgspec.json.encode({"version": 1, "boot_id": "", "value": {}}))
    path.unlink()
    path.symlink_to(aside.name)


DAMAGES: Mapping[str, Callable[[Path], None]] = {
    "removed": Path.unlink,
    "truncated": _truncated,
    "emptied": _empty,
    "replaced by garbage": _garbage,
    "replaced by the file of a newer version": _newer,
    "replaced by a FIFO": _fifo,
    "replaced by a directory": _directory,
    "replaced by a link": _link,
}
"""How a file can be damaged, for people → what does it."""
