"""The reconciler: a wish is done once, and not before the disk knows of it."""

import asyncio

from gpuplane.node.agent.node import Node
from gpuplane.node.hardware.timeslices import keep_time_slices
from gpuplane.node.model.config import ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import (
    Action,
    ConfigLoaded,
    LedgerStored,
    MachineObserved,
    SetTimeSlice,
    StatusChanged,
    TimeSliceFinished,
)
from gpuplane.node.model.snapshot import Snapshot, StoredLedger
from gpuplane.node.model.status import DRIVER_PART, STATE_DIRECTORY_PART, TIME_SLICES_PART, DriverStatus, TurnStatus
from tests.node.core.health.world import machine

LONG = ReplicatedResource(name="nvidia.com/gpu", replicas=2, time_slice="long")


class Idle:
    """An actor that remembers what it shall do, and does nothing."""

    def __init__(self) -> None:
        self.asked: list[Action] = []

    async def do(self, action: Action) -> None:
        self.asked.append(action)

    async def release(self) -> None:
        pass


async def idle() -> None:
    """Everything runs that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def stored(node: Node) -> LedgerStored:
    """The disk holds the ledger as it is."""
    return LedgerStored(StoredLedger(ledger=node.snapshot.ledger))


async def test_a_wish_is_done_once_the_disk_knows_of_it() -> None:
    """What an agent did of which the next one knows nothing would never be set back. Where the disk fails anyhow,
    and says so, nothing is gained by waiting."""
    hardware, node = Idle(), Node(Snapshot(), now=lambda: 100.0)
    task = asyncio.create_task(keep_time_slices(node, hardware))
    node.apply(ConfigLoaded(Settings(sharing=Sharing(replicated_resources=(LONG,)))))
    node.apply(MachineObserved(machine(2)))
    node.apply(StatusChanged(DRIVER_PART, DriverStatus(state="ok")))
    await idle()
    assert hardware.asked == []
    assert node.snapshot.statuses[TIME_SLICES_PART].state == "waiting"

    node.apply(stored(node))
    first = SetTimeSlice(gpu="GPU-0", length="long", requested_at=100.0)
    await idle()
    assert hardware.asked == [first]
    node.apply(MachineObserved(machine(2).but(shared_nodes=("/dev/nvidiactl",))))
    await idle()
    assert hardware.asked == [first]

    node.apply(TimeSliceFinished(gpu="GPU-0", length="long", requested_at=100.0))
    await idle()
    assert hardware.asked == [first]  # the disk does not know of the second yet
    node.apply(StatusChanged(STATE_DIRECTORY_PART, TurnStatus(state="failing", text="disk full")))
    await idle()
    assert hardware.asked == [first, SetTimeSlice(gpu="GPU-1", length="long", requested_at=100.0)]

    node.apply(TimeSliceFinished(gpu="GPU-1", length="long", requested_at=100.0))
    await idle()
    assert node.snapshot.statuses[TIME_SLICES_PART].text == "long: GPU 0, 1"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
