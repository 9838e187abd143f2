"""What is there: one look at the machine.

`Machine` is NVIDIA's driver and its GPUs, which are rich values. A device of any other kind is a plain `Device`, so
that a kind can be added in one module (`core/kinds`). Each kind is observed by itself: what hides one hides no other.
Units: memory in MiB, PCI addresses as sysfs writes them (`0000:1b:00.0`), NUMA nodes as the kernel counts them.
"""

from collections.abc import Mapping
from typing import Literal

from gpuplane.base.text import Text
from gpuplane.base.value import Value
from gpuplane.node.model.partitions import GpuInstance, GpuInstanceProfile
from gpuplane.node.model.telemetry import DescribedLoad

NVIDIA_GPU = "nvidia-gpu"
"""The kind whose devices are the GPUs of a `Machine`."""


UNCOUNTED_CODE = "devices-not-counted"
"""The code of the fault of a `DeviceList` without devices."""


class Fault(Value):
    """Something wrong that a look shows. `code` is a name of the fault catalogue, `message` is for people."""

    code: str
    message: Text


class Link(Value):
    """NVLink from one GPU to one peer: another GPU's PCI address, or `nvswitch`."""

    peer: str
    nvlink_count: int


class MigAttributes(Value):
    """What a MIG device consists of (NVML: nvmlDeviceGetAttributes)."""

    multiprocessors: int = 0
    gpu_slices: int = 0  # of the GPU instance
    compute_slices: int = 0  # of the compute instance
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    optical_flow_engines: int = 0


class MigDevice(Value):
    """One MIG device: a compute instance within a GPU instance."""

    uuid: str
    profile: str  # NVIDIA's name, "1g.10gb"
    gpu_instance: int
    compute_instance: int = 0
    mig_index: int = 0  # NVML's index among the GPU's MIG devices
    memory_mib: int = 0
    device_nodes: tuple[str, ...] = ()  # its two /dev/nvidia-caps nodes; the parent's node comes with the parent
    attributes: MigAttributes | None = None  # None: the driver does not tell
    faults: tuple[Fault, ...] = ()


class Mig(Value):
    """A MIG-capable GPU's partitioning. Absent on a GPU that cannot be partitioned.

    `profiles`: what it can be partitioned into; () where the driver does not tell, as it may be outside MIG mode.
    `instances`: its GPU instances; None where the driver does not tell.
    """

    enabled: bool = False
    devices: tuple[MigDevice, ...] = ()
    pending: bool | None = None  # whether it is in MIG mode after its next reset, where that is another mode than now
    needs_reset: bool | None = None  # whether a change of the mode needs a reset; None: the driver does not tell
    profiles: tuple[GpuInstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] | None = None


class FabricClique(Value):
    """The part of an NVLink fabric that a GPU is in: GPUs of one clique reach each other by NVLink."""

    cluster: str  # UUID
    clique: int


class Gpu(Value):
    """One GPU. What the driver could not tell is empty, and the reason stands in `faults`."""

    index: int  # NVML's: the order of PCI addresses
    uuid: str = ""
    minor: int | None = None  # of /dev/nvidia<minor>
    model: str = ""
    memory_mib: int = 0
    compute_capability: str = ""  # "9.0"
    pci: str = ""
    numa: int | None = None
    mig: Mig | None = None
    links: tuple[Link, ...] = ()
    distances: Mapping[str, str] = {}  # another GPU's PCI address → PIX, PXB, PHB, NODE or SYS, as nvidia-smi says it
    device_nodes: tuple[str, ...] = ()  # /dev/nvidia<minor>
    dri: tuple[str, ...] = ()  # its DRM nodes: /dev/dri/card1, /dev/dri/renderD128
    pci_class: str = ""  # of its PCI function, "0x030200"; "" where that is unknown
    pci_id: str = ""  # its PCI device and vendor, as NVML writes them in one number: "0x233010DE"
    pci_subsystem: str = ""  # those of the board, "0x16C110DE"
    pcie_root: str = ""  # the PCIe root complex above it, as sysfs names it: "pci0000:16"; "" where that is unknown
    fabric: FabricClique | None = None  # None: it is in no fabric, or not registered there
    uncorrected_errors: int | None = None  # uncorrectable memory errors since the driver was loaded or the GPU reset
    faults: tuple[Fault, ...] = ()

    @property
    def mig_devices(self) -> tuple[MigDevice, ...]:
        """Its MIG devices; () where it has none, or cannot have any."""
        return self.mig.devices if self.mig is not None else ()

    @property
    def gpu_instances(self) -> tuple[GpuInstance, ...]:
        """Its GPU instances; () where it has none, or the driver does not tell."""
        return (self.mig.instances if self.mig is not None else None) or ()

    @property
    def mig_enabled(self) -> bool:
        """Whether it is in MIG mode."""
        return self.mig is not None and self.mig.enabled


class Device(Value):
    """A device of any other kind. What its `attributes` mean, its kind says."""

    id: str
    kind: str
    numa: int | None = None
    pci: str = ""
    device_nodes: tuple[str, ...] = ()
    attributes: Mapping[str, str] = {}
    faults: tuple[Fault, ...] = ()


class DeviceList(Value):
    """The devices of one kind, as one look shows them. None where they could not be counted; `faults` then says why."""

    devices: tuple[Device, ...] | None = None
    faults: tuple[Fault, ...] = ()


class DriverLibrary(Value):
    """A library of the driver. `symlinks`: names beside it that lead to it: its SONAME, and what programs link
    against."""

    path: str  # in the driver root: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
    soname: str = ""  # "libcuda.so.1"; "" where it has none
    symlinks: tuple[str, ...] = ()  # "libcuda.so", "libcuda.so.1"


class DriverFile(Value):
    """Any other file, or a socket, of the driver."""

    path: str  # in the driver root
    container_path: str = ""  # in a container, where it has to be elsewhere


class DriverFiles(Value):
    """What of the driver a container needs, as it was found. Paths are inside the driver root, wherever that is."""

    libraries: tuple[DriverLibrary, ...] = ()
    files: tuple[DriverFile, ...] = ()  # programs, firmware, configuration, modules of Xorg
    sockets: tuple[DriverFile, ...] = ()  # of persistenced, fabricmanager and MPS
    gds_paths: tuple[str, ...] = ()  # what GPUDirect Storage needs beside its nodes: /run/udev, /etc/cufile.json


class Driver(Value):
    """The GPU driver: its version ("580.95.05"), the newest CUDA that it speaks ("13.0"), and its files.

    `files` is None where they were not searched or not found; `files_error` then says why.
    """

    version: str = ""
    cuda: str = ""
    files: DriverFiles | None = None
    files_error: Text = ""


class Vgpu(Value):
    """Whether a GPU is a virtual one, as the vendor's capability in its PCI configuration says.

    The host's driver stands behind the first 64 bytes, which only privileged readers get.
    """

    present: bool
    host_driver_version: str = ""
    host_driver_branch: str = ""


class DeviceNodeStat(Value):
    """What a device node is: the kernel's numbers, and who may use it. `has_char_link`:
    /dev/char/<major>:<minor> exists."""

    major: int
    minor: int
    mode: int = 0o666  # permission bits
    gid: int = 0
    has_char_link: bool = True


class Machine(Value):
    """One look at NVIDIA's driver and GPUs. `gpus` is None where they could not be counted; `faults` then says why.

    `device_node_stats`: those of every device node that a container may get, by its path as the host has it (whatever
    the root); of a node that should be there and is not, what it would be. A path that is not in it has unknown
    numbers.
    `insecure_files`: what containers are not given although it is there, because somebody else than root could change
    it: a path as the driver's process sees it → why. `product`: the name of the server, as its firmware tells it (DMI);
    "" where that is unknown. `vgpu` is None where nobody may read whether there is one. `unlisted`: PCI address of each
    GPU on the bus that NVIDIA's driver does not have → the kernel driver that has it, "vfio-pci"; "" for none.
    """

    driver: Driver | None = None
    gpus: tuple[Gpu, ...] | None = None
    switches: tuple[str, ...] = ()  # PCI addresses of NVSwitches
    shared_nodes: tuple[str, ...] = ()  # nodes of no single GPU: /dev/nvidiactl, /dev/nvidia-uvm, IMEX channels…
    device_node_stats: Mapping[str, DeviceNodeStat] = {}
    insecure_files: Mapping[str, Text] = {}
    product: str = ""
    vgpu: Vgpu | None = None
    unlisted: Mapping[str, str] = {}
    faults: tuple[Fault, ...] = ()

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of this UUID; None where there is none."""
        return next((gpu for gpu in self.gpus or () if gpu.uuid == uuid), None) if uuid else None

    @property
    def mig_parents(self) -> dict[str, str]:
        """UUID of each MIG device → UUID of its GPU."""
        return {device.uuid: gpu.uuid for gpu in self.gpus or () for device in gpu.mig_devices}


class InjectedFailure(Value):
    """A driver call that does not answer as it should, in a described machine and in the NVML stand-in alike."""

    effect: Literal["error", "hang", "crash"]
    nvml_function: str = "*"  # the NVML function, "nvmlDeviceGetName"; `*` matches any run
    gpu: int | None = None  # calls about the GPU of this index; None: calls about none
    error: str = "UNKNOWN"  # NVML's error of an `error`: "GPU_IS_LOST"


class Incident(Value):
    """Something that befalls a described GPU, once: an XID or another event of the fault catalogue.

    `in_kernel_log`: the kernel log has it, so that an agent which was away learns of it when it comes back.
    `kernel_log_number`: which record it is there; None: one after the incident before it. Needed where old incidents
    are taken out of a file, as a kernel log forgets its oldest.
    """

    gpu: int  # its index
    code: str  # "xid-79"
    message: Text = ""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pids: tuple[int, ...] = ()
    in_kernel_log: bool = True
    kernel_log_number: int | None = None


class GpuProcess(Value):
    """A process that computes on a described GPU. `cgroups`: as /proc/PID/cgroup has them."""

    gpu: int
    pid: int
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_mib: float | None = None
    sm_percent: float | None = None
    started: int = 0
    cgroups: tuple[str, ...] = ()


class MachineFile(Machine):
    """A machine as a person describes it, what of its driver fails, what has befallen it, and who computes on it.

    `devices`: those of other kinds. `uncounted`: kinds whose devices could not be counted → why.

    `incidents` are a log: what is appended happens, what is taken away has happened all the same. `layout` and `majors`
    say in a word what `driver.files` and `numbers` would say in many; who has read the file finds it said there.
    """

    driver_file_layout: Literal["debian", "debian-arm64", "redhat"] | None = None  # whose driver packages are installed
    devices: tuple[Device, ...] = ()
    uncounted: Mapping[str, Text] = {}
    major_numbers: Mapping[str, int] = {}  # major numbers by the names of /proc/devices: nvidia, nvidia-uvm, drm…
    failures: tuple[InjectedFailure, ...] = ()
    incidents: tuple[Incident, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    load: tuple[DescribedLoad, ...] = ()

    @property
    def lists_by_kind(self) -> Mapping[str, DeviceList]:
        """Kind → its devices. A kind of which the file has neither a device nor why none was counted is not in it."""
        lists = {
            kind: DeviceList(devices=tuple(each for each in self.devices if each.kind == kind))
            for kind in dict.fromkeys(each.kind for each in self.devices)
        }
        uncounted = {
            kind: DeviceList(faults=(Fault(code=UNCOUNTED_CODE, message=why),)) for kind, why in self.uncounted.items()
        }
        return lists | uncounted
