"""A machine of one A100, what is asked for of it, and the words in which documents are expected."""

from typing import Any

from gpuplane.node.core.containers.cdi.specbuilder import SpecBuildResult, build_spec
from gpuplane.node.core.containers.cdi.specrequest import HookProgram, SpecOptions
from gpuplane.node.core.containers.cdi.validation import all_spec_problems
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode, Hook, Mount, Spec
from gpuplane.node.model.machine import (
    DeviceNodeStat,
    Driver,
    DriverFile,
    DriverFiles,
    DriverLibrary,
    Gpu,
    Machine,
    Mig,
)

KIND = "nvidia.com/gpu"
VOID = "NVIDIA_VISIBLE_DEVICES=void"
LIB = "/usr/lib/x86_64-linux-gnu"
OURS = HookProgram("/opt/gpuplane/bin/gpuplane-hook")
THEIRS = HookProgram("/usr/bin/nvidia-cdi-hook", is_nvidia=True)
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

FILES = DriverFiles(
    libraries=(
        DriverLibrary(f"{LIB}/libcuda.so.570.172.08", "libcuda.so.1", ("libcuda.so", "libcuda.so.1")),
        DriverLibrary(f"{LIB}/libnvidia-ml.so.570.172.08", "libnvidia-ml.so.1", ("libnvidia-ml.so.1",)),
        DriverLibrary(f"{LIB}/libnvidia-ptxjitcompiler.so.570.172.08", "libnvidia-ptxjitcompiler.so.1", ()),
        DriverLibrary(f"{LIB}/libnvidia-gpucomp.so.570.172.08", "libnvidia-gpucomp.so.570.172.08", ()),
        DriverLibrary(f"{LIB}/vdpau/libvdpau_nvidia.so.570.172.08", "libvdpau_nvidia.so.1", ("libvdpau_nvidia.so.1",)),
    ),
    files=(
        DriverFile("/usr/bin/nvidia-smi"),
        DriverFile("/usr/share/vulkan/icd.d/nvidia_icd.json", container_path="/etc/vulkan/icd.d/nvidia_icd.json"),
    ),
    sockets=(DriverFile("/run/nvidia-persistenced/socket"),),
    gds_paths=("/run/udev", "/etc/cufile.json"),
)
DRIVER = Driver(version="570.172.08", cuda="12.8", files=FILES)
CONTROL = {
    "/dev/nvidiactl": DeviceNodeStat(195, 255),
    "/dev/nvidia-modeset": DeviceNodeStat(195, 254),
    "/dev/nvidia-uvm": DeviceNodeStat(511, 0),
    "/dev/nvidia-uvm-tools": DeviceNodeStat(511, 1),
}
A100 = Gpu(index=0, uuid="GPU-a", minor=2, pci="0000:07:00.0", mig=Mig(), device_nodes=("/dev/nvidia2",))
MACHINE = Machine(
    driver=DRIVER,
    gpus=(A100,),
    shared_nodes=tuple(CONTROL),
    device_node_stats={**CONTROL, "/dev/nvidia2": DeviceNodeStat(195, 2)},
)
DRAWN = MACHINE.but(
    gpus=(A100.but(dri=("/dev/dri/card1", "/dev/dri/renderD128")),),
    device_node_stats={
        **MACHINE.device_node_stats,
        "/dev/dri/card1": DeviceNodeStat(226, 1, mode=0o660, gid=44),
        "/dev/dri/renderD128": DeviceNodeStat(226, 128, mode=0o660, gid=110),
    },
)


def made(machine: Machine = MACHINE, **asked: Any) -> SpecBuildResult:
    """What is made of it, good by CDI's rules."""
    got = build_spec(machine, SpecOptions(**{"kind": KIND, **asked}))
    if got.spec is not None:
        assert list(all_spec_problems(got.spec)) == []
    return got


def spec(machine: Machine = MACHINE, **asked: Any) -> Spec:
    got = made(machine, **asked).spec
    assert got is not None
    return got


def given(machine: Machine = MACHINE, **asked: Any) -> dict[str, ContainerEdits]:
    """Name → edits."""
    return {device.name: device.container_edits for device in spec(machine, **asked).devices}


def paths(edits: ContainerEdits) -> list[str]:
    return [node.path for node in edits.device_nodes]


def node(path: str, major: int, minor: int, mode: int = 0o666, **more: Any) -> DeviceNode:
    return DeviceNode(path, type="c", major=major, minor=minor, file_mode=mode, permissions="rwm", **more)


def mount(path: str, container: str = "", root: str = "", options: tuple[str, ...] = READ_ONLY) -> Mount:
    return Mount(host_path=root + path, container_path=container or path, options=options)


def arguments(got: Spec) -> list[tuple[str, ...]]:
    """Those of every entry that all containers have, after the program's name."""
    return [hook.args[1:] for hook in got.container_edits.hooks]


CONTROLLED = (
    node("/dev/nvidia-modeset", 195, 254),
    node("/dev/nvidia-uvm", 511, 0),
    node("/dev/nvidia-uvm-tools", 511, 1),
    node("/dev/nvidiactl", 195, 255),
)


def mounted(root: str = "") -> tuple[Mount, ...]:
    """What every container gets of the driver, by depth and name."""
    return (
        mount("/run/nvidia-persistenced/socket", root=root, options=SOCKET),
        mount("/usr/bin/nvidia-smi", root=root),
        mount("/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json", root=root),
        mount(f"{LIB}/libcuda.so.570.172.08", root=root),
        mount(f"{LIB}/libnvidia-gpucomp.so.570.172.08", root=root),
        mount(f"{LIB}/libnvidia-ml.so.570.172.08", root=root),
        mount(f"{LIB}/libnvidia-ptxjitcompiler.so.570.172.08", root=root),
        mount(f"{LIB}/vdpau/libvdpau_nvidia.so.570.172.08", root=root),
    )


HOOK = Hook(
    hook_name="createContainer",
    path="/opt/gpuplane/bin/gpuplane-hook",
    args=(
        "gpuplane-hook",
        "create-container",
        f"--link=libcuda.so.1::{LIB}/libcuda.so",
        f"--link=libcuda.so.570.172.08::{LIB}/libcuda.so.1",
        f"--link=libnvidia-ml.so.570.172.08::{LIB}/libnvidia-ml.so.1",
        f"--link=libnvidia-ptxjitcompiler.so.570.172.08::{LIB}/libnvidia-ptxjitcompiler.so.1",
        f"--link=libvdpau_nvidia.so.570.172.08::{LIB}/vdpau/libvdpau_nvidia.so.1",
        f"--folder={LIB}",
        f"--folder={LIB}/vdpau",
        "--compat=/usr/local/cuda/compat",
        "--driver=570.172.08",
        "--cuda=12.8",
        "--params",
    ),
    env=("GPUPLANE_HOOK=1",),
    timeout=30,
)


def a100_mig() -> Machine:
    """The profile of that name, with files of its driver."""
    path = find_machine_file("a100-mig")
    machine = read_machine(path.read_bytes(), str(path))
    assert machine.gpus is not None
    bare = tuple(gpu.but(dri=()) for gpu in machine.gpus)
    return Machine(driver=DRIVER, gpus=bare, shared_nodes=tuple(CONTROL), device_node_stats=CONTROL)
