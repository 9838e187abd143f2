"""Facts: the only things that change a snapshot. Each is told by one kind of room."""

from gpuplane.model.config import Asked, Settings, TimeSlice
from gpuplane.model.health import Drain
from gpuplane.model.machine import Gpu, Machine
from gpuplane.model.snapshot import Allocation, Condition, Disk, Ledger, Release
from gpuplane.model.value import Value


class _Told(Value, tag=True):
    """Encoded with the name of its class, so that it can cross to another process."""


class Looked(_Told):
    """hardware: one look at the machine."""

    machine: Machine


class Happened(_Told):
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


class Probed(_Told):
    """hardware: a recovery probe has ended, the one wished for at `asked`: what a fresh process saw of a GPU.

    Where it saw nothing, `gpu` has a fault that says why. `pids`: the processes that compute on it.
    """

    asked: float
    gpu: Gpu
    pids: tuple[int, ...] = ()


class TimeSliceSet(_Told):
    """hardware: what came of the setting of a GPU's time slices, the one wished for at `asked`.

    `problem`: why they are not set. `unsure`: it broke off, and they may be set all the same.
    """

    gpu: str  # its UUID
    length: TimeSlice
    asked: float
    problem: str = ""
    unsure: bool = False


class Drained(_Told):
    """A person wants a device (by its UUID) not to be given out; None takes that back, and says that it is mended."""

    device: str
    drain: Drain | None


class Stood(_Told):
    """Any room, of its own part: how an outside thing stands now. None: the part is no more."""

    part: str
    condition: Condition | None


class Configured(_Told):
    """agent: a good configuration was read; `name` where it is one of several named ones."""

    settings: Settings
    name: str | None = None
    warnings: tuple[str, ...] = ()  # what of it is taken otherwise than it is written, each with file and line


class NodeAsked(_Told):
    """apiserver: what our Node object's labels and annotations ask for."""

    asked: Asked


class Listed(_Told):
    """kubelet: what containers hold, by an answer to a question sent at `asked`."""

    allocations: tuple[Allocation, ...]
    asked: float


class Granted(_Told):
    """kubelet: an Allocate was answered; the container is not listed yet."""

    resource: str
    devices: tuple[str, ...]


class Remembered(_Told):
    """host: the ledger as the state directory holds it.

    `ended`: nobody but us writes it any more. What the agent before us granted last, kubelet may not have told us yet.
    """

    ledger: Ledger
    ended: bool = True


class Stored(_Told):
    """host: what the state directory holds of the ledger now."""

    disk: Disk


class ReleaseWished(_Told):
    """An operator wants the driver let go of for a while; None takes the wish back."""

    release: Release | None


class Tick(_Told):
    """Nothing happened but time."""


Fact = (
    Looked
    | Happened
    | Probed
    | TimeSliceSet
    | Drained
    | Stood
    | Configured
    | NodeAsked
    | Listed
    | Granted
    | Remembered
    | Stored
    | ReleaseWished
    | Tick
)


class Look(_Told):
    """Action: look at the machine now, taking the driver up again where it was let go of."""


class Probe(_Told):
    """Action: look at one GPU in a fresh process. `Probed` comes back with the same `asked`, always."""

    gpu: str  # its UUID
    asked: float


class SetTimeSlice(_Told):
    """Action: set how long the time slices of a GPU are. `TimeSliceSet` comes back with the same `asked`, always."""

    gpu: str  # its UUID
    length: TimeSlice
    asked: float


Action = Look | Probe | SetTimeSlice
