"""The picture of a node: everything known, at one moment.

Six fields, each with one kind of truth and one source; nothing that Kubernetes sees is kept, all of it is derived.
Times are seconds of CLOCK_BOOTTIME, which runs on while the agent is dead; `boot_id` says which boot they count from.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.model.config import Asked, Config, TimeSlice
from gpuplane.model.health import Health
from gpuplane.model.machine import Machine
from gpuplane.model.value import Value


class Allocation(Value):
    """Devices of one resource that one container holds. `pod` is "namespace/name"; "" while kubelet admits it."""

    resource: str
    devices: tuple[str, ...]
    pod: str = ""
    container: str = ""
    since: float = 0.0  # when we granted it; 0 for what kubelet listed
    cut: str = ""  # how the unit is cut that it holds shares of, where what the container was told shows that


LET_GO = "let go of"
"""The reason of the condition `driver` while it waits with no device node open."""


class Condition(Value):
    """How one outside thing stands, since when and why, as the room that deals with it says.

    `since` is the step's: when the standing began. While `code` stays the same, another reason is another wording.
    """

    standing: Literal["ok", "waiting", "failing"]
    reason: str = ""
    detail: str = ""  # which one exactly, for machines; makes no news
    code: str = ""  # of the fault, where it is one
    since: float = 0.0


class Release(Value):
    """A promise to keep our hands off the driver until a time."""

    until: float
    why: str


class Slicing(Value):
    """What we did to the length of one GPU's time slices, which the driver keeps until it or the GPU is reset.

    `at`: when the last try was wished for, to set what it `tried`; `pending` while it is under way.
    """

    tried: TimeSlice
    at: float
    pending: bool = False
    length: TimeSlice | None = None  # that we set last; None: none yet
    unsure: bool = False  # a try broke off, and it may be what that tried
    tries: int = 0  # that failed in a row
    failed: str = ""  # why the last one did


class Ledger(Value):
    """What we decided or promised and nobody else can tell us. The only part that is written to disk."""

    boot_id: str = ""
    release: Release | None = None
    asked: Asked | None = None  # what our Node object asked last
    config_name: str | None = None  # the named config last in force
    homes: Mapping[str, str] | None = None  # MIG device that is there, or held → UUID of the GPU that it was seen on
    cuts: Mapping[str, str] | None = None  # device that is shared → how: as when a container got shares of it, or now
    time_slices: Mapping[str, Slicing] | None = None  # UUID of a GPU → the length of its time slices, where we set it
    health: Health | None = None  # verdicts and drains; None before the first look


UNKNOWN = "unknown"
"""How a unit is cut of which a container holds shares that nobody remembers."""


class Disk(Value):
    """What the state directory holds of the ledger.

    `ledger`: all of it; None while that is in doubt, because it is being written or could not be. `cuts`: its part of
    that name; one value, or each that the directory may hold while that is in doubt.
    """

    ledger: Ledger | None = None
    cuts: tuple[Mapping[str, str], ...] = ()


class Snapshot(Value):
    """The whole picture. `generation` counts the changes."""

    generation: int = 0
    machine: Machine | None = None  # None: not looked yet
    config: Config = Config()
    allocations: tuple[Allocation, ...] | None = None  # None: not asked yet
    conditions: Mapping[str, Condition] = {}
    ledger: Ledger = Ledger()
    disk: Disk = Disk()
