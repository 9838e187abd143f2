"""The claims of a node, for people and programs: what each has, who uses it, and what it waits for."""

from collections.abc import Iterable, Mapping

from gpuplane.node.core.dra.preparing import claim_problem
from gpuplane.node.model.claims import PreparedClaim, PreparedDevice
from gpuplane.node.model.inspection import ClaimDevice, ClaimShown
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import CLAIM_REQUESTS_PART, RefusedClaim


def report_claims(snapshot: Snapshot) -> tuple[ClaimShown, ...]:
    """The prepared claims, then those that were refused; each in the order of their names."""
    indices = {gpu.uuid: str(gpu.index) for gpu in snapshot.gpus}
    status = snapshot.statuses.of(CLAIM_REQUESTS_PART)
    prepared = [_prepared(snapshot, uid, each, indices) for uid, each in (snapshot.ledger.claims or {}).items()]
    refused = [
        _refused(uid, each)
        for uid, each in (status.refused if status is not None else {}).items()
        if uid not in (snapshot.ledger.claims or {})
    ]
    return (*_sorted(prepared), *_sorted(refused))


def _sorted(claims: Iterable[ClaimShown]) -> list[ClaimShown]:
    return sorted(claims, key=lambda each: (each.namespace, each.name, each.uid))


def _prepared(snapshot: Snapshot, uid: str, claim: PreparedClaim, indices: Mapping[str, str]) -> ClaimShown:
    why = claim_problem(snapshot, uid)
    return ClaimShown(
        namespace=claim.claim.namespace,
        name=claim.claim.name,
        uid=uid,
        state="prepared" if why is None else "waiting" if why.kind == "waiting" else "failing",
        code=why.code if why is not None else "",
        reason=why.text if why is not None else "",
        devices=tuple(_device(each, indices) for each in claim.devices),
        pods=tuple(sorted(claim.pods)),
        containers=tuple(_containers(snapshot.allocations or (), str(claim.claim))),
    )


def _device(device: PreparedDevice, indices: Mapping[str, str]) -> ClaimDevice:
    allocated = device.allocated
    return ClaimDevice(
        request=allocated.request,
        pool=allocated.pool,
        device=allocated.device,
        uuid=device.unit,
        index=indices.get(device.unit, ""),
        admin_access=allocated.is_admin,
        cdi_device=device.cdi_id,
        time_slice=device.time_slice or "",
    )


def _containers(allocations: Iterable[Allocation], claim: str) -> Iterable[str]:
    """Who uses a claim, as kubelet lists it: "namespace/pod/container"."""
    found = {str(each.holder) for each in allocations if each.claim == claim and each.holder.identifies_pod}
    return sorted(found)


def _refused(uid: str, claim: RefusedClaim) -> ClaimShown:
    return ClaimShown(
        namespace=claim.namespace, name=claim.name, uid=uid, state="refused", code=claim.code, reason=claim.text
    )
