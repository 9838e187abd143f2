"""From a machine to a CDI document: which devices it defines, what each gives, and what all of them give."""

from collections.abc import Mapping
from typing import Literal

from gpuplane.model.cdi import Spec
from gpuplane.model.machine import Machine
from gpuplane.model.value import Value

Naming = Literal["index", "uuid", "type-index"]
Mode = Literal["gpu", "management", "imex", "gds", "gdrcopy", "mofed", "nvswitch"]


class Program(Value):
    """The program that a container's start calls. Paths are on the host."""

    path: str
    nvidia: bool = False  # NVIDIA's: a hook entry for each thing to do


class Request(Value):
    """What a document shall hold. Paths are on the host."""

    kind: str
    mode: Mode = "gpu"
    names: tuple[Naming, ...] = ("uuid",)
    everything: bool = False  # a device `all` beside the others
    ids: tuple[str, ...] = ()  # of the devices wanted; (): all
    driver_root: str = "/"
    dev_root: str = "/"
    hook: Program | None = None  # None: links are made by mounts, and no program is called
    disabled: tuple[str, ...] = ()  # of NVIDIA's names of hooks; `all`
    features: tuple[str, ...] = ()  # NVIDIA's feature flags


class Document(Value):
    """A document, and the devices that are not in it, each with the reason. `spec` is None where it would have none."""

    spec: Spec | None
    left: Mapping[str, str] = {}  # by UUID, or by a node's path
    notes: tuple[str, ...] = ()  # what of the driver was not found, though a container may need it


def document(machine: Machine, request: Request) -> Document:
    """The document that a machine and a request make."""
    raise NotImplementedError
