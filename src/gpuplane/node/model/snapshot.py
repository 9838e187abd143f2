"""The snapshot of a node: everything that is known at one moment.

Each field has one kind of truth and one source. What Kubernetes sees is derived from it and never kept.
Times are seconds of CLOCK_BOOTTIME, which runs on while the agent is dead; `boot_id` says which boot they count from.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

import msgspec

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodMetadata, PodRef
from gpuplane.node.model.claims import PreparedClaim
from gpuplane.node.model.config import Config, NodeObjectRequests, TimeSlice
from gpuplane.node.model.health import HealthRecords
from gpuplane.node.model.machine import DeviceList, Gpu, Machine
from gpuplane.node.model.partitions import GpuPartitionState, LayoutRequest
from gpuplane.node.model.sharelayout import EncodedLayout
from gpuplane.node.model.status import Statuses


class Allocation(Value):
    """Devices of one resource that one container holds. `holder`: which one; unknown while kubelet admits the pod."""

    resource: str
    devices: tuple[str, ...]
    holder: PodRef = PodRef()
    granted_at: float = 0.0  # when we answered the Allocate; 0: kubelet has listed it
    share_layout: EncodedLayout = EncodedLayout("")  # of its unit, where the container's environment shows it
    claim: str = ""  # "namespace/name" of the claim by which the container has them; `resource` is its driver's name


class DriverRelease(Value):
    """A request to use neither the driver nor its device nodes until a time."""

    until: float
    reason: Text


class TimeSliceState(Value):
    """What we set as the length of one GPU's time slices. The driver keeps it until it is reloaded or the GPU reset.

    `requested_at`: when the last try was requested; `tried_length`: the length to set; `pending`: the try is not
    finished.
    """

    tried_length: TimeSlice
    requested_at: float
    pending: bool = False
    last_set_length: TimeSlice | None = None  # that we set last; None: none yet
    outcome_unknown: bool = False  # a try broke off: the length may be `tried_length`
    failed_tries: int = 0  # in a row
    failure: Text = ""  # why the last try failed


class Ledger(Value):
    """What we decided and nobody else knows. The only part that is written to disk: each field but `boot_id` is a file.

    `mig_parents`: UUID of a MIG device that exists or is held → UUID of the GPU on which it was seen last.
    `share_layouts`: id of a shared unit → its share layout: as it was when a container got shares of it, or as it is.
    `time_slices`: UUID of a GPU → the length of its time slices, where we set it.
    `layout_request`: what a person requested by a command. `partitions`: UUID of a GPU → what we did to its partitions.
    `claims`: UID of a claim → what we promised for it; each is a file.
    """

    boot_id: str = ""
    release: DriverRelease | None = None
    node_requests: NodeObjectRequests | None = None  # of our Node object, as last heard
    config_name: str | None = None  # the named config last in force
    mig_parents: Mapping[str, str] | None = None
    share_layouts: Mapping[str, EncodedLayout] | None = None
    time_slices: Mapping[str, TimeSliceState] | None = None
    layout_request: LayoutRequest | None = None
    partitions: Mapping[str, GpuPartitionState] | None = None
    claims: Mapping[str, PreparedClaim] | None = None
    health: HealthRecords | None = None  # verdicts and drains; None before the first observation


class StoredLedger(Value):
    """What the state directory holds of the ledger.

    `ledger`: all of it; None while that is unknown, because it is being written or could not be written.
    `possible_share_layouts`: `share_layouts` of the ledger: one value, or each that the directory may hold while that
    is unknown.
    """

    ledger: Ledger | None = None
    possible_share_layouts: tuple[Mapping[str, EncodedLayout], ...] = ()


class Allocatable(Value):
    """What kubelet could give out when it was asked, at `requested_at`: resource → ids."""

    ids: Mapping[str, frozenset[str]]
    requested_at: float


class Snapshot(Value, dict=True):
    """Everything that is known of the node. `generation` counts the changes.

    What is there: `machine` is NVIDIA's driver and GPUs, `devices` each other kind → its devices. Each is observed by
    itself, and is not there before its first observation.
    `state_dir`: the agent's state directory, for the commands that its texts name; "" for the usual one.
    """

    generation: int = 0
    machine: Machine | None = None
    devices: Mapping[str, DeviceList] = {}
    config: Config = Config()
    allocations: tuple[Allocation, ...] | None = None  # None: not asked yet
    ended_claims: Mapping[str, float] = {}  # "namespace/name" → when it was unprepared, until kubelet listed since
    pods: Mapping[str, PodMetadata] | None = None  # of this node, by UID; None: nobody asks the API server for them
    allocatable: Allocatable | None = None  # None: not asked
    checkpoint_rewrite: int = 0  # the number of the rewrite of kubelet's checkpoint that plugins have to cause; 0: none
    statuses: Statuses = Statuses()
    ledger: Ledger = Ledger()
    stored_ledger: StoredLedger = StoredLedger()
    state_dir: str = ""

    @cached_property
    def memory(self) -> dict[Any, Any]:
        """What views of this node remember. Snapshots share it that are made of each other; it is no part of them."""
        return {}

    def but(self, **changes: Any) -> Self:
        """The same snapshot with other fields, of the same node."""
        after = msgspec.structs.replace(self, **changes)
        after.__dict__["memory"] = self.memory
        return after

    def with_memory(self, memory: dict[Any, Any]) -> Self:
        """The same snapshot, of which views remember in another memory: that of another thread."""
        same = msgspec.structs.replace(self)
        same.__dict__["memory"] = memory
        return same

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs; () where they have not been counted yet."""
        return (self.machine.gpus if self.machine is not None else None) or ()

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of this UUID; None where there is none."""
        return self.machine.gpu(uuid) if self.machine is not None else None
