"""Facts: the only things that change a snapshot. Each fact comes from one room, which its docstring names.

Times are seconds of CLOCK_BOOTTIME.
"""

from collections.abc import Mapping
from typing import Any, Generic

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodMetadata
from gpuplane.node.model.claims import AllocatedClaim, ClaimName
from gpuplane.node.model.config import NodeObjectRequests, Settings, TimeSlice
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import DeviceList, Gpu, Machine
from gpuplane.node.model.partitions import ChangeProblem, GpuUser, LayoutRequest, MigConfigs, PartitionChange
from gpuplane.node.model.snapshot import Allocation, DriverRelease, Ledger, StoredLedger
from gpuplane.node.model.status import Part, S
from gpuplane.node.model.telemetry import DcgmCounter


class _TaggedMessage(Value, tag=True):
    """Encoded with the name of its class, so that it can cross to another process."""


class MachineObserved(_TaggedMessage):
    """hardware: one look at NVIDIA's driver and GPUs. `wall_clock`: when it was heard of, in seconds since 1970."""

    machine: Machine
    wall_clock: float | None = None


class DevicesObserved(_TaggedMessage):
    """hardware: one look at all devices of another kind. `kind`: its name in the table of kinds."""

    kind: str
    observed: DeviceList


class FaultOccurred(_TaggedMessage):
    """hardware, host: a fault occurred on a GPU. `code` is a name of the fault catalogue, "xid-79".

    `kernel_log_number`: the number of its record in the kernel log; None where it comes from elsewhere. The log repeats
    what happened while the agent was not running.
    """

    code: str
    gpu: str  # its UUID, or its PCI address where only that is known; "" for every GPU
    message: Text
    at: float
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pids: tuple[int, ...] = ()
    kernel_log_number: int | None = None


class ProbeFinished(_TaggedMessage):
    """hardware: the recovery probe that was requested at `requested_at` has finished. `gpu`: what a new process saw.

    Where it saw nothing, `gpu` has a fault that says why. `pids`: the processes that compute on the GPU.
    """

    requested_at: float
    gpu: Gpu
    pids: tuple[int, ...] = ()


class TimeSliceFinished(_TaggedMessage):
    """hardware: the try, requested at `requested_at`, to set the length of a GPU's time slices has finished.

    `problem`: why the length is not set; "" where it is. `outcome_unknown`: the try broke off; the length may be set.
    """

    gpu: str  # its UUID
    length: TimeSlice
    requested_at: float
    problem: Text = ""
    outcome_unknown: bool = False


class PartitionChangeFinished(_TaggedMessage):
    """hardware: the try, requested at `requested_at`, to make one change of a GPU's partitions has finished.

    Where it was made, a look that shows it came before. `failure`: why it was not made, for people; `problem`: the same
    for programs. `outcome_unknown`: the try broke off; the change may be made. `users`: who has the GPU open.
    """

    gpu: str  # its UUID
    change: PartitionChange
    requested_at: float
    problem: ChangeProblem = ""
    failure: Text = ""
    outcome_unknown: bool = False
    users: tuple[GpuUser, ...] = ()


class MigConfigsLoaded(_TaggedMessage):
    """agent: the file of named MIG layouts was read. None: there is no such file."""

    configs: MigConfigs | None


class LayoutRequested(_TaggedMessage):
    """A person requests layouts by a command. None ends that request."""

    request: LayoutRequest | None


class AllocatableListed(_TaggedMessage):
    """kubelet: the ids that it could give out when it was asked at `requested_at`, by resource."""

    allocatable: Mapping[str, frozenset[str]]
    requested_at: float


class DrainRequested(_TaggedMessage):
    """A person requests the drain of a device (a UUID). None ends it and says that the device is repaired."""

    device_uuid: str
    drain: Drain | None


class StatusChanged(_TaggedMessage, Generic[S]):
    """Any room: the status of one of its parts has changed. None: the part no longer exists.

    Raises TypeError where the status is not of the type that this kind of part has.
    """

    part: Part[S]
    status: S | None

    def __post_init__(self) -> None:
        if self.status is not None and type(self.status) is not self.part.status_type:
            raise TypeError(f"{self.part.name} has a {self.part.status_type.__name__}, not {self.status!r}")


class ConfigLoaded(_TaggedMessage):
    """agent: a good configuration was read; `name` where it is one of several named ones."""

    settings: Settings
    name: str | None = None
    warnings: tuple[Text, ...] = ()  # what is understood differently from how it is written, each with file and line


class CountersLoaded(_TaggedMessage):
    """agent: the admin's list of DCGM fields was read. () for NVIDIA's default list."""

    counters: tuple[DcgmCounter, ...]


class NodeRequestsChanged(_TaggedMessage):
    """apiserver: the labels and annotations of our Node object request something else."""

    requests: NodeObjectRequests


class PodsObserved(_TaggedMessage):
    """apiserver: the pods of this node. None: they are not watched."""

    pods: Mapping[str, PodMetadata] | None


class AllocationsListed(_TaggedMessage):
    """kubelet: which devices containers hold, as kubelet answered a question that was sent at `requested_at`.

    `checkpoint_rewrite`: the number of the rewrite of kubelet's checkpoint that plugins have to cause; 0: none. The
    answer lacks what the checkpoint has, and kubelet forgets that in the checkpoint only when it writes it again.
    """

    allocations: tuple[Allocation, ...]
    requested_at: float
    checkpoint_rewrite: int = 0


class AllocateAnswered(_TaggedMessage):
    """kubelet: we answered an Allocate. Kubelet does not list the container yet."""

    resource: str
    devices: tuple[str, ...]


class ClaimPrepareRequested(_TaggedMessage):
    """kubelet: a claim has to be prepared. `claim`: as the API server told it, after the request had come."""

    claim: AllocatedClaim


class ClaimUnprepareRequested(_TaggedMessage):
    """kubelet, apiserver: no pod here uses a claim any more, or it does not exist."""

    claim: ClaimName


class LedgerLoaded(_TaggedMessage):
    """host: the ledger was loaded from the state directory.

    `previous_agent_ended`: no other agent writes to it now. Kubelet may not list yet what the previous agent allocated.
    """

    ledger: Ledger
    previous_agent_ended: bool = True


class LedgerStored(_TaggedMessage):
    """host: this much of the ledger is stored in the state directory."""

    stored_ledger: StoredLedger


class DriverReleaseRequested(_TaggedMessage):
    """An operator requests that the driver is released for a time. None ends the request."""

    release: DriverRelease | None


class Tick(_TaggedMessage):
    """Time has passed."""


Fact = (
    MachineObserved
    | DevicesObserved
    | FaultOccurred
    | ProbeFinished
    | TimeSliceFinished
    | PartitionChangeFinished
    | MigConfigsLoaded
    | LayoutRequested
    | AllocatableListed
    | DrainRequested
    | StatusChanged[Any]
    | ConfigLoaded
    | CountersLoaded
    | NodeRequestsChanged
    | PodsObserved
    | AllocationsListed
    | AllocateAnswered
    | ClaimPrepareRequested
    | ClaimUnprepareRequested
    | LedgerLoaded
    | LedgerStored
    | DriverReleaseRequested
    | Tick
)


class ObserveMachine(_TaggedMessage):
    """Action: observe the machine now. A released driver is loaded again."""


class ProbeGpu(_TaggedMessage):
    """Action: observe one GPU in a new process. `ProbeFinished` always comes back with the same `requested_at`."""

    gpu: str  # its UUID
    requested_at: float


class SetTimeSlice(_TaggedMessage):
    """Action: set the length of a GPU's time slices. `TimeSliceFinished` comes back with the same `requested_at`."""

    gpu: str  # its UUID
    length: TimeSlice
    requested_at: float


class ChangePartition(_TaggedMessage):
    """Action: make one change of a GPU's partitions. `PartitionChangeFinished` comes back with the same
    `requested_at`."""

    gpu: str  # its UUID
    change: PartitionChange
    requested_at: float


Action = ObserveMachine | ProbeGpu | SetTimeSlice | ChangePartition
