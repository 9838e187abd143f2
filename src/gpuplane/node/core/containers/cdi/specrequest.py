"""The input of a specification: which devices, how they are named, where their files are, and the hook program."""

from typing import Literal

from gpuplane.base.value import Value

NamingStrategy = Literal["index", "uuid", "type-index"]
SpecMode = Literal["gpu", "management", "imex", "gds", "gdrcopy", "mofed", "nvswitch"]

ALL_NAME = "all"
"""The id of all devices, the name of the device that is all of them, and NVIDIA's name of all hooks."""

NONE_NAME = "none"
"""The id of no device: the specification then has one device of this name, with the common edits only."""


class HookProgram(Value):
    """The program that the runtime calls at a container's start. The path is on the host."""

    path: str
    is_nvidia: bool = False  # NVIDIA's program: it needs one hook for each task


class SpecOptions(Value):
    """What a specification shall contain. Paths are on the host."""

    kind: str
    mode: SpecMode = "gpu"
    naming: tuple[NamingStrategy, ...] = ("uuid",)  # every device gets one name by each strategy
    with_all_device: bool = False  # adds a device `all`
    ids: tuple[str, ...] = ()  # of the devices: index, UUID, "0:1", PCI address, channel, `all`, `none`; (): all
    driver_root: str = "/"
    dev_root: str = "/"
    hook_program: HookProgram | None = None  # None: no hooks; libraries are mounted by all their names instead of links
    disabled_hooks: tuple[str, ...] = ()  # NVIDIA's names of hooks, or `all`
    enabled_hooks: tuple[str, ...] = ()  # exceptions from `disabled_hooks`
    feature_flags: tuple[str, ...] = ()  # NVIDIA's feature flags
    stand_ins: bool = False  # /dev/null by the name of each device node, and nothing of the driver
