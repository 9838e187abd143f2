"""A machine that only its driver knows: the stand-in for libnvidia-ml.so.1, and the files that a kernel driver shows.

`StandIn` makes a machine file's machine look real from below: a library that answers NVML's calls, and a tree with
/sys, /proc and /dev. It can be described anew while a driver's process uses it.
"""

import hashlib
import os
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import copy2, rmtree

from gpuplane.node.hardware.nvidia.driver.devicenodes import NUMBER_RULES
from gpuplane.node.hardware.nvidia.driver.driverpaths import CONFIGURATION_FILES, MPS_FOLDER
from gpuplane.node.hardware.nvidia.driver.driverroot import NVML_SONAME
from gpuplane.node.hardware.nvidia.driver.errors import NVML_ERRORS
from gpuplane.node.model.health import NONFATAL
from gpuplane.node.model.machine import (
    DeviceNodeStat,
    DriverFiles,
    Gpu,
    GpuProcess,
    InjectedFailure,
    Machine,
    MachineFile,
    MigAttributes,
    MigDevice,
    Vgpu,
)
from gpuplane.node.model.partitions import GpuInstanceProfile
from tests.node.hardware.nvidia.driver.standinload import told_as
from tests.trees import grow

SOURCE = Path(__file__).parent / "nvml" / "standin.c"
LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
PROFILES = {  # (slices, what its name says beyond its sizes) → NVML_GPU_INSTANCE_PROFILE_*
    **{(slices, ""): profile for profile, slices in enumerate((1, 2, 3, 4, 7))},
    (1, "+me"): 7,
    (2, "+me"): 8,
    (1, "+gfx"): 10,
    (2, "+gfx"): 11,
    (4, "+gfx"): 12,
    (1, "-me"): 13,
    (2, "-me"): 14,
    (1, "+me.all"): 15,
    (2, "+me.all"): 16,
}
DOUBLED = 9  # NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, of twice the memory
XID = 0x8  # nvmlEventTypeXidCriticalError
EVENTS: Mapping[object, int] = {  # nvmlEventType*
    "ecc-single-bit": 0x1,
    "ecc-double-bit": 0x2,
    "mig-changed": 0x100,
    "ecc-storm": 0x200,
    "dram-retired": 0x400,
    "dram-retirement-failed": 0x800,
    "poison-nonfatal": 0x1000,
    "poison-fatal": 0x2000,
    "gpu-unavailable": 0x4000,
    "recovery-changed": 0x8000,
}
BINDINGS: Mapping[object, int] = {"gpu-unbound": 1, "gpu-bound": 2}  # nvmlSystemEventTypeGpuDriver*
ANY = 0xFFFFFFFF  # no instance
UNAVAILABLE = 0xFFFFFFFFFFFFFFFF  # NVML_VALUE_NOT_AVAILABLE
UNCORRECTED = "field.4.0"
WELL: Mapping[str, str | int] = {  # what a GPU that does well tells of itself
    **{f"field.{number}.0": 0 for number in (29, 30, 31, 52, 59, 144, 145, 230, 307)},
    "clocks": 1,  # idle
    "width": 16,
    "width.max": 16,
    "events": XID | sum(EVENTS.values()) | 0x4,  # and changes of its power state
}
SHOWN: Mapping[str, Mapping[str, str | int]] = {  # what it tells where a machine file says that it has this fault
    "recovery-reset": {"field.230.0": 1},
    "recovery-reboot": {"field.230.0": 2},
    "recovery-drain": {"field.230.0": 4},
    "recovery-fabric": {"field.230.0": 5},
    "remap-pending": {"field.144.0": 1},
    "remap-failed": {"field.145.0": 1},
    "pages-pending": {"field.31.0": 1},
    "pages-exhausted": {"field.29.0": 60, "field.30.0": 4},
    "nvlink-errors": {"field.59.0": "+"},
    "fabric-pending": {"fabric": "2 0"},
    "fabric-failed": {"fabric": "3 999"},
    "thermal-slowdown": {"clocks": 0x40},
    "power-slowdown": {"clocks": 0x80},
    "pcie-degraded": {"width": 8},
    "vgpu-unlicensed": {"license": 0},
}
FAILING = {  # the calls that fail where it has this one
    "gpu-lost": InjectedFailure(effect="error", error="GPU_IS_LOST"),
    "reset-required": InjectedFailure(effect="error", error="RESET_REQUIRED"),
    "gpu-hang": InjectedFailure(effect="hang"),
    "gpu-crash": InjectedFailure(effect="crash"),
    "query-failed": InjectedFailure(effect="error", nvml_function="nvmlDeviceGetMemoryInfo"),
}


def build(folder: Path) -> Path:
    """The compiled library, in a folder that keeps it for the next time. Raises CalledProcessError."""
    library = folder / f"standin-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        fresh = library.with_suffix(f".{os.getpid()}")
        flags = ["-O1", "-shared", "-fPIC", f"-Wl,-soname,{NVML_SONAME}"]
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", *flags, "-o", fresh, SOURCE, "-ldl"], check=True)
        fresh.replace(library)
    return library


class StandIn:
    """A driver in a folder: `library`, `root`, which holds /sys, /proc and /dev, and `installed`, its driver root."""

    def __init__(self, folder: Path, compiled: Path) -> None:
        self.folder, self.root = folder / "driver", folder / "node"
        self.library = self.folder / NVML_SONAME
        self.folder.mkdir(parents=True)
        copy2(compiled, self.library)
        self.installed = folder / "installed"
        self.machine, self._files = Machine(), DriverFiles()
        self._nodes: Mapping[str, DeviceNodeStat | None] = {}
        for pipe in ("events", "bindings"):
            os.mkfifo(self.folder / pipe)

    def describe(self, machine: Machine, raw: Mapping[str, str | int] | None = None) -> None:
        """Be this machine from now on, with the faults of its devices, and the failures and processes of a file.

        `raw`: what the library says otherwise, by its own keys; "" for what it does not support.
        """
        self.machine = machine
        self._write_tree(machine)
        self._write_processes(machine.processes if isinstance(machine, MachineFile) else ())
        told = {**dict(_flat(machine, self.root)), **(raw or {})}
        lines = sorted((key, value) for key, value in told.items() if value != "")
        fresh = self.folder / "machine.new"
        text = "".join(f"{key}={value}\n" for key, value in lines)
        fresh.write_bytes(text.encode(errors="surrogateescape"))
        fresh.replace(self.folder / "machine")

    def unload(self) -> None:
        """Take the kernel driver away."""
        (self.root / "proc/driver/nvidia/version").unlink(missing_ok=True)

    def load(self, version: str) -> None:
        """Have the kernel driver be of this version, whatever the library is."""
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (root@builder)\n"
        self._write("proc/driver/nvidia/version", text)

    def happen(self, gpu: int, what: int | str, instance: tuple[int, int] = (ANY, ANY)) -> None:
        """Let an XID, or an event by its code, befall a GPU, or one MIG device of it: (GPU and compute instance)."""
        if what in BINDINGS:
            pci = next(each.pci for each in self.machine.gpus or () if each.index == gpu)
            domain, bus, device = (int(part, 16) for part in pci.partition(".")[0].split(":"))
            self._push("bindings", struct.pack("<QQ", BINDINGS[what], domain << 16 | bus << 8 | device))
        else:
            kind, data = (
                (EVENTS[what], 0)
                if what in EVENTS
                else (XID, int(str(what).removeprefix("xid-").removesuffix(NONFATAL)))
            )
            self._push("events", struct.pack("<5Q", gpu, kind, data, *instance))

    def _push(self, pipe: str, record: bytes) -> None:
        with (self.folder / pipe).open("r+b", buffering=0) as file:
            file.write(record)

    def _write(self, path: str, text: str = "") -> None:
        self._write_bytes(path, text.encode(errors="surrogateescape"))

    def _write_bytes(self, path: str, data: bytes) -> None:
        file = self.root / path.removeprefix("/")
        if not file.exists() or file.read_bytes() != data:
            file.parent.mkdir(parents=True, exist_ok=True)
            fresh = file.with_name(f".{file.name}")
            fresh.write_bytes(data)
            fresh.replace(file)

    def _keep(self, folder: str, names: set[str]) -> None:
        for each in (self.root / folder).glob("*"):
            if each.name not in names:
                each.unlink() if each.is_symlink() else rmtree(each)

    def _link_below_root(self, gpu: Gpu) -> None:
        """The kernel's link from the bus to the device, where its PCIe root complex is described."""
        link = self.root / f"sys/bus/pci/devices/{gpu.pci}"
        place = f"../../../devices/{gpu.pcie_root}/{gpu.pci}"
        if link.is_symlink() and (not gpu.pcie_root or str(link.readlink()) != place):
            link.unlink()
        if gpu.pcie_root and not link.is_symlink():
            rmtree(link, ignore_errors=True)
            link.parent.mkdir(parents=True, exist_ok=True)
            (link.parent / place).resolve().mkdir(parents=True, exist_ok=True)
            link.symlink_to(place)

    def _write_tree(self, machine: Machine) -> None:
        self.load(machine.driver.version if machine.driver else "")
        gpus = machine.gpus or ()
        self._write_nodes(machine)
        self._write("sys/class/dmi/id/product_name", f"{machine.product}\n")
        self._write("proc/devices", "".join(_drivers(machine.device_node_stats)))
        files = (machine.driver.files if machine.driver else None) or DriverFiles()
        if files != self._files:
            self._files = files
            rmtree(self.installed, ignore_errors=True)
            grow(self.installed, "\n".join(listing(files)))
        self._keep("sys/bus/pci/devices", {*machine.switches, *(gpu.pci for gpu in gpus)})
        self._keep("proc/driver/nvidia/gpus", {gpu.pci for gpu in gpus})
        for pci in machine.switches:
            self._write(f"sys/bus/pci/devices/{pci}/vendor", "0x10de\n")
            self._write(f"sys/bus/pci/devices/{pci}/class", "0x068000\n")
            self._write_bytes(f"sys/bus/pci/devices/{pci}/config", configuration(machine.vgpu and Vgpu(present=False)))
        for gpu in gpus:
            self._link_below_root(gpu)
            (self.root / f"sys/bus/pci/devices/{gpu.pci}/vendor").unlink(
                missing_ok=True
            )  # before, it may be a switch's
            self._write(f"sys/bus/pci/devices/{gpu.pci}/class", f"{gpu.pci_class}\n")
            self._write(f"sys/bus/pci/devices/{gpu.pci}/vendor", "0x10de\n")
            self._write_bytes(f"sys/bus/pci/devices/{gpu.pci}/config", configuration(machine.vgpu))
            self._write(f"sys/bus/pci/devices/{gpu.pci}/numa_node", f"{-1 if gpu.numa is None else gpu.numa}\n")
            self._keep(f"sys/bus/pci/devices/{gpu.pci}/drm", {Path(node).name for node in gpu.dri})
            for node in gpu.dri:
                (self.root / f"sys/bus/pci/devices/{gpu.pci}/drm" / Path(node).name).mkdir(parents=True, exist_ok=True)
            self._write(f"proc/driver/nvidia/gpus/{gpu.pci}/information", _information(gpu))
        self._write("proc/driver/nvidia-caps/mig-minors", "".join(_minors(gpus)))

    def _write_processes(self, processes: Sequence[GpuProcess]) -> None:
        for folder in self.root.glob("proc/[0-9]*"):
            if int(folder.name) not in {process.pid for process in processes}:
                rmtree(folder)
        for process in processes:
            if process.started:
                self._write(f"proc/{process.pid}/stat", f"{process.pid} (a) b) S {'0 ' * 18}{process.started} 0\n")
                lines = [f"{number}:{number}:{path}\n" for number, path in enumerate(process.cgroups)]
                self._write(f"proc/{process.pid}/cgroup", "".join(lines))

    def _write_nodes(self, machine: Machine) -> None:
        """The nodes that are there, and links to them. A process may look meanwhile: what is right is left alone."""
        gpus = machine.gpus or ()
        own = (
            node for gpu in gpus for node in (*(() if "node-missing" in _codes(gpu) else gpu.device_nodes), *gpu.dri)
        )
        inside = (node for gpu in gpus for mig in gpu.mig_devices for node in mig.device_nodes)
        linked = (
            f"/dev/char/{each.major}:{each.minor}" for each in machine.device_node_stats.values() if each.has_char_link
        )
        wanted = {
            **{node: machine.device_node_stats.get(node) for node in (*machine.shared_nodes, *own, *inside)},
            **dict.fromkeys(linked),
        }
        for path in self.root.glob("dev/**/*"):
            if not path.is_dir() and f"/{path.relative_to(self.root)}" not in wanted:
                path.unlink()
        for node, numbers in wanted.items():
            if self._nodes.get(node, "") != numbers or not (self.root / node[1:]).exists():
                said = f"{numbers.major} {numbers.minor} {numbers.mode:o} {numbers.gid}" if numbers else ""
                grow(self.root, f"{'c' if numbers else 'f'} {node} {said}")
        self._nodes = wanted


def _drivers(numbers: Mapping[str, DeviceNodeStat]) -> Iterator[str]:
    """/proc/devices of drivers whose nodes have these numbers."""
    yield "Character devices:\n"
    names = (
        (rule.drivers[0], each.major)
        for node, each in numbers.items()
        for rule in NUMBER_RULES
        if rule.path.fullmatch(node)
    )
    yield from (f"{major:3d} {name}\n" for name, major in dict(names).items())
    yield "\nBlock devices:\n"


def listing(files: DriverFiles) -> Iterator[str]:
    """The tree in which these files are found."""
    for library in files.libraries:
        folder, _, name = library.path.rpartition("/")
        yield f"e {library.path} {library.soname}"
        yield from (f"l {folder}/{link} -> {name}" for link in library.symlinks)
    for file in (*files.files, *files.sockets):
        kind = "f" if file in files.files else "d" if file.path == MPS_FOLDER else "s"
        yield f"{kind} {file.path}"
        if file.container_path and not any(
            file.container_path == f"{inside}/{name}" for name, inside in CONFIGURATION_FILES.items()
        ):
            yield f"l {file.container_path} -> {file.path}"
    yield from (f"{'d' if path == '/run/udev' else 'f'} {path}" for path in files.gds_paths)


def configuration(vgpu: Vgpu | None) -> bytes:
    """The PCI configuration of a function; without `vgpu` what somebody without rights may read of it.

    As of a Tesla T4's vGPU: MSI at 0x68, and NVIDIA's own capability at 0xd0, of 27 bytes: "VF", one record of 22.
    """
    header = bytearray(64)
    header[0:2], header[0x06], header[0x34] = b"\xde\x10", 0x10, 0xD0
    if vgpu is None:
        return bytes(header)
    texts = (vgpu.host_driver_version, vgpu.host_driver_branch)
    signature = b"VF" if vgpu.present else b"\x01\x00"
    own = (
        bytes((0x09, 0x68, 27))
        + signature
        + bytes((0, 22))
        + b"".join(each.encode().ljust(10, b"\0") for each in texts)
    )
    rest = bytearray(192)
    rest[0x68 - 64 : 0x68 - 62] = b"\x05\x00"
    rest[0xD0 - 64 : 0xD0 - 64 + len(own)] = own
    return bytes(header + rest)


def _codes(device: Gpu | MigDevice) -> set[str]:
    return {fault.code for fault in device.faults}


def _information(gpu: Gpu) -> str:
    return (
        f"Model: \t\t {gpu.model}\nIRQ:   \t\t 120\nGPU UUID: \t {gpu.uuid}\nBus Type: \t PCIe\n"
        f"Bus Location: \t {gpu.pci}\nDevice Minor: \t {gpu.minor}\n"
    )


def _minors(gpus: tuple[Gpu, ...]) -> Iterator[str]:
    """The kernel lists every instance that a GPU could have; a described device may have other numbers."""
    found = {}
    for gpu in gpus:
        for instance in range(15 if gpu.mig is not None and gpu.mig.profiles else 0):
            first = 3 + 135 * (gpu.minor or 0) + 9 * instance
            found[f"gpu{gpu.minor}/gi{instance}/access"] = str(first)
            found |= {f"gpu{gpu.minor}/gi{instance}/ci{part}/access": str(first + 1 + part) for part in range(8)}
        for mig in gpu.mig_devices:
            instance_path = f"gpu{gpu.minor}/gi{mig.gpu_instance}"
            paths = f"{instance_path}/access", f"{instance_path}/ci{mig.compute_instance}/access"
            if "node-missing" in _codes(mig):
                for path in paths:
                    found.pop(path, None)
                continue
            for path, node in zip(paths, mig.device_nodes, strict=False):
                found[path] = node.removeprefix("/dev/nvidia-caps/nvidia-cap")
    yield from (f"{path} {minor}\n" for path, minor in found.items())


def _flat(machine: Machine, root: Path) -> Iterator[tuple[str, str | int]]:
    """A machine as the keys and values that the library reads."""
    driver, gpus = machine.driver, machine.gpus or ()
    yield "root", str(root)
    yield "count", sum("gpu-missing" not in _codes(gpu) for gpu in gpus)  # those are the last ones
    if driver is not None:
        major, _, minor = (driver.cuda or "0.0").partition(".")
        yield "driver", driver.version
        yield "cuda", int(major) * 1000 + int(minor) * 10
    indices = {gpu.pci: gpu.index for gpu in gpus}
    for gpu in gpus:
        yield from ((f"gpu.{gpu.index}.{key}", value) for key, value in _gpu(gpu, indices))
    file = machine if isinstance(machine, MachineFile) else MachineFile()
    failing = [FAILING[code].but(gpu=gpu.index) for gpu in gpus for code in sorted(_codes(gpu)) if code in FAILING]
    for number, failure in enumerate((*file.failures, *failing)):
        yield f"failure.{number}", _failure(failure)
    yield from _processes(file)
    for load in file.load:
        device = next((each for gpu in gpus for each in gpu.mig_devices if each.uuid == load.mig), None)
        yield from ((f"gpu.{load.gpu}.{key}", value) for key, value in told_as(load, device))


def _processes(file: MachineFile) -> Iterator[tuple[str, str | int]]:
    numbers, uses = Counter[int](), Counter[int]()
    for process in file.processes:
        place = [ANY if each is None else each for each in (process.gpu_instance, process.compute_instance)]
        memory = UNAVAILABLE if process.memory_mib is None else int(process.memory_mib * (1 << 20))
        value = f"{process.pid} {place[0]} {place[1]} {memory}"
        yield f"gpu.{process.gpu}.process.{numbers[process.gpu]}", value
        numbers[process.gpu] += 1
        if process.sm_percent is not None:
            yield f"gpu.{process.gpu}.uses", 1
            if process.sm_percent:
                yield f"gpu.{process.gpu}.use.{uses[process.gpu]}", f"{process.pid} {int(process.sm_percent)}"
                uses[process.gpu] += 1


def _gpu(gpu: Gpu, indices: dict[str, int]) -> Iterator[tuple[str, str | int]]:
    yield from (("uuid", gpu.uuid), ("name", gpu.model), ("pci", gpu.pci), ("capability", gpu.compute_capability))
    yield "minor", "" if gpu.minor is None else gpu.minor
    yield "memory", gpu.memory_mib << 20 if gpu.memory_mib else ""
    peers = [link.peer for link in gpu.links for _ in range(link.nvlink_count)]
    yield from ((f"link.{number}", peer) for number, peer in enumerate(peers))
    yield from ((f"distance.{indices[pci]}", LEVELS[far]) for pci, far in gpu.distances.items() if pci in indices)
    told = dict(WELL)
    if gpu.fabric is not None:
        told["fabric"] = f"3 0 {gpu.fabric.clique} {gpu.fabric.cluster.replace('-', '')}"
    for code in sorted(_codes(gpu)):
        told |= SHOWN.get(code, {})
    yield from told.items()
    yield UNCORRECTED, "" if gpu.uncorrected_errors is None else gpu.uncorrected_errors
    yield from (("pci.id", int(gpu.pci_id, 16) if gpu.pci_id else 0),)
    yield "pci.subsystem", int(gpu.pci_subsystem, 16) if gpu.pci_subsystem else 0
    if gpu.mig is not None:
        yield "mig", int(gpu.mig.enabled)
        yield "mig.pending", "" if gpu.mig.pending is None else int(gpu.mig.pending)
        yield "field.184.0", "" if gpu.mig.needs_reset is None else int(not gpu.mig.needs_reset)
        yield from _profiles(gpu.mig.profiles)
        for mig in gpu.mig.devices:
            yield from _mig(mig)
        constants = {profile.id: _constant(profile) for profile in gpu.mig.profiles}
        for instance in gpu.mig.instances or ():
            yield f"gi.{instance.id}", f"{constants[instance.profile]} {instance.start}"
            for part in instance.compute_instances:
                yield f"gi.{instance.id}.ci.{part.id}", part.slices


def _profiles(profiles: Sequence[GpuInstanceProfile]) -> Iterator[tuple[str, str | int]]:
    """What a card can be partitioned into, as the library reads it."""
    yield "profiled", "1" if profiles else ""
    for each in profiles:
        starts = sum(1 << start for start in each.starts)
        value = f"{each.id} {each.slices} {each.size} {each.count} {each.memory_mib} {starts}"
        yield f"profile.{_constant(each)}", value


def _constant(profile: GpuInstanceProfile) -> int:
    """NVML_GPU_INSTANCE_PROFILE_* of a profile."""
    parts = re.fullmatch(r"(\d+)g\.\d+gb(.*)", profile.name)
    assert parts, profile.name
    doubled = profile.slices == 1 and profile.size == 2
    return DOUBLED if doubled else PROFILES[profile.slices, parts[2]]


def _mig(mig: MigDevice) -> Iterator[tuple[str, str | int]]:
    parts = re.fullmatch(r"(?:(\d+)c\.)?(\d+)g\.\d+gb(.*)", mig.profile)
    assert parts, mig.profile
    slices = int(parts[2])
    yield f"mig.{mig.mig_index}.uuid", mig.uuid
    yield f"mig.{mig.mig_index}.memory", mig.memory_mib << 20
    yield f"mig.{mig.mig_index}.gi", mig.gpu_instance
    yield f"mig.{mig.mig_index}.ci", mig.compute_instance
    yield f"mig.{mig.mig_index}.attributes", f"{slices} {parts[1] or slices} {mig.memory_mib} {_engines(mig)}"
    yield f"gi.{mig.gpu_instance}", PROFILES[slices, parts[3]]
    yield f"uuid.{mig.gpu_instance}.{mig.compute_instance}", mig.uuid


def _engines(mig: MigDevice) -> str:
    """What it consists of; nothing where that is not told."""
    told = mig.attributes or MigAttributes()
    engines = (told.copy_engines, told.decoders, told.encoders, told.jpeg_engines, told.optical_flow_engines)
    return " ".join(map(str, (told.multiprocessors, *engines)))


def _failure(failure: InjectedFailure) -> str:
    gpu = -1 if failure.gpu is None else failure.gpu
    return f"{failure.effect} {failure.nvml_function} {gpu} {NVML_ERRORS[failure.error][0]}"
