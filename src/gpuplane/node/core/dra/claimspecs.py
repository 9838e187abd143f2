"""The CDI files of claims: what the containers that use a claim get.

Each prepared claim has a file of its own, with a device for each result. What containers get with a GPU depends on the
whole machine, and some of it is alike for all of them, so it is common to the file; a device of another kind has all of
its edits. The file follows the machine as our other files do:
after an upgrade of the driver it names the new files. A device that the machine no longer describes keeps its edits,
for its container may start again. (Container Device Interface 1.1; names as in `names`.)
"""

from collections.abc import Mapping

from gpuplane.base.text import Text
from gpuplane.node.core.containers.cdi.desiredspecs import gpu_spec_options
from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult, build_spec
from gpuplane.node.core.containers.cdi.specstatus import installed_hook_path, spec_fingerprint
from gpuplane.node.core.containers.cdi.standins import stand_ins_by_name
from gpuplane.node.core.containers.cdi.version import lowest_version
from gpuplane.node.core.dra.devices import DraDevices, dra_devices
from gpuplane.node.core.dra.metadata import metadata_mount, metadata_root
from gpuplane.node.core.dra.names import claim_cdi_kind, claim_cdi_name
from gpuplane.node.core.view import part_view, view
from gpuplane.node.model.cdi import CdiDevice, ContainerEdits, Spec
from gpuplane.node.model.claims import PreparedClaim
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.snapshot import Snapshot

NOTHING = SpecBuildResult(spec=None)
NO_GPUS = Spec(cdi_version="", kind="")


@view
def claim_specs(snapshot: Snapshot) -> Mapping[str, Spec]:
    """UID of each prepared claim → what its file shall hold; without those that cannot be described now."""
    return _claim_specs.of(
        snapshot, snapshot.ledger.claims or {}, _gpu_edits(snapshot), _own_edits(snapshot), metadata_root(snapshot)
    )


@view
def claim_fingerprints(snapshot: Snapshot) -> Mapping[str, str]:
    """UID of a claim → a digest of what its file shall hold."""
    return _fingerprints.of(snapshot, claim_specs(snapshot))


@part_view
def _fingerprints(specs: Mapping[str, Spec]) -> Mapping[str, str]:
    return {uid: spec_fingerprint(spec) for uid, spec in specs.items()}


def omission_reasons(snapshot: Snapshot) -> Mapping[str, Text]:
    """UUID of a GPU that no container could use → why."""
    return _gpu_edits(snapshot).omission_reason_by_device


def _own_edits(snapshot: Snapshot) -> Mapping[str, ContainerEdits]:
    """Unit → what a container gets with it, of the kinds that say so themselves."""
    settings = snapshot.config.settings
    return _edits_of_kinds.of(snapshot, dra_devices(snapshot), settings is not None and settings.stand_ins)


@part_view
def _edits_of_kinds(devices: DraDevices, stand_ins: bool) -> Mapping[str, ContainerEdits]:
    edits = {each.unit: each.container_edits for each in devices.by_name.values() if each.container_edits is not None}
    return stand_ins_by_name(edits) if stand_ins else edits


def _gpu_edits(snapshot: Snapshot) -> SpecBuildResult:
    """A device for each GPU, by its UUID; nothing while the machine or the configuration is not known."""
    machine, settings = snapshot.machine, snapshot.config.settings
    if machine is None or machine.gpus is None or settings is None:
        return NOTHING
    return _build.of(snapshot, machine, settings, installed_hook_path(snapshot))


@part_view
def _build(machine: Machine, settings: Settings, own_hook_path: str) -> SpecBuildResult:
    options = gpu_spec_options(settings, own_hook_path)
    return build_spec(machine, options.but(kind=claim_cdi_kind(settings.dra.driver), naming=("uuid",)))


@part_view
def _claim_specs(
    claims: Mapping[str, PreparedClaim], gpus: SpecBuildResult, own: Mapping[str, ContainerEdits], metadata: str
) -> Mapping[str, Spec]:
    found = ((uid, _claim_spec(claim, gpus.spec, own, metadata)) for uid, claim in claims.items())
    return {uid: spec for uid, spec in found if spec is not None}


def _claim_spec(
    claim: PreparedClaim, gpus: Spec | None, own: Mapping[str, ContainerEdits], metadata: str
) -> Spec | None:
    """`metadata`: the directory of files that describe devices; "" for none."""
    if gpus is None or all(each.unit in own for each in claim.devices):
        gpus = NO_GPUS
    edits = {**own, **{device.name: device.container_edits for device in gpus.devices}}
    if any(each.unit not in edits for each in claim.devices):
        return None
    devices: dict[str, ContainerEdits] = {}
    for each in claim.devices:
        name = claim_cdi_name(claim.claim.uid, each.allocated.device)
        made = devices.get(name, edits[each.unit])
        mounts = (metadata_mount(claim, each, metadata),) if metadata else ()
        devices[name] = made.but(mounts=(*made.mounts, *mounts))
    spec = gpus.but(
        kind=claim_cdi_kind(claim.driver),
        devices=tuple(CdiDevice(name=name, container_edits=device) for name, device in devices.items()),
    )
    return spec.but(cdi_version=lowest_version(spec))
