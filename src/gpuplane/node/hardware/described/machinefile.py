"""A machine as a person describes it in YAML: read strictly, and checked against itself."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from gpuplane.base import strict
from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.core.kinds.nvidia.xids import xid_number
from gpuplane.node.core.kinds.table import PLAIN_KINDS
from gpuplane.node.hardware.described.failures import matches_call
from gpuplane.node.hardware.described.loadcheck import check_load
from gpuplane.node.hardware.described.migchanges import with_mig_details
from gpuplane.node.hardware.described.migcheck import check_mig
from gpuplane.node.hardware.described.profiles.layouts import layout_files, with_drm_permissions
from gpuplane.node.hardware.nvidia.driver.devicenodes import (
    CAPS_FOLDER,
    CONTROL_NODES,
    DRIVER_NAMES,
    expected_node_stat,
    nodes_of_gpus,
)
from gpuplane.node.hardware.nvidia.driver.driverfiles import unique_by_path
from gpuplane.node.hardware.nvidia.driver.errors import NVML_ERRORS
from gpuplane.node.model.config import Settings
from gpuplane.node.model.health import CatalogueEntry
from gpuplane.node.model.machine import (
    NVIDIA_GPU,
    Device,
    DeviceList,
    DriverFile,
    DriverFiles,
    DriverLibrary,
    Fault,
    Gpu,
    MachineFile,
)
from gpuplane.node.model.telemetry import DescribedLoad

strict.build_type(MachineFile)

DISTANCE_NAMES = ("PIX", "PXB", "PHB", "NODE", "SYS")
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PCIE_ROOT_PATTERN = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
PCI_CLASS_PATTERN = re.compile(r"0x[0-9a-f]{6}")
PCI_DEVICE_ID_PATTERN = re.compile(r"0x[0-9A-Fa-f]{8}")
MIG_CONFIG_NODE = f"{CAPS_FOLDER}/nvidia-cap1"
"""A node that there is before any MIG device is. The nodes of MIG devices that are made have its major number."""
CLUSTER_UUID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

MAX_MAJOR_NUMBER, MAX_MINOR_NUMBER = (1 << 12) - 1, (1 << 20) - 1
"""The largest numbers that Linux has for a device."""

MAX_GPUS = 256
"""GPUs of a machine: their device nodes have minor numbers below 256."""
MAX_NAME_LENGTH = 96
"""Characters of a UUID and of a model: NVML's buffers have no more (NVML_DEVICE_UUID_V2_BUFFER_SIZE)."""

Problems = Iterator[tuple[strict.DocumentPath, str]]


def read_machine(data: bytes, file: str) -> MachineFile:
    """The machine that the file describes. Raises strict.Invalid, with file and line of everything that is wrong.

    Links and distances to GPUs that are not there are left out, as a driver does, and so is the load of what is not
    there: who takes a GPU's entry out of a file need not look for its address in all the others.
    """
    machine = _spelt_out(strict.load_yaml_as(data, MachineFile, file, check_machine))
    there = {"nvswitch", *(gpu.pci for gpu in machine.gpus or ())}
    gpus = machine.gpus and tuple(_among(there, gpu) for gpu in machine.gpus)
    gpus = gpus and tuple(map(with_mig_details, gpus))
    return machine.but(gpus=gpus, load=tuple(each for each in machine.load if _has_place(each, machine)))


def _spelt_out(machine: MachineFile) -> MachineFile:
    """The machine with the files of its layout and the numbers of its nodes, beside those that are stated."""
    driver, numbers = machine.driver, dict(machine.device_node_stats)
    if machine.driver_file_layout is not None and driver is not None:
        usual, own = layout_files(machine.driver_file_layout, driver.version), driver.files or DriverFiles()
        driver = driver.but(
            files=DriverFiles(
                libraries=tuple(sorted({*usual.libraries, *own.libraries}, key=lambda library: library.path)),
                files=unique_by_path((*usual.files, *own.files)),
                sockets=unique_by_path((*usual.sockets, *own.sockets)),
                gds_paths=own.gds_paths,
            )
        )
    nodes = (*CONTROL_NODES, *machine.shared_nodes, *nodes_of_gpus(machine.gpus or ()))
    if machine.gpus and not any(f"{CAPS_FOLDER}/" in node for node in nodes):
        nodes = (*nodes, *(MIG_CONFIG_NODE for gpu in machine.gpus if gpu.mig is not None))
    for node in dict.fromkeys(nodes):
        told = expected_node_stat(node, machine.major_numbers)
        if told is not None:
            numbers.setdefault(
                node,
                with_drm_permissions(machine.driver_file_layout, node, told) if machine.driver_file_layout else told,
            )
    return machine.but(driver=driver, device_node_stats=numbers, driver_file_layout=None, major_numbers={})


def _among(there: set[str], gpu: Gpu) -> Gpu:
    links = tuple(link for link in gpu.links if link.peer in there)
    return gpu.but(links=links, distances={pci: far for pci, far in gpu.distances.items() if pci in there})


def _has_place(load: DescribedLoad, machine: MachineFile) -> bool:
    """Whether its GPU is there, and its NVLink; or its GPU can have MIG devices, of which it is one now or later."""
    gpu = next((gpu for gpu in machine.gpus or () if gpu.index == load.gpu), None)
    if gpu is None or load.mig:
        return gpu is not None and gpu.mig is not None
    return load.nvlink is None or load.nvlink < sum(link.nvlink_count for link in gpu.links)


def check_machine(machine: MachineFile) -> Problems:
    """What contradicts itself in a machine: (path, what is wrong)."""
    if (count := len(machine.gpus or ())) > MAX_GPUS:
        yield ("gpus",), f"{count} GPUs: a machine has at most {MAX_GPUS}"
    yield from _repeated(_identities(machine))
    yield from _driver(machine)
    yield from _numbers(machine)
    for i, gpu in enumerate(machine.gpus or ()):
        for path, text in (*_numa(gpu), *_gpu(gpu), *check_mig(gpu)):
            yield ("gpus", i, *path), text
    for i, device in enumerate(machine.devices):
        for path, text in (*_numa(device), *_plain_device(device)):
            yield ("devices", i, *path), text
        if device.kind in machine.uncounted:
            yield ("uncounted", device.kind), f"a device of the kind {device.kind} is in devices, so it was counted"
    for pci in machine.unlisted:
        if not PCI_ADDRESS.fullmatch(pci):
            yield ("unlisted", pci), f"{pci!r} is not a PCI address: write it as sysfs does, 0000:3b:00.0"
    indices = {gpu.index for gpu in machine.gpus or ()}
    incidents = ((("incidents", i), each.gpu) for i, each in enumerate(machine.incidents))
    processes = ((("processes", i), each.gpu) for i, each in enumerate(machine.processes))
    for path, index in (*incidents, *processes):
        if machine.gpus is not None and index not in indices:
            yield (*path, "gpu"), f"this machine has no GPU with index {index}"
    for i, load in enumerate(machine.load):
        yield from ((("load", i, *path), text) for path, text in check_load(load))
    for i, process in enumerate(machine.processes):
        if process.sm_percent is not None and not 0 <= process.sm_percent <= 100:
            yield ("processes", i, "sm_percent"), f"{process.sm_percent:g} is not a percentage: write 0 to 100"
    for path, fault in _faults(machine):
        yield from (((*path, "code"), problem) for problem in _unknown_fault(fault.code))
    for i, incident in enumerate(machine.incidents):
        yield from ((("incidents", i, "code"), problem) for problem in unknown_event_problem(incident.code))
    for i, failure in enumerate(machine.failures):
        if machine.gpus is not None and failure.gpu not in (None, *indices):
            yield ("failures", i, "gpu"), f"this machine has no GPU with index {failure.gpu}"
        yield from ((("failures", i, "nvml_function"), problem) for problem in _unknown_call(failure.nvml_function))
        if failure.error not in NVML_ERRORS:
            close = strict.closest_match(failure.error, NVML_ERRORS)
            perhaps = f"did you mean {close!r}?" if close else f"known: {', '.join(NVML_ERRORS)}"
            yield ("failures", i, "error"), f"NVML has no error {failure.error!r}; {perhaps}"


def _faults(machine: MachineFile) -> Iterator[tuple[strict.DocumentPath, Fault]]:
    """Every fault that the machine shows, and where it is written."""
    shown: list[tuple[strict.DocumentPath, Sequence[Fault]]] = [((), machine.faults)]
    for i, gpu in enumerate(machine.gpus or ()):
        shown.append((("gpus", i), gpu.faults))
        devices = gpu.mig_devices
        shown += ((("gpus", i, "mig", "devices", j), each.faults) for j, each in enumerate(devices))
    yield from (((*path, "faults", k), fault) for path, faults in shown for k, fault in enumerate(faults))


def _plain_device(device: Device) -> Problems:
    """What is wrong with a device of a known kind. One of an unknown kind is offered by no name, with the reason."""
    kind = PLAIN_KINDS.get(device.kind)
    if device.kind == NVIDIA_GPU:
        yield ("kind",), f"{NVIDIA_GPU} devices are written under gpus"
    if kind is not None:
        for each in kind.unit_resources(None, DeviceList(devices=(device,)), Settings()):
            if each.not_offered_reason:
                yield (), f"{device.kind} device {device.id}: {each.not_offered_reason}"
        for k, fault in enumerate(device.faults):
            yield from ((("faults", k, "code"), problem) for problem in _unknown_fault(fault.code, kind.faults.entries))


def _unknown_fault(code: str, catalogue: Mapping[str, CatalogueEntry] = CATALOGUE) -> Iterator[str]:
    """What is wrong with the code of a fault that a look shows."""
    looks = [name for name, entry in catalogue.items() if entry.detected_by == "look"]
    if code not in looks:
        close = strict.closest_match(code, looks)
        perhaps = f"did you mean {close!r}?" if close else f"write one of {', '.join(looks)}"
        if (catalogue.get(code) or xid_number(code)) is not None:
            perhaps = "it is an event; write it under incidents"
        yield f"{code!r} is not a fault that an observation shows; {perhaps}"


def unknown_event_problem(code: str) -> Iterator[str]:
    """What is wrong with an incident's code."""
    is_plain_xid = code == f"xid-{xid_number(code)}"
    if not is_plain_xid and (code not in CATALOGUE or CATALOGUE[code].detected_by != "event"):
        events = [
            name for name, entry in CATALOGUE.items() if entry.detected_by == "event" and xid_number(name) is None
        ]
        close = strict.closest_match(code, events)
        perhaps = f"did you mean {close!r}?" if close else f"write an XID such as xid-79, or {', '.join(events)}"
        yield f"{code!r} is not a fault that occurs as an event; {perhaps}"


def _unknown_call(pattern: str) -> Iterator[str]:
    """What is wrong with a pattern that means no call."""
    if not any(matches_call(pattern, call) for call in _calls()):
        close = strict.closest_match(pattern, _calls())
        perhaps = f"did you mean {close!r}?" if close else "write one such as 'nvmlDeviceGetName'; `*` matches any text"
        yield f"NVML has no function {pattern!r}; {perhaps}"


@lru_cache(1)
def _calls() -> tuple[str, ...]:
    """All that may fail. NVML's functions are those that nvidia-ml-py has."""
    import pynvml  # type: ignore[import-untyped]

    return "nvidia-smi", *(name for name in dir(pynvml) if name.startswith("nvml") and callable(getattr(pynvml, name)))


def _identities(machine: MachineFile) -> Iterator[tuple[strict.DocumentPath, str]]:
    """Everything that may stand once in a machine: (path, what it is)."""
    for i, gpu in enumerate(machine.gpus or ()):
        at: strict.DocumentPath = ("gpus", i)
        yield (*at, "index"), f"GPU index {gpu.index}"
        if gpu.minor is not None:
            yield (*at, "minor"), f"minor number {gpu.minor}"
        yield from (((*at, "uuid"), f"UUID {gpu.uuid}"), ((*at, "pci"), f"PCI address {gpu.pci}"))
        yield from (((*at, "dri", j), f"DRM node {node}") for j, node in enumerate(gpu.dri))
        for j, mig in enumerate(gpu.mig_devices):
            inside = (*at, "mig", "devices", j)
            instance = f"GPU instance {mig.gpu_instance} with compute instance {mig.compute_instance}"
            yield (*inside, "uuid"), f"UUID {mig.uuid}"
            yield (*inside, "mig_index"), f"MIG slot {mig.mig_index} of GPU {gpu.index}"
            yield (*inside, "gpu_instance"), f"{instance} of GPU {gpu.index}"
    for i, pci in enumerate(machine.switches):
        yield ("switches", i), f"PCI address {pci}"
    for i, device in enumerate(machine.devices):
        yield ("devices", i, "id"), f"{device.kind} device {device.id}"


def _repeated(identities: Iterable[tuple[strict.DocumentPath, str]]) -> Problems:
    seen = set[str]()
    for path, thing in identities:
        if thing in seen and not thing.endswith(" "):  # a UUID or an address that is not told may be missing often
            yield path, f"this machine has {thing} twice"
        seen.add(thing)


def _numa(device: Gpu | Device) -> Problems:
    if device.numa is not None and device.numa < 0:
        yield ("numa",), f"{device.numa} is not a NUMA node; remove numa if the kernel reports none"


def _gpu(gpu: Gpu) -> Problems:
    names: list[tuple[strict.DocumentPath, str]] = [(("uuid",), gpu.uuid), (("model",), gpu.model)]
    names += ((("mig", "devices", i, "uuid"), mig.uuid) for i, mig in enumerate(gpu.mig_devices))
    for path, name in names:
        if len(name) > MAX_NAME_LENGTH:
            yield path, f"{name[:24]!r}… has {len(name)} characters; NVML tells at most {MAX_NAME_LENGTH}"
    if gpu.uuid and not gpu.uuid.startswith("GPU-"):
        yield ("uuid",), f"{gpu.uuid!r} is not a UUID of a GPU: they begin with GPU-"
    for i, mig in enumerate(gpu.mig_devices):
        if not mig.uuid.startswith("MIG-"):
            yield ("mig", "devices", i, "uuid"), f"{mig.uuid!r} is not a UUID of a MIG device: they begin with MIG-"
    if gpu.pci and not PCI_ADDRESS.fullmatch(gpu.pci):
        yield ("pci",), f"{gpu.pci!r} is not a PCI address as in sysfs, such as '0000:1b:00.0'"
    if gpu.pci_class and not PCI_CLASS_PATTERN.fullmatch(gpu.pci_class):
        yield ("pci_class",), f"{gpu.pci_class!r} is not a PCI class as in sysfs, such as '0x030200'"
    if gpu.pcie_root and not PCIE_ROOT_PATTERN.fullmatch(gpu.pcie_root):
        yield ("pcie_root",), f"{gpu.pcie_root!r} is not a PCIe root complex as in sysfs, such as 'pci0000:16'"
    for key, number in (("pci_id", gpu.pci_id), ("pci_subsystem", gpu.pci_subsystem)):
        if number and not PCI_DEVICE_ID_PATTERN.fullmatch(number):
            yield (key,), f"{number!r} is not a PCI device and vendor in one number, such as '0x233010DE'"
    if gpu.fabric is not None and not CLUSTER_UUID_PATTERN.fullmatch(gpu.fabric.cluster):
        yield (
            ("fabric", "cluster"),
            f"{gpu.fabric.cluster!r} is not a UUID in lower case, such as '6b200a72-5c1e-4f0d-9d3a-2f6e1b7c8d90'",
        )
    for i, link in enumerate(gpu.links):
        if link.peer != "nvswitch" and not _of_another(gpu, link.peer):
            yield ("links", i, "peer"), f"{link.peer!r} is neither 'nvswitch' nor another GPU's PCI address"
    for pci, distance in gpu.distances.items():
        if not _of_another(gpu, pci):
            yield ("distances", pci), f"{pci!r} is not another GPU's PCI address"
        if distance not in DISTANCE_NAMES:
            yield ("distances", pci), f"{distance!r} is not a distance; known: {', '.join(DISTANCE_NAMES)}"
    if gpu.mig is not None and gpu.mig.devices and not gpu.mig.enabled:
        yield ("mig",), "it has MIG devices, but is not in MIG mode: write enabled: true"


def _driver(machine: MachineFile) -> Problems:
    """What is wrong with what is said of the driver's files."""
    driver = machine.driver
    if machine.driver_file_layout is not None and (driver is None or not driver.version):
        yield (
            ("driver_file_layout",),
            "layout needs the driver version, because the file names contain it: write driver: {version: …}",
        )
    if driver is None:
        return
    if driver.files_error and (driver.files is not None or machine.driver_file_layout is not None):
        yield (
            ("driver", "files_error"),
            (
                "the key missing says that the driver has no files, but files or layout adds some: remove one of "
                "these keys"
            ),
        )
    found = driver.files or DriverFiles()
    kinds: dict[str, tuple[DriverLibrary | DriverFile, ...]] = {
        "libraries": found.libraries,
        "files": found.files,
        "sockets": found.sockets,
    }
    for kind, entries in kinds.items():
        for i, entry in enumerate(entries):
            at: strict.DocumentPath = ("driver", "files", kind, i)
            if not entry.path.startswith("/"):
                yield (*at, "path"), f"{entry.path!r} is not a path in the driver root: write one that begins with /"
            if isinstance(entry, DriverFile) and entry.container_path and not entry.container_path.startswith("/"):
                yield (
                    (*at, "container_path"),
                    f"{entry.container_path!r} is not a path in a container: write one that begins with /",
                )
            for j, link in enumerate(entry.symlinks if isinstance(entry, DriverLibrary) else ()):
                if "/" in link:
                    yield (
                        (*at, "symlinks", j),
                        f"{link!r} is not the name of a link beside the library: a name contains no /",
                    )


def _numbers(machine: MachineFile) -> Problems:
    """What is wrong with the numbers of nodes."""
    for name, major in machine.major_numbers.items():
        if name not in DRIVER_NAMES:
            close = strict.closest_match(name, DRIVER_NAMES)
            perhaps = f"did you mean {close!r}?" if close else f"known: {', '.join(DRIVER_NAMES)}"
            yield ("major_numbers", name), f"{name!r} is not a driver in /proc/devices that has device nodes; {perhaps}"
        if not 0 <= major <= MAX_MAJOR_NUMBER:
            yield ("major_numbers", name), f"{major} is not a major number: write 0 to {MAX_MAJOR_NUMBER}"
    seen: dict[tuple[int, int], str] = {}
    for node, numbers in machine.device_node_stats.items():
        if not node.startswith("/dev/"):
            yield ("device_node_stats", node), f"{node!r} is not a device node: write a path that begins with /dev/"
        if not (0 <= numbers.major <= MAX_MAJOR_NUMBER and 0 <= numbers.minor <= MAX_MINOR_NUMBER):
            yield ("device_node_stats", node), f"{numbers.major}:{numbers.minor} are not valid device numbers"
        if not 0 <= numbers.mode <= 0o7777:
            yield ("device_node_stats", node), f"{numbers.mode} is not a mode: write it like 0660"
        other = seen.setdefault((numbers.major, numbers.minor), node)
        if other != node:
            yield ("device_node_stats", node), f"{numbers.major}:{numbers.minor} are the numbers of {other}"


def _of_another(gpu: Gpu, pci: str) -> bool:
    return PCI_ADDRESS.fullmatch(pci) is not None and pci != gpu.pci
