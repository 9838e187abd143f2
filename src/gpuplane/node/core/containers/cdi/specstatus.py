"""The statuses of the parts of CDI: which files are on disk, our hook's path, and which files conflict with ours.

The part that writes the specification files reports their status from its start; a node without that part has none.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gpuplane.node.core.containers.cdi.names import qualified_name
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, CDI_HOOK_PART, CdiConflictStatus


def agent_writes_specs(snapshot: Snapshot) -> bool:
    """Whether this agent writes specification files."""
    return CDI_FILES_PART in snapshot.statuses


def installed_hook_path(snapshot: Snapshot) -> str:
    """Our hook's path on the host; "" if it is not installed."""
    status = snapshot.statuses.of(CDI_HOOK_PART)
    return status.path if status is not None else ""


def spec_fingerprints(specs: Iterable[Spec]) -> tuple[str, ...]:
    """The fingerprints of specifications and of their devices, sorted."""
    return tuple(sorted(_fingerprints_of_specs(specs)))


def _fingerprints_of_specs(specs: Iterable[Spec]) -> Iterator[str]:
    for spec in specs:
        yield common_edits_fingerprint(spec)
        yield from (device_fingerprint(spec.kind, device) for device in spec.devices)


def device_fingerprint(kind: str, device: CdiDevice) -> str:
    """A device's qualified name with a digest of its edits: the same name can get other edits later."""
    return f"{qualified_name(kind, device.name)}@{_edits_digest(device.container_edits)}"


def common_edits_fingerprint(spec: Spec) -> str:
    """A kind with a digest of the common edits of its devices.

    The arguments of hooks are left out: one link more or less to another GPU's node stops no container.
    """
    common = spec.container_edits
    return f"{spec.kind}@{_edits_digest(common.but(hooks=tuple(each.but(args=()) for each in common.hooks)))}"


def spec_fingerprint(spec: Spec) -> str:
    """A digest of all that a specification says."""
    return hashlib.sha256(msgspec.json.encode(spec)).hexdigest()[:16]


def _edits_digest(edits: ContainerEdits) -> str:
    return hashlib.sha256(msgspec.json.encode(edits)).hexdigest()[:12]


def fingerprints_on_disk(snapshot: Snapshot) -> frozenset[str]:
    """The fingerprints of the files on disk and of their devices."""
    status = snapshot.statuses.of(CDI_FILES_PART)
    return frozenset(status.fingerprints) if status is not None else frozenset()


def conflicting_file_by_device(snapshot: Snapshot) -> Mapping[str, str]:
    """Qualified name that a file of another program defines too → that file."""
    found = ((part.subject, status) for part, status in snapshot.statuses.of_kind("cdi conflict"))
    return {name: path for path, status in found if isinstance(status, CdiConflictStatus) for name in status.devices}
