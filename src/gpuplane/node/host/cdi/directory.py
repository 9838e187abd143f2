"""A CDI directory: what its files say, and how ours are replaced and removed.

Runtimes read every .json and .yaml in it at any moment, so a file is written under a name that they pass over, synced
and renamed: whatever happens, the old file stands there or the new one. Ours have the names of NVIDIA's plugin, which
may have left its own. A link under one of these names is replaced, never followed. A directory that somebody else
than root could change is not used: who writes there says what every container gets.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.base.files import untrusted_reason
from gpuplane.base.text import escape_unprintable
from gpuplane.base.value import Value
from gpuplane.node.core.containers.cdi.names import CDI_KINDS, PLAIN_VENDOR, VENDOR, spec_file_name
from gpuplane.node.core.containers.cdi.registry import SPEC_FILE_SUFFIXES, parse_spec_file
from gpuplane.node.core.containers.cdi.validation import runtime_refusal_problems
from gpuplane.node.host.specfiles import read_spec_file, spec_file_paths
from gpuplane.node.model.cdi import Spec
from gpuplane.node.model.encoding import format_json

SPEC_DECODER = msgspec.json.Decoder(Spec)
"""Made here, and not by two threads at once: msgspec 0.22 does not survive that of a type that is new to it."""
TEMPORARY_SUFFIX = ".new"
"""How a file's name ends while it is written."""


class SeenFile(Value):
    """A file as it was read last. `spec`: its document, where that is of one of our kinds."""

    state: tuple[int | None, ...]
    spec: Spec | None = None


SeenFiles = Mapping[str, SeenFile]
"""The files of a directory that runtimes read, by name."""


def file_names_of_kind(kind: str) -> tuple[str, str]:
    """The two names of a kind's file: ours, and the other that a runtime reads."""
    ours = spec_file_name(kind)
    return ours, f"{ours.removesuffix('.json')}.yaml"


VENDOR_NAMES = VENDOR.encode(), PLAIN_VENDOR.encode()
OUR_FILE_NAMES = frozenset(name for kind in CDI_KINDS for name in file_names_of_kind(kind))


def read_directory(directory: Path, before: SeenFiles) -> SeenFiles:
    """What the directory holds; what has not changed is not read again. A file that cannot be read costs itself.

    Raises OSError where runtimes would not see what is in it, or we do not, or somebody else could change it.
    """
    found = spec_file_paths(directory)
    check_trusted(directory)
    return {path.name: _seen(path, before.get(path.name)) for path in found}


def check_trusted(directory: Path) -> None:
    """Raises PermissionError where somebody else could write what every container gets."""
    if reason := _risk(directory):
        raise PermissionError(
            errno.EPERM,
            f"{reason}: users other than root could change what containers get; let only root write there",
            str(directory),
        )


def _risk(directory: Path) -> str:
    """Why somebody else could put other files there; "" if nobody could, or nothing is there."""
    try:
        return untrusted_reason(directory, follow=True)
    except FileNotFoundError:
        return ""


def directory_state(directory: Path) -> object:
    """What is another whenever `read_directory` may find something else. Reads no file, and raises nothing."""
    try:
        here, risk = directory.lstat(), _risk(directory)
        names = sorted(name for name in os.listdir(directory) if name.endswith(SPEC_FILE_SUFFIXES))  # noqa: PTH208 (half the time)
    except OSError as error:
        return error.errno
    return here.st_mode, here.st_ino, risk, tuple((name, _state(directory / name)) for name in names)


def _state(path: Path) -> tuple[int | None, ...]:
    """What tells one version of a file from another; its mode comes first."""
    try:
        there = path.lstat() if path.name in OUR_FILE_NAMES else path.stat()
    except OSError as error:
        return (0, error.errno)
    return there.st_mode, there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns


def _seen(path: Path, before: SeenFile | None) -> SeenFile:
    state = _state(path)
    if before is not None and before.state == state:
        return before
    return SeenFile(state=state, spec=_spec(path) if stat.S_ISREG(state[0] or 0) else None)


def _spec(path: Path) -> Spec | None:
    data = read_spec_file(path)
    if isinstance(data, OSError) or not any(
        each in data for each in VENDOR_NAMES
    ):  # most are large, and of nobody's concern here
        return None
    spec = _as_we_write(data) or parse_spec_file(os.fspath(path), data).spec
    return spec if spec is not None and spec.kind in CDI_KINDS else None


def _as_we_write(data: bytes) -> Spec | None:
    """A good document in plain JSON, read many times as fast as one that others may have written."""
    try:
        spec = SPEC_DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if any(runtime_refusal_problems(spec)) else spec


def our_specs(files: SeenFiles) -> Mapping[str, Spec]:
    """Kind → what the files of that kind hold, those under both names together."""
    found: dict[str, Spec] = {}
    for kind in CDI_KINDS:
        if specs := _of(files, kind):
            devices = {device.name: device for spec in reversed(specs) for device in spec.devices}
            found[kind] = specs[0].but(devices=tuple(devices.values())) if len(specs) > 1 else specs[0]
    return found


def holds_spec(files: SeenFiles, kind: str, spec: Spec | None) -> bool:
    """Whether exactly that is there of a kind, under one name: two would make it nobody's."""
    return _of(files, kind) == ([spec] if spec is not None else [])


def _of(files: SeenFiles, kind: str) -> list[Spec]:
    """What stands under a kind's names, ours first."""
    found = (files[name].spec for name in file_names_of_kind(kind) if name in files)
    return [spec for spec in found if spec is not None and spec.kind == kind]


def foreign_specs(directory: Path, files: SeenFiles) -> Mapping[str, Spec]:
    """Path → document of our kinds, of the files that are not ours; one of another kind under our name is not ours."""
    return {
        escape_unprintable(str(directory / name)): seen.spec
        for name, seen in files.items()
        if seen.spec is not None and name not in file_names_of_kind(seen.spec.kind)
    }


def store_spec(directory: Path, kind: str, spec: Spec | None) -> None:
    """Make a kind's file hold that; None: no file. Its other name is nobody's then. Raises OSError."""
    name, other = file_names_of_kind(kind)
    if spec is not None:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        check_trusted(directory)
        replace_file(directory, name, format_json(spec))
        gone = [other]
    else:
        gone = [name, other]
    for each in gone:
        (directory / each).unlink(missing_ok=True)
    files.sync_directory(directory)


def replace_file(directory: Path, name: str, data: bytes, *, sync: bool = True) -> None:
    """Make a file hold that, as a whole. `sync`: it is on disk then. Raises OSError."""
    aside = directory / f".{name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"  # of this writer alone
    try:
        files.replace(directory / name, data, mode=0o644, aside=aside, sync=sync)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(directory / name)) from error


def _aside(directory: Path, name: str) -> list[Path]:
    """What lies about of a file that somebody writes, or did not come to write."""
    return sorted(directory.glob(f".{name}*{TEMPORARY_SUFFIX}"))


def remove_temporary_files(directory: Path) -> None:
    """Remove what an agent that was killed left half-written."""
    for name in OUR_FILE_NAMES:
        for path in _aside(directory, name):
            with suppress(OSError):
                path.unlink()


def remove_our_files(directory: Path) -> Iterator[Path]:
    """Remove all that is ours, in our name or as left by NVIDIA's plugin; gives each path. Raises OSError."""
    for name in sorted(OUR_FILE_NAMES):
        for path in (directory / name, *_aside(directory, name)):
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            yield path
