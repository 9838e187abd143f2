"""How each part of the agent and of its surroundings is: a part, its status, and all statuses of a node.

A part is what one room watches, serves or keeps: the driver, the plugin of a resource, the files of CDI. The room that
deals with it reports its status. Each kind of part has one type of status: `Status`, or one with fields of its own.
Programs read `state`, `code` and those fields; people read `text`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar, get_args

from gpuplane.base.text import Text
from gpuplane.base.value import Value

PartState = Literal["ok", "waiting", "failing"]


Turn = Literal["", "standby", "leaving", "left"]
"""What keeps an agent from serving kubelet.

standby: another agent has the lock. leaving: this agent was told to end, and registers no more. left: it serves
no more.
"""


class Status(Value):
    """The status of a part. `since`: when the state began; `step` sets it."""

    state: PartState
    text: Text = ""  # why, for people
    code: str = ""  # of the fault, where it is one
    since: float = 0.0
    warns: bool = False  # the part works, and the text has warnings

    def has_same_state_and_cause(self, other: "Status") -> bool:
        """Whether there is nothing new to say: the state is the same, and the code, or without a code what is said."""
        if self.code or other.code:
            return (self.state, self.code) == (other.state, other.code)
        return Status(self.state, self.text) == Status(other.state, other.text)


class DriverStatus(Status):
    """`released`: no device node of the driver is open, because somebody requested that."""

    released: bool = False


class CdiFilesStatus(Status):
    """`fingerprints`: what the files on disk define, sorted: that of each file and of each device in it."""

    fingerprints: tuple[str, ...] = ()


class CdiConflictStatus(Status):
    """`devices`: the qualified names which a file of another program defines, and which are ours to define."""

    devices: tuple[str, ...] = ()


class ClaimFilesStatus(Status):
    """`fingerprints`: UID of a claim → a digest of what its CDI file on disk says.

    `problems`: UID of a claim → what its files cannot be written or removed for; "" → what concerns all of them.

    `metadata_root`: the directory on the host below which files describe devices to containers; "" where there is none.
    """

    fingerprints: Mapping[str, str] = {}
    problems: Mapping[str, Text] = {}
    metadata_root: str = ""


class RefusedClaim(Value):
    """A claim that kubelet asked for in vain, last at `asked_at` (CLOCK_BOOTTIME)."""

    namespace: str
    name: str
    code: str
    text: Text
    asked_at: float


class ClaimRequestsStatus(Status):
    """`refused`: UID → the claims that kubelet asks for in vain."""

    refused: Mapping[str, RefusedClaim] = {}


class SlicesStatus(Status):
    """`published`: names of the ResourceSlices that shall be published. `differing`: name of one → the fields in which
    the API server has it otherwise. `withdrawn`: devices that are not published because a taint was not kept.
    """

    published: tuple[str, ...] = ()
    differing: Mapping[str, tuple[str, ...]] = {}
    withdrawn: tuple[str, ...] = ()


class CdiHookStatus(Status):
    """`path`: of our hook on the host; "" where it cannot be called."""

    path: str = ""


class MpsDaemonStatus(Status):
    """`devices`: UUIDs of the devices that new clients can use."""

    devices: tuple[str, ...] = ()


class ComputeModeStatus(Status):
    """`exclusive_gpus`: UUIDs of the GPUs whose compute mode MPS has changed and not restored yet."""

    exclusive_gpus: tuple[str, ...] = ()


class TimeSliceStatus(Status):
    """`pending_gpus`: UUIDs of the GPUs whose time slices do not have the wanted length yet."""

    pending_gpus: tuple[str, ...] = ()


class TurnStatus(Status):
    """`turn`: what keeps this agent from serving kubelet; "" for nothing."""

    turn: Turn = ""


PartKind = Literal[
    # what is watched or kept
    "driver",
    "driver process",
    "machine file",
    "devices file",
    "device nodes",
    "time slices",
    "kernel log",
    "state",
    "config",
    "sharing",
    "kubelet lock",
    "plugin",
    "mps daemon",
    "pod-resources",
    "allocatable devices",
    "cdi",
    "cdi hook",
    "cdi conflict",
    "mps supervisor",
    "mps requests",
    "mps compute modes",
    "apiserver",
    "node condition",
    "node metadata",
    "mig state",
    "node feature",
    "features file",
    "startup taint",
    "events",
    "counters file",
    "mig configs file",
    "claim files",
    "claim requests",
    "claim status",
    "claims",
    "dra plugin",
    "pods",
    "slices",
    "process metrics",
    "certificate",
    "metrics authorization",
    # what the agent runs, and nothing else tells of: such a part has a status only while it fails
    "choice",
    "clock",
    "control",
    "control while standing by",
    "driver release",
    "hardware",
    "partitions",
    "plain devices",
    "plugins",
    "probes",
    "samples",
    "sampling",
    "status pages",
    "what another agent remembers",
    # a part of an agent of another version
    "other",
]

STATUS_TYPES: Mapping[PartKind, type[Status]] = {
    "driver": DriverStatus,
    "cdi": CdiFilesStatus,
    "cdi conflict": CdiConflictStatus,
    "cdi hook": CdiHookStatus,
    "claim files": ClaimFilesStatus,
    "claim requests": ClaimRequestsStatus,
    "slices": SlicesStatus,
    "mps daemon": MpsDaemonStatus,
    "mps compute modes": ComputeModeStatus,
    "time slices": TimeSliceStatus,
    "kubelet lock": TurnStatus,
    "state": TurnStatus,
}
"""The type of the status of each kind of part. Kinds that are not listed have `Status`."""

S = TypeVar("S", bound=Status)


class Part(Value, Generic[S]):
    """One part. `subject`: which one of its kind: a resource, an MPS daemon, a file; "" where there is one only.

    `S` is the type of its status.
    """

    kind: PartKind
    subject: str = ""

    @property
    def name(self) -> str:
        """As `gpuplane inspect`, the metrics and the log call it: "driver", "plugin/nvidia.com/gpu"."""
        if self.kind == "other":
            return self.subject
        if self.kind == "cdi conflict":
            return f"cdi {self.subject}"
        if self.kind == "mps daemon":
            return f"mps/{self.subject}"
        return f"{self.kind}/{self.subject}" if self.subject else self.kind

    @property
    def status_type(self) -> type[Status]:
        """The type of its status."""
        return STATUS_TYPES.get(self.kind, Status)


AnyPart = Part[Any]

_SINGLE_PART_KINDS: tuple[PartKind, ...] = tuple(
    kind for kind in get_args(PartKind) if kind not in ("plugin", "mps daemon", "cdi conflict", "other")
)
"""The kinds of which there is one part only."""

DRIVER_PART: Part[DriverStatus] = Part("driver")
DRIVER_PROCESS_PART: Part[Status] = Part("driver process")
MACHINE_FILE_PART: Part[Status] = Part("machine file")
DEVICES_FILE_PART: Part[Status] = Part("devices file")
DEVICE_NODES_PART: Part[Status] = Part("device nodes")
TIME_SLICES_PART: Part[TimeSliceStatus] = Part("time slices")
KERNEL_LOG_PART: Part[Status] = Part("kernel log")
STATE_DIRECTORY_PART: Part[TurnStatus] = Part("state")
CONFIG_PART: Part[Status] = Part("config")
UNSUPPORTED_SHARING_PART: Part[Status] = Part("sharing")
KUBELET_LOCK_PART: Part[TurnStatus] = Part("kubelet lock")
POD_RESOURCES_PART: Part[Status] = Part("pod-resources")
ALLOCATABLE_PART: Part[Status] = Part("allocatable devices")
CDI_FILES_PART: Part[CdiFilesStatus] = Part("cdi")
CDI_HOOK_PART: Part[CdiHookStatus] = Part("cdi hook")
MPS_SUPERVISOR_PART: Part[Status] = Part("mps supervisor")
MPS_REQUESTS_PART: Part[Status] = Part("mps requests")
MPS_COMPUTE_MODES_PART: Part[ComputeModeStatus] = Part("mps compute modes")
API_SERVER_PART: Part[Status] = Part("apiserver")
NODE_CONDITION_PART: Part[Status] = Part("node condition")
NODE_METADATA_PART: Part[Status] = Part("node metadata")
MIG_STATE_PART: Part[Status] = Part("mig state")
NODE_FEATURE_PART: Part[Status] = Part("node feature")
FEATURES_FILE_PART: Part[Status] = Part("features file")
STARTUP_TAINT_PART: Part[Status] = Part("startup taint")
EVENTS_PART: Part[Status] = Part("events")
PODS_PART: Part[Status] = Part("pods")
COUNTERS_FILE_PART: Part[Status] = Part("counters file")
MIG_CONFIGS_FILE_PART: Part[Status] = Part("mig configs file")
CLAIMS_PART: Part[Status] = Part("claims")
CLAIM_STATUS_PART: Part[Status] = Part("claim status")
CLAIM_REQUESTS_PART: Part[ClaimRequestsStatus] = Part("claim requests")
CLAIM_FILES_PART: Part[ClaimFilesStatus] = Part("claim files")
DRA_PLUGIN_PART: Part[Status] = Part("dra plugin")
SLICES_PART: Part[SlicesStatus] = Part("slices")
PROCESS_METRICS_PART: Part[Status] = Part("process metrics")
CERTIFICATE_PART: Part[Status] = Part("certificate")
METRICS_AUTHORIZATION_PART: Part[Status] = Part("metrics authorization")


def plugin_part(resource: str) -> Part[Status]:
    """The device plugin of a resource."""
    return Part("plugin", resource)


def mps_daemon_part(directory: str) -> Part[MpsDaemonStatus]:
    """The MPS control daemon that has its files in a directory of this name."""
    return Part("mps daemon", directory)


def cdi_conflict_part(path: str) -> Part[CdiConflictStatus]:
    """A CDI file of another program which defines devices that are ours to define."""
    return Part("cdi conflict", path)


def parse_part_name(name: str) -> AnyPart:
    """The part that has this name."""
    kind, _, subject = name.partition("/")
    if kind == "plugin" and subject:
        return plugin_part(subject)
    if kind == "mps" and subject:
        return mps_daemon_part(subject)
    if kind == "cdi " and subject:
        return cdi_conflict_part(f"/{subject}")
    return next((Part(kind) for kind in _SINGLE_PART_KINDS if kind == name), Part("other", name))


class Statuses(Mapping[AnyPart, Status]):
    """The status of each part, as a frozen mapping. `of` knows the type of a part's status."""

    __slots__ = ("_by_part",)

    def __init__(self, by_part: Mapping[AnyPart, Status] = {}) -> None:
        self._by_part = dict(by_part)

    def of(self, part: Part[S]) -> S | None:
        """The status of a part; None where it has none."""
        return self._by_part.get(part)  # type: ignore[return-value]

    def of_kind(self, kind: PartKind) -> Iterator[tuple[AnyPart, Status]]:
        """(part, status) of each part of a kind."""
        return ((part, status) for part, status in self._by_part.items() if part.kind == kind)

    def but(self, part: Part[S], status: S | None) -> "Statuses":
        """The same with another status of one part; None: without the part."""
        others = {each: known for each, known in self._by_part.items() if each != part}
        return Statuses(others if status is None else {**others, part: status})

    def __getitem__(self, part: AnyPart) -> Status:
        return self._by_part[part]

    def __iter__(self) -> Iterator[AnyPart]:
        return iter(self._by_part)

    def __len__(self) -> int:
        return len(self._by_part)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Statuses) and self._by_part == other._by_part

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Statuses({self._by_part})"
