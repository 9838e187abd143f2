"""What the agent and the supervisor of MPS daemons tell each other, by two files in the MPS root directory."""

from collections.abc import Mapping
from typing import Literal

from gpuplane.model.value import Value


class Daemon(Value):
    """One control daemon that is wanted."""

    name: str  # of its resource, or the UUID of its MIG device
    devices: Mapping[str, int]  # UUID → MiB of its memory that each client may have; 0: no limit
    active_thread_percentage: int = 100
    multi_user: bool = False
    exclusive: bool = False  # the compute mode of its devices is EXCLUSIVE_PROCESS while it runs


class Wanted(Value):
    """What the agent wants. `held`: names of daemons that containers are clients of, also while they do not compute."""

    daemons: tuple[Daemon, ...] = ()
    held: tuple[str, ...] = ()


class Standing(Value):
    """How one control daemon stands. `devices`: those that new clients of it can use, while it is ok."""

    name: str
    standing: Literal["ok", "waiting", "failing"]
    reason: str
    devices: tuple[str, ...] = ()
    pid: int | None = None


class Status(Value):
    """What the supervisor sees, at `at` (CLOCK_BOOTTIME).

    `exclusive`: the GPUs whose compute mode it has changed and not restored yet. `problem`: what keeps it from that, or
    from reading what is wanted.
    """

    at: float
    pid: int
    daemons: tuple[Standing, ...] = ()
    exclusive: tuple[str, ...] = ()
    problem: str = ""
