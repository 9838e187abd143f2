"""Feature labels as a file of node-feature-discovery, which puts them on the Node: GPU Feature Discovery's other way.

One `key=value` on a line, in the order of the keys, mode 0644, for node-feature-discovery reads it as another user. The
file is replaced as a whole, and only when it differs from what is there. It stays when the agent ends. When it is not
wanted any more it is removed, if we have written it: then the directory `.NAME.gpuplane` is beside it. New content is
written there first, because old versions of node-feature-discovery read every regular file, hidden or not
(source/local/local.go).
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.text import join_first_names
from gpuplane.base.value import Value
from gpuplane.node.core.reports.nodelabels import writable_labels
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import FEATURES_FILE_PART, Status

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
MAX_FILE_SIZE = 1 << 16
MAX_LISTED_NAMES = 3  # of keys that a status lists
CHECK_INTERVAL = 60.0  # seconds until it is looked at whether somebody else has changed it
WRITE_INTERVAL = 5.0  # the fewest seconds between two writes
LabelsOfSnapshot = Callable[[Snapshot], Mapping[str, str] | None]


class WantedFile(Value):
    """The file that is wanted. `labels` None: none is. A file at `path` of an earlier configuration is removed."""

    path: str
    labels: Mapping[str, str] | None = None


async def keep_features_file(node: Node, labels: LabelsOfSnapshot) -> None:
    """Keep the file equal to the labels of the node, for ever."""
    done: WantedFile | None = None
    while True:
        pause = CHECK_INTERVAL if done is not None and done.labels is not None else None
        await node.wait_until(lambda snapshot, done=done: _wanted(snapshot, labels) not in (None, done), pause)  # type: ignore[misc]
        if (wanted := _wanted(node.snapshot, labels)) is None:
            continue
        if done is not None and done.path != wanted.path:
            await asyncio.to_thread(_remove, Path(done.path))
        status, done = await asyncio.to_thread(_make_so, wanted), wanted
        node.apply(StatusChanged(FEATURES_FILE_PART, status))
        await asyncio.sleep(WRITE_INTERVAL)


def _wanted(snapshot: Snapshot, labels: LabelsOfSnapshot) -> WantedFile | None:
    """What is wanted; None while that is not known: then everything stays."""
    if snapshot.config.settings is None:
        return None
    settings = snapshot.config.settings.node
    if settings.labels != "file":
        return WantedFile(settings.features_file)
    known = labels(snapshot)
    return WantedFile(settings.features_file, known) if known is not None else None


def _make_so(wanted: WantedFile) -> Status | None:
    """Write or remove the file; how it is then, None where none is wanted."""
    path = Path(wanted.path)
    try:
        if wanted.labels is None:
            _remove(path)
            return None
        if not path.is_absolute():
            return Status("failing", f"flags.gfd.outputFile must be an absolute path, not {wanted.path!r}")
        labels, refused = writable_labels(wanted.labels)
        _write(path, "".join(f"{key}={value}\n" for key, value in labels.items()).encode())
    except OSError as error:
        return Status("failing", f"{path}: {error.strerror or error}")
    more = (
        f"; left out because Kubernetes would refuse them: {join_first_names(refused, MAX_LISTED_NAMES)}"
        if refused
        else ""
    )
    return Status("ok", f"{path} has {len(labels)} labels{more}")


def _write(path: Path, content: bytes) -> None:
    """Give the file this content. Raises OSError."""
    try:
        if files.read(path, MAX_FILE_SIZE, follow=False) == content:
            return
    except OSError:
        pass  # it is not there, or is something else: it is replaced
    beside = _directory(path)
    with suppress(FileExistsError):
        beside.mkdir(mode=DIRECTORY_MODE)
    files.replace(path, content, mode=FILE_MODE, sync=False, aside=beside / path.name)


def _remove(path: Path) -> None:
    """Remove a file that we have written. Raises OSError."""
    beside = _directory(path)
    if not path.is_absolute() or beside.is_symlink() or not beside.is_dir():
        return
    for each in (beside / path.name, path):
        each.unlink(missing_ok=True)
    beside.rmdir()


def _directory(path: Path) -> Path:
    """The directory beside a file of ours."""
    return path.with_name(f".{path.name}.gpuplane")
