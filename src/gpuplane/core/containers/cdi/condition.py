"""The conditions by which the rooms that do I/O say how CDI stands here, and what can be read off them.

`cdi`: told by whoever keeps the specification files, from the moment it starts; a node without that part has no such
condition. Its detail is what the disk holds, see `marks`. `cdi hook`: whether our hook is installed; its detail is the
hook's path on the host, "" while it is not there. `cdi PATH`: a file of others in the same directory that defines
devices which are ours to define; its detail is their qualified names.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpuplane.core.containers.cdi.names import qualified
from gpuplane.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.model.snapshot import Condition, Snapshot

SPECS = "cdi"
HOOK = "cdi hook"
CONFLICT = "cdi "
"""Before the path of a file, which is absolute."""


def kept(snapshot: Snapshot) -> bool:
    """Whether this agent keeps specification files."""
    return SPECS in snapshot.conditions


def hook(snapshot: Snapshot) -> str:
    """Our hook's path on the host; "" where it is not installed."""
    condition = snapshot.conditions.get(HOOK)
    return condition.detail if condition is not None else ""


def marks(specs: Iterable[Spec]) -> str:
    """What a condition's detail says of the files on disk: their marks, sorted, with a space between."""
    return " ".join(sorted(_marks(specs)))


def _marks(specs: Iterable[Spec]) -> Iterator[str]:
    for spec in specs:
        yield common_mark(spec)
        yield from (mark(spec.kind, device) for device in spec.devices)


def mark(kind: str, device: CdiDevice) -> str:
    """A device's qualified name with a digest of what it gives: the same name may come to mean something else."""
    return f"{qualified(kind, device.name)}@{_digest(device.container_edits)}"


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
    condition = snapshot.conditions.get(SPECS)
    return frozenset(condition.detail.split()) if condition is not None else frozenset()


def conflicts(snapshot: Snapshot) -> Mapping[str, str]:
    """The qualified names that files of others define too → the file."""
    return {name: part.removeprefix(CONFLICT) for part, each in contested(snapshot) for name in each.detail.split()}


def contested(snapshot: Snapshot) -> Iterator[tuple[str, Condition]]:
    """(part, condition) of each file of others that defines what is ours to define."""
    return ((part, each) for part, each in snapshot.conditions.items() if part.startswith(f"{CONFLICT}/"))
