"""What the agent and the supervisor of MPS daemons exchange, by two files in the MPS root directory."""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value


class MpsDaemon(Value):
    """One control daemon that shall run."""

    name: str  # of its resource, or the UUID of its MIG device
    client_memory_mib_by_device: Mapping[str, int]  # UUID → MiB of its memory that each client may have; 0: no limit
    active_thread_percentage: int = 100
    multi_user: bool = False
    exclusive_compute_mode: bool = False  # the compute mode of its devices is EXCLUSIVE_PROCESS while it runs


class WantedDaemons(Value):
    """The daemons that shall run. `daemons_in_use`: names of those that containers are clients of, computing or not."""

    daemons: tuple[MpsDaemon, ...] = ()
    daemons_in_use: tuple[str, ...] = ()


class DaemonStatus(Value):
    """The status of one control daemon. `devices`: those that new clients can use, while it is ok."""

    name: str
    state: Literal["ok", "waiting", "failing"]
    reason: Text
    devices: tuple[str, ...] = ()
    pid: int | None = None


class SupervisorStatus(Value):
    """What the supervisor sees, at `at` (CLOCK_BOOTTIME).

    `exclusive_gpus`: the GPUs whose compute mode it has changed and not restored yet. `problem`: what keeps it from
    that, or from reading what is wanted.
    """

    at: float
    pid: int
    daemons: tuple[DaemonStatus, ...] = ()
    exclusive_gpus: tuple[str, ...] = ()
    problem: Text = ""
