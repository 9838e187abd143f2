"""A node with GPUs that serves claims, as a snapshot, and the claims that it gets."""

from collections.abc import Iterable

from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprint
from gpuplane.node.core.dra.claimspecs import claim_specs
from gpuplane.node.core.step import step
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, OpaqueConfig
from gpuplane.node.model.config import DraSettings, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    Fact,
    LedgerStored,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, Snapshot, StoredLedger
from gpuplane.node.model.status import CLAIM_FILES_PART, ClaimFilesStatus
from tests.node.core.containers.documents import CONTROL, DRIVER

DRA = Settings(dra=DraSettings(enabled=True))
GPUS = tuple(
    Gpu(index=n, uuid=f"GPU-{n}", minor=n, memory_mib=81559, device_nodes=(f"/dev/nvidia{n}",)) for n in range(4)
)
STATS = {**CONTROL, **{f"/dev/nvidia{n}": next(iter(CONTROL.values())).but(minor=n) for n in range(4)}}
MACHINE = Machine(driver=DRIVER, gpus=GPUS, shared_nodes=tuple(CONTROL), device_node_stats=STATS)


def after(snapshot: Snapshot, *facts: Fact, now: float = 100.0) -> Snapshot:
    """The snapshot after some facts."""
    for fact in facts:
        snapshot = step(snapshot, fact, now)
    return snapshot


def node(settings: Settings = DRA, machine: Machine = MACHINE, held: Iterable[Allocation] = ()) -> Snapshot:
    """A node that serves."""
    return after(Snapshot(), ConfigLoaded(settings), MachineObserved(machine), AllocationsListed(tuple(held), 0.0))


def claim(
    uid: str, *gpus: int, name: str = "", admin: bool = False, configs: tuple[OpaqueConfig, ...] = ()
) -> AllocatedClaim:
    """A claim that was allocated some GPUs, by the request "gpu"."""
    devices = (AllocatedDevice("gpu", f"n1/gpu-{n}", f"gpu-{n}", is_admin=admin) for n in gpus)
    return AllocatedClaim(ClaimName("default", name or uid, uid), tuple(devices), configs, pods={"train": "pod-uid"})


def written(snapshot: Snapshot) -> Snapshot:
    """The snapshot after its ledger and its claims' files were written."""
    found = {uid: spec_fingerprint(spec) for uid, spec in claim_specs(snapshot).items()}
    files = StatusChanged(CLAIM_FILES_PART, ClaimFilesStatus("ok", fingerprints=found))
    return after(snapshot, LedgerStored(StoredLedger(ledger=snapshot.ledger)), files)
