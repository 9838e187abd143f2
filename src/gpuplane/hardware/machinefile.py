"""A machine as a person describes it in YAML: read strictly, and checked against itself."""

import difflib
import re
from collections.abc import Hashable, Iterable, Iterator

from gpuplane.core import strict
from gpuplane.hardware.driver.errors import ERRORS
from gpuplane.model.machine import Gpu, MachineFile

DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

Problems = Iterator[tuple[strict.Path, str]]


def read(data: bytes, file: str) -> MachineFile:
    """The machine that the file describes. Raises strict.Invalid, with file and line of everything that is wrong."""
    return strict.load(data, MachineFile, file, check)


def check(machine: MachineFile) -> Problems:
    """What contradicts itself in a machine: (path, what is wrong)."""
    yield from _repeated(_identities(machine))
    addresses = {gpu.pci for gpu in machine.gpus or ()}
    for i, gpu in enumerate(machine.gpus or ()):
        for path, text in _gpu(gpu, addresses):
            yield ("gpus", i, *path), text
    indices = {gpu.index for gpu in machine.gpus or ()}
    for i, failure in enumerate(machine.failures):
        if failure.gpu is not None and failure.gpu not in indices:
            yield ("failures", i, "gpu"), f"this machine has no GPU with index {failure.gpu}"
        if failure.error not in ERRORS:
            close = difflib.get_close_matches(failure.error, ERRORS, n=1)
            yield ("failures", i, "error"), f"NVML has no error {failure.error!r}; {_perhaps(close)}"


def _perhaps(close: list[str]) -> str:
    return f"did you mean {close[0]!r}?" if close else f"it has {', '.join(ERRORS)}"


def _identities(machine: MachineFile) -> Iterator[tuple[strict.Path, str, Hashable]]:
    """Everything that may stand once in a machine: (path, kind, value); "" and None are no values."""
    for i, gpu in enumerate(machine.gpus or ()):
        at: strict.Path = ("gpus", i)
        yield (*at, "index"), "GPU index", gpu.index
        yield (*at, "uuid"), "UUID", gpu.uuid
        yield (*at, "pci"), "PCI address", gpu.pci
        yield (*at, "minor"), "minor number", gpu.minor
        for j, mig in enumerate(gpu.mig.devices if gpu.mig else ()):
            inside = (*at, "mig", "devices", j)
            yield (*inside, "uuid"), "UUID", mig.uuid
            yield (*inside, "slot"), f"MIG slot of GPU {gpu.index}", mig.slot
            instance = (mig.gpu_instance, mig.compute_instance)
            yield (*inside, "gpu_instance"), f"pair of GPU and compute instance of GPU {gpu.index}", instance
    for i, pci in enumerate(machine.switches):
        yield ("switches", i), "PCI address", pci
    for i, device in enumerate(machine.devices):
        yield ("devices", i, "id"), f"id of kind {device.kind}", device.id


def _repeated(identities: Iterable[tuple[strict.Path, str, Hashable]]) -> Problems:
    seen = set[tuple[str, Hashable]]()
    for path, kind, value in identities:
        if value in ("", None):
            continue
        if (kind, value) in seen:
            yield path, f"the {kind} {value} stands twice in this machine"
        seen.add((kind, value))


def _gpu(gpu: Gpu, addresses: set[str]) -> Problems:
    if gpu.pci and not PCI.fullmatch(gpu.pci):
        yield ("pci",), f"{gpu.pci!r} is no PCI address as sysfs writes it, like '0000:1b:00.0'"
    for i, link in enumerate(gpu.links):
        if link.peer != "nvswitch" and link.peer not in addresses:
            yield ("links", i, "peer"), f"{link.peer!r} is neither 'nvswitch' nor the PCI address of a GPU here"
    for pci, distance in gpu.distances.items():
        if pci not in addresses or pci == gpu.pci:
            yield ("distances", pci), f"{pci!r} is not the PCI address of another GPU here"
        if distance not in DISTANCES:
            yield ("distances", pci), f"{distance!r} is no distance; known are {', '.join(DISTANCES)}"
    if gpu.mig is not None and gpu.mig.devices and not gpu.mig.enabled:
        yield ("mig",), "it has MIG devices, but is not in MIG mode: write enabled: true"
