"""Facts: the only things that change a snapshot. Each is told by one kind of room."""

from gpuplane.model.config import Asked, Settings, TimeSlice
from gpuplane.model.health import Drain
from gpuplane.model.machine import Gpu, Machine
from gpuplane.model.snapshot import Allocation, Condition, Disk, Ledger, Release
from gpuplane.model.value import Value


class _Tagged(Value, tag=True):
    """Encoded with the name of its class, so that it can cross to another process."""


class MachineObserved(_Tagged):
    """hardware: one look at the machine."""

    machine: Machine


class FaultOccurred(_Tagged):
    """hardware, host: something befell a GPU. `code` is a name of the fault catalogue, "xid-79".

    `at`: CLOCK_BOOTTIME. `log`: the number of its record in the kernel log, which tells again what happened while we
    were away; None elsewhere.
    """

    code: str
    gpu: str  # its UUID, or its PCI address where only that is known; "" for every GPU
    message: str
    at: float
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pids: tuple[int, ...] = ()
    log: int | None = None


class ProbeFinished(_Tagged):
    """hardware: a recovery probe has ended, the one wished for at `asked`: what a fresh process saw of a GPU.

    Where it saw nothing, `gpu` has a fault that says why. `pids`: the processes that compute on it.
    """

    asked: float
    gpu: Gpu
    pids: tuple[int, ...] = ()


class TimeSliceFinished(_Tagged):
    """hardware: what came of the setting of a GPU's time slices, the one wished for at `asked`.

    `problem`: why they are not set. `unsure`: it broke off, and they may be set all the same.
    """

    gpu: str  # its UUID
    length: TimeSlice
    asked: float
    problem: str = ""
    unsure: bool = False


class DrainRequested(_Tagged):
    """A person wants a device (by its UUID) not to be given out; None takes that back, and says that it is mended."""

    device: str
    drain: Drain | None


class StatusChanged(_Tagged):
    """Any room, of its own part: how an outside thing stands now. None: the part is no more."""

    part: str
    condition: Condition | None


class ConfigLoaded(_Tagged):
    """agent: a good configuration was read; `name` where it is one of several named ones."""

    settings: Settings
    name: str | None = None
    warnings: tuple[str, ...] = ()  # what of it is taken otherwise than it is written, each with file and line


class NodeRequestsChanged(_Tagged):
    """apiserver: what our Node object's labels and annotations ask for."""

    asked: Asked


class AllocationsListed(_Tagged):
    """kubelet: what containers hold, by an answer to a question sent at `asked`."""

    allocations: tuple[Allocation, ...]
    asked: float


class AllocateAnswered(_Tagged):
    """kubelet: an Allocate was answered; the container is not listed yet."""

    resource: str
    devices: tuple[str, ...]


class LedgerLoaded(_Tagged):
    """host: the ledger as the state directory holds it.

    `ended`: nobody but us writes it any more. What the agent before us granted last, kubelet may not have told us yet.
    """

    ledger: Ledger
    ended: bool = True


class LedgerStored(_Tagged):
    """host: what the state directory holds of the ledger now."""

    disk: Disk


class DriverReleaseRequested(_Tagged):
    """An operator wants the driver let go of for a while; None takes the wish back."""

    release: Release | None


class Tick(_Tagged):
    """Nothing happened but time."""


Fact = (
    MachineObserved
    | FaultOccurred
    | ProbeFinished
    | TimeSliceFinished
    | DrainRequested
    | StatusChanged
    | ConfigLoaded
    | NodeRequestsChanged
    | AllocationsListed
    | AllocateAnswered
    | LedgerLoaded
    | LedgerStored
    | DriverReleaseRequested
    | Tick
)


class Look(_Tagged):
    """Action: look at the machine now, taking the driver up again where it was let go of."""


class Probe(_Tagged):
    """Action: look at one GPU in a fresh process. `ProbeFinished` comes back with the same `asked`, always."""

    gpu: str  # its UUID
    asked: float


class SetTimeSlice(_Tagged):
    """Action: set how long a GPU's time slices are. `TimeSliceFinished` always comes back with the same `asked`."""

    gpu: str  # its UUID
    length: TimeSlice
    asked: float


Action = Look | Probe | SetTimeSlice
