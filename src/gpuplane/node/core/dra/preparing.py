"""What becomes of a claim: whether it may be prepared, what is promised for it, and when that promise can be used.

A promise is in the ledger, and on disk, before kubelet is answered; so the same claim gets the same answer until its
Unprepare, whatever happens to kubelet, to this agent or to the machine. (Kubelet does not ask again for a pod that
runs; it may where it has lost what it knew. pkg/kubelet/cm/dra/manager.go.)

Whatever the scheduler says, no device is promised to two claims, nor to a claim while a container holds it by another
way: a pod that was force-deleted may still run. Admin access is beside others, and neither keeps them off nor waits.
Sick devices are promised all the same: a taint has kept those away that do not tolerate it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuplane.base.text import Text, clip
from gpuplane.node.core.containers.cdi.names import qualified_name
from gpuplane.node.core.devicenames import device_noun
from gpuplane.node.core.dra.claimspecs import claim_fingerprints, claim_specs, omission_reasons
from gpuplane.node.core.dra.devices import DraDevices, dra_devices
from gpuplane.node.core.dra.names import (
    DNS_LABEL,
    DNS_SUBDOMAIN,
    KUBERNETES_UID,
    claim_cdi_kind,
    claim_cdi_name,
    pool_name,
)
from gpuplane.node.core.kinds.claimconfigs import InvalidConfig
from gpuplane.node.core.kinds.dra import DraDevice
from gpuplane.node.core.kinds.table import dra_of
from gpuplane.node.core.partitions.plans import withdrawn_units
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, PreparedClaim, PreparedDevice
from gpuplane.node.model.config import DraSettings, Settings
from gpuplane.node.model.reasons import Holder, Reason, ReasonCode, ReasonKind
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CLAIM_FILES_PART, STATE_DIRECTORY_PART

MAX_DEVICES_PER_CLAIM = 1024
"""Of one claim; the API server allows 32 results."""

MAX_CLAIM_NAME = 253
"""Characters (RFC 1123)."""

MAX_REMEMBERED_CLAIMS = 128
"""Claims of which it is remembered what they get: those of one request of kubelet (`kubelet.dra.server`)."""


def prepare_problem(snapshot: Snapshot, claim: AllocatedClaim) -> Reason | None:
    """Why a claim cannot be prepared now; None if it can, or is. A reason of kind `waiting` says that it is not known
    yet."""
    if is_prepared_as_allocated(snapshot, claim):
        return None
    made = _prepared_claim(snapshot, claim)
    return made if isinstance(made, Reason) else None


def apply_prepare(snapshot: Snapshot, claim: AllocatedClaim) -> Snapshot:
    """The snapshot with the promise for a claim; the same where it stands already, or the claim cannot be prepared.

    A claim that was allocated anew loses what it was promised before: the scheduler may give that to others.
    """
    if is_prepared_as_allocated(snapshot, claim):
        return snapshot
    made = _prepared_claim(snapshot, claim)
    if isinstance(made, Reason):
        return snapshot
    claims = {**(snapshot.ledger.claims or {}), claim.claim.uid: made}
    return snapshot.but(ledger=snapshot.ledger.but(claims=claims))


def apply_unprepare(snapshot: Snapshot, claim: ClaimName, now: float) -> Snapshot:
    """The snapshot without the promise for a claim. What kubelet lists of it until then is the claim's that ended."""
    left = {uid: each for uid, each in (snapshot.ledger.claims or {}).items() if uid != claim.uid}
    ended = {**snapshot.ended_claims, str(claim): now}
    return snapshot.but(ledger=snapshot.ledger.but(claims=left or None), ended_claims=ended)


def is_prepared(snapshot: Snapshot, uid: str) -> bool:
    """Whether there is a promise for a claim."""
    return uid in (snapshot.ledger.claims or {})


def is_prepared_as_allocated(snapshot: Snapshot, claim: AllocatedClaim) -> bool:
    """Whether there is a promise for a claim, and it is of the devices that it is allocated now."""
    promised = (snapshot.ledger.claims or {}).get(claim.claim.uid)
    return promised is not None and tuple(each.allocated for each in promised.devices) == claim.devices


def foreign_device_problem(claim: AllocatedClaim, node: str) -> Reason | None:
    """Why a claim is not for this node: a device is of another node's pool, which may have the same name there."""
    for each in claim.devices:
        if each.pool != pool_name(node, each.device):
            return _reason("claim-device-unknown", f"node {node} has no device {each.pool}/{each.device}")
    return None


def claim_problem(snapshot: Snapshot, uid: str) -> Reason | None:
    """Why the promise for a claim cannot be used yet; None once its containers can start."""
    claim = (snapshot.ledger.claims or {}).get(uid)
    if claim is None:
        return _reason("claim-not-prepared", "the claim is not prepared")
    stored = snapshot.stored_ledger.ledger
    if stored is None or (stored.claims or {}).get(uid) != claim:
        state = snapshot.statuses.of(STATE_DIRECTORY_PART)
        if state is not None and state.state == "failing":
            return _reason("claim-not-stored", f"the claim cannot be remembered: {state.text}")
        return _reason("claim-not-stored", "the claim is being written to the state directory", "waiting")
    return _file_problem(snapshot, uid)


def _file_problem(snapshot: Snapshot, uid: str) -> Reason | None:
    """Why the runtime could not find the claim's devices."""
    status = snapshot.statuses.of(CLAIM_FILES_PART)
    written = status.fingerprints.get(uid, "") if status is not None else ""
    wanted = claim_specs(snapshot).get(uid)
    if written and (wanted is None or written == claim_fingerprints(snapshot)[uid]):
        return None  # one that cannot be made anew stays as it is
    if why := _disk_problem(snapshot, uid):
        return _reason("cdi-write-failed", f"the CDI file of the claim cannot be written: {why}")
    return _reason("cdi-not-written", "the CDI file of the claim is being written", "waiting")


def is_claim_gone(snapshot: Snapshot, uid: str) -> bool:
    """Whether nothing is left of a claim: neither a promise in memory or on disk, nor a file.

    Where the state directory cannot be written, it is not waited for: a pod need not stay for that. What it may still
    hold is found to be over after a restart (`checking`).
    """
    files, directory = snapshot.statuses.of(CLAIM_FILES_PART), snapshot.statuses.of(STATE_DIRECTORY_PART)
    if is_prepared(snapshot, uid) or (files is not None and uid in files.fingerprints):
        return False
    stored = snapshot.stored_ledger.ledger
    if stored is None:
        return directory is not None and directory.state == "failing"
    return uid not in (stored.claims or {})


def unprepare_problem(snapshot: Snapshot, uid: str) -> Reason | None:
    """Why what is left of a claim cannot be removed now; None for nothing that lasts."""
    directory = snapshot.statuses.of(STATE_DIRECTORY_PART)
    lost = directory.text if directory is not None and directory.state == "failing" else ""
    if why := lost or _disk_problem(snapshot, uid):
        return _reason("claim-cleanup-failed", f"what is left of the claim cannot be removed: {why}")
    return None


def _disk_problem(snapshot: Snapshot, uid: str) -> Text:
    """What keeps the files of a claim from being what they shall be; "" for nothing."""
    status = snapshot.statuses.of(CLAIM_FILES_PART)
    return (status.problems.get("") or status.problems.get(uid, "")) if status is not None else ""


def has_valid_names(claim: ClaimName) -> bool:
    """Whether the names are names of Kubernetes: the UID becomes part of file names, the others part of an URL."""
    return (
        KUBERNETES_UID.fullmatch(claim.uid) is not None
        and DNS_LABEL.fullmatch(claim.namespace) is not None
        and len(claim.name) <= MAX_CLAIM_NAME
        and DNS_SUBDOMAIN.fullmatch(claim.name) is not None
    )


def _is_request(request: str) -> bool:
    """Whether it is the name of a request, or "main/sub" of a prioritized list (ValidateFullSubrequestName)."""
    parts = request.split("/")
    return len(parts) <= 2 and all(DNS_LABEL.fullmatch(part) for part in parts)


class _Inputs(NamedTuple):
    """All that decides, beside the claim itself, what it gets.

    `allocations`: None while they are not known. `withdrawn`: unit that waits for another MIG layout → why. `omitted`:
    unit that cannot be described to a container runtime → why.
    """

    settings: Settings | None
    devices: DraDevices
    allocations: tuple[Allocation, ...] | None
    claims: Mapping[str, PreparedClaim] | None
    mig_parents: Mapping[str, str] | None
    withdrawn: Mapping[str, Reason]
    omitted: Mapping[str, Text]


def _inputs(snapshot: Snapshot) -> _Inputs:
    return _Inputs(
        settings=snapshot.config.settings,
        devices=dra_devices(snapshot),
        allocations=snapshot.allocations,
        claims=snapshot.ledger.claims,
        mig_parents=snapshot.ledger.mig_parents,
        withdrawn=withdrawn_units(snapshot),
        omitted=omission_reasons(snapshot),
    )


def _prepared_claim(snapshot: Snapshot, claim: AllocatedClaim) -> PreparedClaim | Reason:
    """What a claim gets, or why it gets nothing now. It is made anew only where its inputs have changed.

    Many claims may wait at the same time, and each asks after every change of the snapshot.
    """
    memory: dict[str, tuple[object, PreparedClaim | Reason]] = snapshot.memory.setdefault(_prepared_claim, {})
    inputs, last = _inputs(snapshot), memory.pop(claim.claim.uid, None)
    question: object = (claim, inputs)
    answer = last[1] if last is not None and last[0] == question else _prepare(claim, inputs)
    memory[claim.claim.uid] = question, answer
    if len(memory) > MAX_REMEMBERED_CLAIMS:
        del memory[next(iter(memory))]
    return answer


def _prepare(claim: AllocatedClaim, inputs: _Inputs) -> PreparedClaim | Reason:
    settings = inputs.settings
    if settings is None:
        return _reason("config-missing", "there is no valid configuration yet", "waiting")
    if not settings.dra.enabled:
        return _reason("dra-disabled", "the configuration of this node disables Dynamic Resource Allocation")
    if not all(inputs.devices.is_counted(each.device) for each in claim.devices):
        return _reason("machine-not-observed", "the agent has not observed the machine yet", "waiting")
    if inputs.allocations is None:
        text = "kubelet has not reported yet which devices containers hold"
        return _reason("allocations-unknown", text, "waiting")
    if not claim.is_allocated or not claim.devices:
        return _reason("claim-not-allocated", "the claim has no allocation with devices of this driver")
    if not has_valid_names(claim.claim):
        return _reason("claim-malformed", "the claim has an invalid name or UID")
    if len(claim.devices) > MAX_DEVICES_PER_CLAIM:
        text = f"the claim has {len(claim.devices)} devices, and the limit is {MAX_DEVICES_PER_CLAIM}"
        return _reason("claim-too-many-devices", text)
    if invalid := [each.request for each in claim.devices if not _is_request(each.request)]:
        return _reason("claim-malformed", f"{clip(invalid[0])!r} is not the name of a request")
    devices = []
    for allocated in claim.devices:
        device = _find_device(inputs.devices, allocated)
        if device is None:
            return _reason("claim-device-unknown", f"this node has no device {allocated.pool}/{allocated.device}")
        if not allocated.is_admin and (why := _unusable(inputs, device) or _in_use(inputs, device, claim.claim)):
            return why
        try:
            devices.append(_prepared_device(claim, allocated, device, settings.dra))
        except InvalidConfig as invalid:
            return _reason("claim-config-invalid", str(invalid))
    if why := _described_problem(inputs.omitted, devices):
        return why
    return PreparedClaim(
        claim=claim.claim,
        driver=settings.dra.driver,
        devices=tuple(devices),
        pods=claim.pods,
        pod_claim_name=claim.pod_claim_name,
        generation=claim.generation,
    )


def _find_device(devices: DraDevices, allocated: AllocatedDevice) -> DraDevice | None:
    """The device that a result names. Pools of other nodes have other devices."""
    if not allocated.device or not allocated.pool.endswith(f"/{allocated.device}"):
        return None
    return devices.by_name.get(allocated.device)


def _prepared_device(
    claim: AllocatedClaim, allocated: AllocatedDevice, device: DraDevice, dra: DraSettings
) -> PreparedDevice:
    """Raises InvalidConfig."""
    name = claim_cdi_name(claim.claim.uid, allocated.device)
    cdi_id = qualified_name(claim_cdi_kind(dra.driver), name)
    prepared = PreparedDevice(allocated=allocated, unit=device.unit, cdi_id=cdi_id)
    return dra_of(device.unit).configure(prepared, claim)


def _described_problem(omitted: Mapping[str, Text], devices: Iterable[PreparedDevice]) -> Reason | None:
    """Why the devices cannot be described to a container runtime."""
    for each in devices:
        if why := omitted.get(each.unit):
            return _reason("cdi-no-device", why)
    return None


def _unusable(inputs: _Inputs, device: DraDevice) -> Reason | None:
    """Why nobody can use a device now."""
    return device.not_claimable or inputs.withdrawn.get(device.unit)


def _in_use(inputs: _Inputs, device: DraDevice, claim: ClaimName) -> Reason | None:
    """Why a device cannot be promised to a claim: another has it, or part of it."""
    named = f"{device_noun(device.unit, '')} {device.unit}"
    for uid, other in (inputs.claims or {}).items():
        if uid != claim.uid and any(each.unit == device.unit and not each.allocated.is_admin for each in other.devices):
            text = f"{named} is prepared for claim {other.claim} ({other.claim.uid}) until that is unprepared"
            return _reason("claim-device-in-use", text)
    parts = {device.unit, *device.parts}
    parents = inputs.mig_parents or {}
    for allocation in inputs.allocations or ():
        if allocation.claim == str(claim):
            continue
        if any((unit := unit_of(id)) in parts or parents.get(unit) == device.unit for id in allocation.devices):
            who, name = allocation.holder.text, allocation.claim or allocation.resource
            text = f"{who} holds {named} as {name} until the pod ends"
            holder = Holder(allocation.resource, allocation.holder, allocation.claim)
            return Reason(kind="held", text=text, code="claim-device-in-use", holder=holder)
    return None


def _reason(code: ReasonCode, text: Text, kind: ReasonKind = "problem") -> Reason:
    return Reason(kind=kind, text=text, code=code)
