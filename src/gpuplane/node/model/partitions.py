"""Partitions of a GPU: what it can be partitioned into, what there is, what is requested, and single changes.

A GPU in MIG mode has GPU instances, each on a part of its memory slices, and each of these has compute instances. What
a container gets, a MIG device, is one compute instance within its GPU instance.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value


class ComputeInstanceProfile(Value):
    """A size of compute instance that a GPU instance can have. `id`: as the driver numbers it within that profile."""

    id: int
    slices: int  # compute slices
    count: int  # most of them in one GPU instance


class GpuInstanceProfile(Value):
    """A size of GPU instance that a card can have (NVML: nvmlGpuInstanceProfileInfo_t, and its possible placements).

    `id`: as this card numbers it, which is what the driver takes to create one. It is not the constant by which NVML is
    asked for the profile: on an A100 1g is 19, and is asked for by 0.
    """

    id: int
    name: str  # NVIDIA's, "1g.10gb+me"
    slices: int  # compute slices
    size: int  # memory slices
    starts: tuple[int, ...]  # memory slices at which one can begin
    count: int  # most of them on one card
    memory_mib: int
    compute_profiles: tuple[ComputeInstanceProfile, ...] = ()


class ComputeInstance(Value):
    """A compute instance that exists. `id`: the driver's, within its GPU instance."""

    id: int
    slices: int


class GpuInstance(Value):
    """A GPU instance that exists. `id`: the driver's, within its GPU; `profile`: the id of its profile."""

    id: int
    profile: int
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...] = ()

    @property
    def placement(self) -> tuple[int, int]:
        """(id of its profile, first memory slice): what identifies it, as long as it exists."""
        return self.profile, self.start


class PlacedInstance(Value):
    """A GPU instance at a certain place, with its compute instances: how a layout that was saved has it."""

    profile: str  # its name
    start: int
    compute_slices: tuple[int, ...]  # of each compute instance, the largest first


class GpuLayout(Value):
    """What is requested of one GPU.

    `mig_devices`: name of a profile ("1g.10gb", "1c.3g.40gb") → how many. `placed`: the same with the place of each GPU
    instance; None where that does not matter. `replaces_foreign`: instances that we did not make may be destroyed, too.
    """

    mig_enabled: bool
    mig_devices: Mapping[str, int] = {}
    placed: tuple[PlacedInstance, ...] | None = None
    replaces_foreign: bool = False


class LayoutRequest(Value):
    """A request for the layouts of GPUs by UUID. A GPU that is not in it stays as it is.

    `name`: of the configuration. `mode_only`: MIG mode is set, and no instance. `skip_reset`: a GPU that needs a reset
    for its mode is not reset.
    """

    name: str
    layouts: Mapping[str, GpuLayout]
    mode_only: bool = False
    skip_reset: bool = False


class MigConfigEntry(Value):
    """One entry of a named configuration of mig-parted's file (api/spec/v1/spec.go).

    `device_filters`: PCI ids, "0x233010DE" or with a subsystem "0x233010DE:0x16C110DE"; () for every GPU. `indices`:
    None for `all`. `source`: "FILE:LINE" of the entry.
    """

    mig_enabled: bool
    mig_devices: Mapping[str, int] = {}
    device_filters: tuple[str, ...] = ()
    indices: tuple[int, ...] | None = None
    source: str = ""


MigConfigs = Mapping[str, tuple[MigConfigEntry, ...]]
"""The named configurations of a file."""


class SetMigMode(Value, tag=True):
    """Switch MIG mode on or off. Before Hopper it takes effect at the next reset of the GPU."""

    enabled: bool


class ResetGpu(Value, tag=True):
    """Reset the GPU, so that its MIG mode takes effect. No program may have the GPU open, our own included."""


class CreateGpuInstance(Value, tag=True):
    """Make a GPU instance of a profile (its id on this card) at a memory slice."""

    profile: int
    start: int


class DestroyGpuInstance(Value, tag=True):
    """Destroy a GPU instance that has no compute instances: the one of this id, if it is still of this placement."""

    instance: int
    profile: int
    start: int


class CreateComputeInstance(Value, tag=True):
    """Make a compute instance of so many slices in the GPU instance of this placement."""

    profile: int
    start: int
    slices: int


class DestroyComputeInstance(Value, tag=True):
    """Destroy a compute instance (its id) of the GPU instance of this placement."""

    profile: int
    start: int
    compute_instance: int


PartitionChange = (
    SetMigMode | ResetGpu | CreateGpuInstance | DestroyGpuInstance | CreateComputeInstance | DestroyComputeInstance
)

ChangeProblem = Literal[
    "", "in-use", "insufficient-resources", "not-supported", "no-permission", "gone", "failed", "no-progress"
]
"""Why a change was not made, for programs.

in-use: somebody has the GPU or the instance open. insufficient-resources: the driver has no place for it.
not-supported: this GPU, or who manages it, does not allow it: a read-only InfoROM, the host of virtual GPUs. gone: the
GPU, or the instance, is not there, or is another one. failed: anything else, which may be better the next time.
no-progress: it was made, and so were so many others that the layout should be there long since.
"""


class GpuUser(Value):
    """Somebody who has a GPU open. `cgroups`: of a process, as /proc/PID/cgroup has them."""

    name: str  # of the program, "python3"; of a kernel module, "nvidia_drm"
    pid: int | None = None  # None: a kernel module
    cgroups: tuple[str, ...] = ()


class GpuPartitionState(Value):
    """What we did on one GPU for a request, and what came of it: the ledger's.

    `made`: placements of GPU instances that we made, or are about to make. `before`: the layout when we began, to which
    we go back where the requested one cannot be made. `pending`: `last_change` is not finished. `failed_tries`: in a
    row, of the same change.
    """

    made: tuple[tuple[int, int], ...] = ()
    requested: GpuLayout | None = None  # for which `before` was the layout before; None: nothing was begun
    before: GpuLayout | None = None
    rolled_back: bool = False  # the requested layout could not be made: `before` is restored until the next try
    restored_at: float = 0.0  # when that was decided
    restored_times: int = 0  # in a row, for this request
    withdrawn: tuple[str, ...] = ()  # UUIDs of the devices that are withheld because they are about to go
    withdrawn_at: float = 0.0  # since when all of them are
    last_change: PartitionChange | None = None
    changed_at: float = 0.0
    changes_made: int = 0  # since the request, or since the last try of it
    pending: bool = False
    outcome_unknown: bool = False  # the last change broke off: it may have been made
    failed_tries: int = 0
    problem: ChangeProblem = ""
    failure: Text = ""  # why the last change was not made
    users: tuple[GpuUser, ...] = ()  # who had the GPU open then


ProgressState = Literal["done", "changing", "waiting", "failed"]
"""How a GPU stands to its requested layout: it has it; it is being changed; it waits for somebody; it cannot have it,
or not now, and is tried again."""


class GpuProgress(Value):
    """How one GPU stands to its requested layout.

    `reason`: what it waits for, or why it failed, for people; `code`: the same for programs. `holders`: pods as
    "namespace/name" for which it waits. `next_try_at`: CLOCK_BOOTTIME; None where time alone changes nothing.
    """

    gpu: str  # its UUID
    state: ProgressState
    reason: Text = ""
    code: str = ""
    holders: tuple[str, ...] = ()
    next_try_at: float | None = None


class PartitionsProgress(Value):
    """How the requested layouts of a node stand. `config`: their name; "" where nothing is requested.

    `problem`: why the request cannot be followed at all (no such configuration; NVIDIA's MIG manager acts here),
    and `code` for programs. Then no GPU is changed.
    """

    config: str = ""
    gpus: tuple[GpuProgress, ...] = ()
    problem: Text = ""
    code: str = ""
