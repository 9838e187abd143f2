"""A driver that says that it made a change, and shows the GPU as before: no change is made for ever."""

from gpuplane.node.core.partitions.progress import partitions_progress
from gpuplane.node.core.partitions.state_machine import MAX_CHANGES, current_change, next_change_at
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    LayoutRequested,
    LedgerLoaded,
    MachineObserved,
    PartitionChangeFinished,
    StatusChanged,
    Tick,
)
from gpuplane.node.model.machine import Gpu, Machine, Mig
from gpuplane.node.model.partitions import GpuLayout, LayoutRequest
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from tests.node.core.partitions.tables import SEVEN


def changes_until_it_rests(snapshot: Snapshot, now: float) -> tuple[Snapshot, int]:
    """Answer every change with success, until none is wanted."""
    for made in range(5 * MAX_CHANGES):
        change = current_change(snapshot)
        if change is None:
            return snapshot, made
        done = PartitionChangeFinished(gpu=change.gpu, change=change.change, requested_at=change.requested_at)
        snapshot = step(snapshot, done, now)
    raise AssertionError("it goes on")


def test_it_stops_says_so_and_tries_again_later() -> None:
    """After so many changes for the layout, and so many for the one before it."""
    gpu = Gpu(index=0, uuid="GPU-0", mig=Mig(enabled=True, profiles=SEVEN, instances=()))
    request = LayoutRequest("mine", {"GPU-0": GpuLayout(True, {"3g.40gb": 2})})
    snapshot, now = Snapshot(), 100.0
    for fact in (
        LedgerLoaded(Ledger()),
        ConfigLoaded(Settings()),
        MachineObserved(Machine(gpus=(gpu,))),
        StatusChanged(DRIVER_PART, DriverStatus("ok")),
        AllocationsListed((), requested_at=now),
        LayoutRequested(request),
    ):
        snapshot = step(snapshot, fact, now)
    snapshot, made = changes_until_it_rests(snapshot, now)

    assert made == MAX_CHANGES
    progress = partitions_progress(snapshot)
    assert progress is not None
    assert [(each.state, each.code) for each in progress.gpus] == [("failed", "no-progress")]
    again = next_change_at(snapshot)
    assert again is not None
    assert again >= now + 60
    assert current_change(step(snapshot, Tick(), now + 59)) is None
    assert changes_until_it_rests(step(snapshot, Tick(), again), again)[1] == MAX_CHANGES
