"""What the statuses of the parts of CDI say: what is on disk, where our hook is, and which files conflict with ours.

The part that keeps the specification files reports their status from its start; a node without that part has none.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpuplane.core.containers.cdi.names import qualified_name
from gpuplane.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import CDI_FILES, CDI_HOOK, CdiConflictStatus


def kept(snapshot: Snapshot) -> bool:
    """Whether this agent keeps specification files."""
    return CDI_FILES in snapshot.status


def hook(snapshot: Snapshot) -> str:
    """Our hook's path on the host; "" where it is not installed."""
    status = snapshot.status.of(CDI_HOOK)
    return status.path if status is not None else ""


def marks(specs: Iterable[Spec]) -> tuple[str, ...]:
    """The marks of files and of the devices that they define, sorted."""
    return tuple(sorted(_marks(specs)))


def _marks(specs: Iterable[Spec]) -> Iterator[str]:
    for spec in specs:
        yield common_mark(spec)
        yield from (mark(spec.kind, device) for device in spec.devices)


def mark(kind: str, device: CdiDevice) -> str:
    """A device's qualified name with a digest of what it gives: the same name may come to mean something else."""
    return f"{qualified_name(kind, device.name)}@{_digest(device.container_edits)}"


def common_mark(spec: Spec) -> str:
    """A kind with a digest of what each of its devices gives beside its own.

    What a hook is told is left out: a link more or less to another GPU's node stops no container.
    """
    common = spec.container_edits
    return f"{spec.kind}@{_digest(common.but(hooks=tuple(hook.but(args=()) for hook in common.hooks)))}"


def _digest(edits: ContainerEdits) -> str:
    return hashlib.sha256(msgspec.json.encode(edits)).hexdigest()[:12]


def on_disk(snapshot: Snapshot) -> frozenset[str]:
    """The marks of the files on disk, and of the devices that they define."""
    status = snapshot.status.of(CDI_FILES)
    return frozenset(status.marks) if status is not None else frozenset()


def conflicts(snapshot: Snapshot) -> Mapping[str, str]:
    """The qualified names that files of others define too → the file."""
    found = ((part.subject, status) for part, status in snapshot.status.of_kind("cdi conflict"))
    return {name: path for path, status in found if isinstance(status, CdiConflictStatus) for name in status.devices}
