"""What a document is made for: which devices, called how, found where, and what a container's start may call."""

from typing import Literal

from gpuplane.model.value import Value

NamingStrategy = Literal["index", "uuid", "type-index"]
Mode = Literal["gpu", "management", "imex", "gds", "gdrcopy", "mofed", "nvswitch"]

ALL = "all"
"""The id of every device, the name of a device that is all of them, and NVIDIA's name of every hook."""

NONE = "none"
"""The id of no device: the document then has one of this name, which gives what every device's container gets."""


class HookProgram(Value):
    """The program that a container's start calls. Paths are on the host."""

    path: str
    is_nvidia: bool = False  # NVIDIA's: a hook entry for each thing to do


class SpecRequest(Value):
    """What a document shall hold. Paths are on the host."""

    kind: str
    mode: Mode = "gpu"
    naming: tuple[NamingStrategy, ...] = ("uuid",)  # each gives every device a name
    with_all_device: bool = False  # a device `all` beside the others
    ids: tuple[str, ...] = ()  # of the devices wanted: index, UUID, "0:1", PCI address, channel, `all`, `none`; (): all
    driver_root: str = "/"
    dev_root: str = "/"
    hook_program: HookProgram | None = None  # None: links are made by mounts, and no program is called
    disabled_hooks: tuple[str, ...] = ()  # of NVIDIA's names of hooks; `all`
    enabled_hooks: tuple[str, ...] = ()  # those that are called all the same
    feature_flags: tuple[str, ...] = ()  # NVIDIA's feature flags
