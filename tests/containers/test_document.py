"""What a document holds. What is expected was written from NVIDIA's rules (nvidia-container-toolkit 1.20), by hand."""

import re
from typing import Any, get_args

import msgspec
import pytest

from gpuplane.core.containers.cdi.check import check
from gpuplane.core.containers.cdi.document import Document, Mode, Program, Request, document
from gpuplane.hardware.machinefile import read
from gpuplane.hardware.profiles import find
from gpuplane.model.cdi import CdiDevice, ContainerEdits, DeviceNode, Hook, Mount, Spec
from gpuplane.model.machine import (
    Driver,
    DriverFiles,
    Fault,
    File,
    Gpu,
    Library,
    Machine,
    Mig,
    MigDevice,
    Numbers,
)

KIND = "nvidia.com/gpu"
VOID = "NVIDIA_VISIBLE_DEVICES=void"
LIB = "/usr/lib/x86_64-linux-gnu"
OURS = Program("/opt/gpuplane/bin/gpuplane-hook")
THEIRS = Program("/usr/bin/nvidia-cdi-hook", nvidia=True)
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

FILES = DriverFiles(
    libraries=(
        Library(f"{LIB}/libcuda.so.570.172.08", "libcuda.so.1", ("libcuda.so", "libcuda.so.1")),
        Library(f"{LIB}/libnvidia-ml.so.570.172.08", "libnvidia-ml.so.1", ("libnvidia-ml.so.1",)),
        Library(f"{LIB}/libnvidia-ptxjitcompiler.so.570.172.08", "libnvidia-ptxjitcompiler.so.1", ()),
        Library(f"{LIB}/libnvidia-gpucomp.so.570.172.08", "libnvidia-gpucomp.so.570.172.08", ()),
        Library(f"{LIB}/vdpau/libvdpau_nvidia.so.570.172.08", "libvdpau_nvidia.so.1", ("libvdpau_nvidia.so.1",)),
    ),
    files=(
        File("/usr/bin/nvidia-smi"),
        File("/usr/share/vulkan/icd.d/nvidia_icd.json", target="/etc/vulkan/icd.d/nvidia_icd.json"),
    ),
    sockets=(File("/run/nvidia-persistenced/socket"),),
    storage=("/run/udev", "/etc/cufile.json"),
)
DRIVER = Driver(version="570.172.08", cuda="12.8", files=FILES)
CONTROL = {
    "/dev/nvidiactl": Numbers(195, 255),
    "/dev/nvidia-modeset": Numbers(195, 254),
    "/dev/nvidia-uvm": Numbers(511, 0),
    "/dev/nvidia-uvm-tools": Numbers(511, 1),
}
A100 = Gpu(index=0, uuid="GPU-a", minor=2, pci="0000:07:00.0", mig=Mig(), nodes=("/dev/nvidia2",))
MACHINE = Machine(
    driver=DRIVER,
    gpus=(A100,),
    nodes=tuple(CONTROL),
    numbers={**CONTROL, "/dev/nvidia2": Numbers(195, 2)},
)
DRAWN = MACHINE.but(
    gpus=(A100.but(dri=("/dev/dri/card1", "/dev/dri/renderD128")),),
    numbers={
        **MACHINE.numbers,
        "/dev/dri/card1": Numbers(226, 1, mode=0o660, gid=44),
        "/dev/dri/renderD128": Numbers(226, 128, mode=0o660, gid=110),
    },
)


def made(machine: Machine = MACHINE, **asked: Any) -> Document:
    """What is made of it, good by CDI's rules."""
    got = document(machine, Request(**{"kind": KIND, **asked}))
    if got.spec is not None:
        assert list(check(got.spec)) == []
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


def test_a_whole_gpu() -> None:
    """Its node, by its minor number; for all: control nodes, the driver's files, and one entry that does the rest."""
    assert made(hook=OURS) == Document(
        spec=Spec(
            cdi_version="0.3.0",
            kind=KIND,
            devices=(CdiDevice("GPU-a", {}, ContainerEdits(device_nodes=(node("/dev/nvidia2", 195, 2),))),),
            container_edits=ContainerEdits(
                env=(f"NVIDIA_CTK_LIBCUDA_DIR={LIB}", VOID),
                device_nodes=CONTROLLED,
                hooks=(HOOK,),
                mounts=mounted(),
            ),
        )
    )


def test_on_the_wire_it_has_nothing_that_it_does_not_need() -> None:
    """A number of a node may be 0, and is written then; all that has no value is not written."""
    machine = Machine(nodes=("/dev/gdrdrv",), numbers={"/dev/gdrdrv": Numbers(239, 0)})
    got = spec(machine, kind="nvidia.com/gdrcopy", mode="gdrcopy")
    assert msgspec.json.decode(msgspec.json.encode(got)) == {
        "cdiVersion": "0.3.0",
        "kind": "nvidia.com/gdrcopy",
        "devices": [
            {
                "name": "all",
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": "/dev/gdrdrv",
                            "type": "c",
                            "major": 239,
                            "minor": 0,
                            "fileMode": 0o666,
                            "permissions": "rwm",
                        }
                    ]
                },
            }
        ],
        "containerEdits": {"env": [VOID]},
    }


# MIG

MIG = {  # index → minor of the GPU, and those of the GPU instance's and the compute instance's capabilities:
    # 3 + 135 x minor + 9 x GPU instance, and one more + compute instance (/proc/driver/nvidia-caps/mig-minors)
    "2:0": (0, 66, 67),
    "2:1": (0, 75, 76),
    "2:2": (0, 84, 85),
    "2:3": (0, 93, 94),
    "2:4": (0, 102, 103),
    "2:5": (0, 111, 112),
    "2:6": (0, 120, 121),
    "3:0": (1, 147, 148),
    "3:1": (1, 156, 157),
    "4:0": (6, 831, 832),
    "4:1": (6, 840, 841),
    "4:2": (6, 894, 895),
    "4:3": (6, 903, 904),
    "6:0": (4, 552, 553),
    "6:1": (4, 561, 562),
    "6:2": (4, 561, 563),
    "7:0": (5, 705, 706),
    "7:1": (5, 723, 724),
    "7:2": (5, 732, 733),
    "7:3": (5, 759, 760),
}


def a100_mig() -> Machine:
    """The profile of that name, with files of its driver."""
    path = find("a100-mig")
    machine = read(path.read_bytes(), str(path))
    assert machine.gpus is not None
    bare = tuple(gpu.but(dri=()) for gpu in machine.gpus)
    return Machine(driver=DRIVER, gpus=bare, nodes=tuple(CONTROL), numbers=CONTROL)


def test_mig_devices_stand_for_their_gpu() -> None:
    """The GPU's node and two capabilities each. A GPU in MIG mode is no device, also where it has no MIG devices."""
    got = given(a100_mig(), names=("index",))
    assert paths(got.pop("0")) == ["/dev/nvidia2"]
    assert paths(got.pop("1")) == ["/dev/nvidia3"]
    assert {name: paths(edits) for name, edits in got.items()} == {
        name: [f"/dev/nvidia{minor}", *(f"/dev/nvidia-caps/nvidia-cap{each}" for each in caps)]
        for name, (minor, *caps) in MIG.items()
    }
    left = made(a100_mig()).left
    assert left["GPU-a1003160-0000-4000-8000-000000000005"] == "it is in MIG mode, and it has no MIG devices"
    assert left["GPU-a1003160-0000-4000-8000-000000000006"] == "it is in MIG mode, and its MIG devices are here instead"
    assert len(left) == 6


def test_of_mig_devices_those_with_graphics_have_drm_nodes() -> None:
    devices = tuple(
        MigDevice(uuid=f"MIG-{n}", profile=profile, gpu_instance=n, slot=n, nodes=(f"/dev/c{n}", "/dev/d"))
        for n, profile in enumerate(("1g.24gb+gfx", "1g.24gb", "1g.24gb-me"))
    )
    gpu = A100.but(mig=Mig(enabled=True, devices=devices), dri=("/dev/dri/card1",))
    got = spec(MACHINE.but(gpus=(gpu,)), hook=OURS)
    assert [paths(device.container_edits) for device in got.devices] == [
        ["/dev/c0", "/dev/d", "/dev/nvidia2", "/dev/dri/card1"],
        ["/dev/c1", "/dev/d", "/dev/nvidia2"],
        ["/dev/c2", "/dev/d", "/dev/nvidia2"],
    ]
    assert "--link-if=../card1::/dev/dri/by-path/pci-0000:07:00.0-card" in arguments(got)[0]


# names


@pytest.mark.parametrize(
    ("names", "whole", "part"),
    [
        (("uuid",), ["GPU-a1003160-0000-4000-8000-000000000000"], ["MIG-a1003160-0006-4000-8000-000000000201"]),
        (("index",), ["0"], ["6:2"]),
        (("type-index",), ["gpu0"], ["mig6:2"]),
        (
            ("index", "uuid"),
            ["0", "GPU-a1003160-0000-4000-8000-000000000000"],
            ["6:2", "MIG-a1003160-0006-4000-8000-000000000201"],
        ),
    ],
)
def test_each_way_of_naming(names: tuple[str, ...], whole: list[str], part: list[str]) -> None:
    """By each name a device gives the same. A name that begins with a digit needs CDI 0.5.0."""
    got = spec(a100_mig(), names=names, ids=("0", "6:2"))
    assert [device.name for device in got.devices] == [*sorted([*whole, *part])]
    edits = {device.name: device.container_edits for device in got.devices}
    assert all(edits[name] == edits[whole[0]] for name in whole)
    assert all(edits[name] == edits[part[0]] for name in part)
    assert got.cdi_version == ("0.5.0" if "index" in names else "0.3.0")


def test_a_device_that_is_all() -> None:
    """It gives what all the others give, each thing once; a document that has such a device gets no other."""
    got = given(a100_mig(), names=("index", "uuid"), ids=("1", "6"), everything=True)
    assert paths(got["all"]) == [
        "/dev/nvidia3",
        "/dev/nvidia4",
        *(f"/dev/nvidia-caps/nvidia-cap{each}" for each in (552, 553, 561, 562, 563)),
    ]
    assert list(given(MACHINE, mode="management", everything=True)) == ["all"]


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ((), ["0", "1", *MIG]),
        (("all",), ["0", "1", *MIG]),
        (("0",), ["0"]),
        (("GPU-a1003160-0000-4000-8000-000000000001", "6:1"), ["1", "6:1"]),
        (("MIG-a1003160-0003-4000-8000-000000000200",), ["3:1"]),
        (("0000:0f:00.0",), ["1"]),
        (("00000000:0F:00.0",), ["1"]),  # as nvidia-smi writes it
        (("3",), ["3:0", "3:1"]),
        (("1", "1", "1"), ["1"]),
        (("none",), ["none"]),
    ],
)
def test_a_selection(ids: tuple[str, ...], names: list[str]) -> None:
    """By index, UUID, PCI address; a GPU in MIG mode means its MIG devices."""
    assert list(given(a100_mig(), names=("index",), ids=ids)) == names


def test_none_gives_a_container_the_driver_and_no_device() -> None:
    got = spec(ids=("none",))
    assert got.devices == (CdiDevice("none", {}, ContainerEdits(env=("NVCT_EMPTY_DEVICE=",))),)
    assert got.container_edits.mounts
    assert spec(ids=("none",), everything=True) == got


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ids": ("1",)}, "no such device: '1'; there are 0, and their UUIDs"),
        ({"ids": ("0", "GPU-x", "")}, "no such device: 'GPU-x', ''; there are 0, and their UUIDs"),
        ({"ids": ("none", "0")}, "none is no device, and cannot be asked for beside others"),
        ({"ids": ("0",), "mode": "gds"}, "no such device: '0'; of gds there is one, all"),
    ],
)
def test_an_unknown_id_is_an_error(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        made(**asked)
    assert str(error.value) == said


# roots


@pytest.mark.parametrize(
    ("dev_root", "host", "version"), [("/", "", "0.3.0"), ("/run/nvidia/driver", "/run/nvidia/driver", "0.5.0")]
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_a_driver_in_a_container(dev_root: str, host: str, version: str, slash: str) -> None:
    """Its files are below its root, and in a container where that root has them. Nodes are below the root of /dev."""
    got = spec(driver_root=f"/run/nvidia/driver{slash}", dev_root=dev_root, hook=OURS)
    assert got.cdi_version == version
    assert got.container_edits.mounts == mounted("/run/nvidia/driver")
    assert got.container_edits.hooks == (HOOK,)
    nodes = [*got.container_edits.device_nodes, *got.devices[0].container_edits.device_nodes]
    assert [each.host_path for each in nodes] == [(host and host + each.path) for each in nodes]
    assert [each.but(host_path="") for each in nodes] == [*CONTROLLED, node("/dev/nvidia2", 195, 2)]


def test_a_path_that_leads_out_of_a_root_is_taken_to_lie_in_it() -> None:
    files = FILES.but(files=(File("/usr/../../../etc/shadow"),))
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)), driver_root="/driver")
    assert "/driver/etc/shadow" in [each.host_path for each in got.container_edits.mounts]


# nodes


def test_drm_nodes_come_with_their_groups() -> None:
    """A node that is not everybody's is a group's, and the container's processes are put into it (CDI 0.7.0)."""
    got = spec(DRAWN, hook=OURS)
    assert got.cdi_version == "0.7.0"
    assert got.devices[0].container_edits == ContainerEdits(
        device_nodes=(
            node("/dev/nvidia2", 195, 2),
            node("/dev/dri/card1", 226, 1, 0o660, gid=44),
            node("/dev/dri/renderD128", 226, 128, 0o660, gid=110),
        ),
        additional_gids=(44, 110),
    )
    assert arguments(got)[0][6:8] == (
        "--link-if=../card1::/dev/dri/by-path/pci-0000:07:00.0-card",
        "--link-if=../renderD128::/dev/dri/by-path/pci-0000:07:00.0-render",
    )


def test_without_groups_where_the_feature_flag_says_so() -> None:
    got = spec(DRAWN, features=("no-additional-gids-for-device-nodes",))
    assert got.cdi_version == "0.3.0"
    assert got.devices[0].container_edits.additional_gids == ()
    assert got.devices[0].container_edits.device_nodes[1].gid == 44


def test_a_group_that_is_not_needed_is_not_given() -> None:
    """Everybody may open it: its group is of no account."""
    machine = MACHINE.but(numbers={**CONTROL, "/dev/nvidia2": Numbers(195, 2, mode=0o666, gid=44)})
    edits = given(machine)["GPU-a"]
    assert edits.device_nodes[0].gid == 44
    assert edits.additional_gids == ()


def test_a_node_of_unknown_numbers_is_left_to_the_runtime() -> None:
    """It then asks the host's node."""
    assert given(MACHINE.but(numbers={}))["GPU-a"].device_nodes == (DeviceNode("/dev/nvidia2", permissions="rwm"),)


def test_control_nodes_that_do_not_exist_are_given_where_cuda_needs_them() -> None:
    """By the numbers that they would have: a runtime makes a container's nodes itself. That one is missing is told."""
    got = made(MACHINE.but(nodes=("/dev/nvidiactl",)))
    assert got.spec is not None
    assert paths(got.spec.container_edits) == ["/dev/nvidia-uvm", "/dev/nvidiactl"]
    assert got.notes == ("/dev/nvidia-uvm does not exist",)

    unknown = {path: each for path, each in MACHINE.numbers.items() if path != "/dev/nvidia-uvm"}
    got = made(MACHINE.but(nodes=("/dev/nvidiactl",), numbers=unknown))
    assert got.spec is not None
    assert paths(got.spec.container_edits) == ["/dev/nvidiactl"]


# what a container's start calls


def test_nvidias_program() -> None:
    """Five entries, in NVIDIA's order; and each device has its own for its DRM nodes."""
    got = spec(DRAWN, hook=THEIRS)
    assert [(hook.hook_name, hook.path, hook.args[0], hook.env) for hook in got.container_edits.hooks] == [
        ("createContainer", "/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", ("NVIDIA_CTK_DEBUG=false",))
    ] * 5
    assert arguments(got) == [
        (
            "create-symlinks",
            *("--link", f"libcuda.so.1::{LIB}/libcuda.so"),
            *("--link", f"libcuda.so.570.172.08::{LIB}/libcuda.so.1"),
            *("--link", f"libnvidia-ml.so.570.172.08::{LIB}/libnvidia-ml.so.1"),
            *("--link", f"libnvidia-ptxjitcompiler.so.570.172.08::{LIB}/libnvidia-ptxjitcompiler.so.1"),
            *("--link", f"libvdpau_nvidia.so.570.172.08::{LIB}/vdpau/libvdpau_nvidia.so.1"),
        ),
        ("enable-cuda-compat", "--host-driver-version=570.172.08"),
        ("update-ldcache", "--folder", LIB, "--folder", f"{LIB}/vdpau"),
        ("disable-device-node-modification",),
        ("update-application-profile",),
    ]
    assert [hook.args for hook in got.devices[0].container_edits.hooks] == [
        (
            "nvidia-cdi-hook",
            "create-symlinks",
            *("--link", "../card1::/dev/dri/by-path/pci-0000:07:00.0-card"),
            *("--link", "../renderD128::/dev/dri/by-path/pci-0000:07:00.0-render"),
        )
    ]


def test_nvidias_other_program_has_them_below_a_command() -> None:
    got = spec(hook=Program("/usr/local/nvidia/toolkit/nvidia-ctk", nvidia=True))
    assert {hook.path for hook in got.container_edits.hooks} == {"/usr/local/nvidia/toolkit/nvidia-ctk"}
    assert [hook.args[:2] for hook in got.container_edits.hooks] == [("nvidia-ctk", "hook")] * 5


def test_where_nothing_is_called_libraries_are_mounted_by_all_their_names() -> None:
    """In the folders where the loaders of Debian and Red Hat look by themselves. DRM nodes have no other names then."""
    got = spec(DRAWN)
    assert [hook for edits in (got.container_edits, *given(DRAWN).values()) for hook in edits.hooks] == []
    more = set(got.container_edits.mounts) - set(mounted())
    assert more == {
        mount(f"{LIB}/libcuda.so.570.172.08", f"{folder}/{name}")
        for folder in (LIB, "/usr/lib64")
        for name in ("libcuda.so", "libcuda.so.1")
    } | {
        mount(f"{LIB}/libnvidia-ml.so.570.172.08", f"{LIB}/libnvidia-ml.so.1"),
        mount(f"{LIB}/libnvidia-ml.so.570.172.08", "/usr/lib64/libnvidia-ml.so.1"),
        mount(f"{LIB}/libnvidia-ptxjitcompiler.so.570.172.08", f"{LIB}/libnvidia-ptxjitcompiler.so.1"),
        mount(f"{LIB}/libnvidia-ptxjitcompiler.so.570.172.08", "/usr/lib64/libnvidia-ptxjitcompiler.so.1"),
        mount(f"{LIB}/libnvidia-gpucomp.so.570.172.08", "/usr/lib64/libnvidia-gpucomp.so.570.172.08"),
        mount(f"{LIB}/vdpau/libvdpau_nvidia.so.570.172.08", f"{LIB}/vdpau/libvdpau_nvidia.so.1"),
        mount(f"{LIB}/vdpau/libvdpau_nvidia.so.570.172.08", "/usr/lib64/vdpau/libvdpau_nvidia.so.1"),
    }


@pytest.mark.parametrize(
    ("library", "more", "folders"),
    [
        ("/usr/lib64", (), ["/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu"]),
        (
            "/usr/lib64",
            ("/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json",),
            ["/usr/lib64", "/usr/lib/aarch64-linux-gnu"],
        ),
        ("/usr/lib/aarch64-linux-gnu", (), ["/usr/lib64", "/usr/lib/aarch64-linux-gnu"]),
        (
            "/lib64/nvidia",
            (),
            ["/lib64/nvidia", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu"],
        ),
    ],
)
def test_debians_folder_is_that_of_the_processor(library: str, more: tuple[str, ...], folders: list[str]) -> None:
    """As far as the driver's files tell it; else that of either."""
    files = DriverFiles(libraries=(Library(f"{library}/libcuda.so.1.2", "libcuda.so.1"),), files=tuple(map(File, more)))
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)))
    found = [each.container_path for each in got.container_edits.mounts if each.container_path.endswith("libcuda.so.1")]
    assert found == [f"{folder}/libcuda.so.1" for folder in folders]


def test_folders_below_that_of_libcuda_are_kept_where_nothing_is_called() -> None:
    """Of two that have one, one in the other, a folder belongs to the nearer; and the outer one's libraries count."""
    inner = "/usr/lib64/nvidia/current"
    paths = ("/usr/lib64/libcuda.so.1.2", f"{inner}/libcuda.so.1.2", f"{inner}/vdpau/libvdpau_nvidia.so.1.2")
    files = DriverFiles(libraries=tuple(Library(path, path.rpartition("/")[2][:-2]) for path in paths))
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)))
    mounts = {each.container_path: each.host_path for each in got.container_edits.mounts}
    assert got.container_edits.env[0] == f"NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64:{inner}"
    assert mounts["/usr/lib64/libcuda.so.1"] == paths[0]
    assert mounts[f"{inner}/libcuda.so.1"] == paths[1]
    assert mounts["/usr/lib64/vdpau/libvdpau_nvidia.so.1"] == mounts[f"{LIB}/vdpau/libvdpau_nvidia.so.1"] == paths[2]


@pytest.mark.parametrize("hook", [OURS, THEIRS])
def test_links_that_nvidia_makes_whatever_the_host_has(hook: Program) -> None:
    """And no other: a link that is on the host beside a library without a SONAME leads to the library."""
    files = DriverFiles(
        libraries=tuple(
            Library(f"/usr/lib64/{name}.so.1.2", soname, beside)
            for name, soname, beside in (
                ("libcuda", "libcuda.so.1", ()),
                ("libGLX_nvidia", "libGLX_nvidia.so.0", ()),
                ("libnvidia-opticalflow", "libnvidia-opticalflow.so.1", ()),
                ("libnvidia-allocator", "libnvidia-allocator.so.1", ()),
                ("libnvidia-glcore", "libnvidia-glcore.so.1.2", ("libnvidia-glcore.so",)),
                ("libnvidia-none", "", ("libnvidia-none.so",)),
            )
        ),
        files=(File("/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.1.2"),),
    )
    got = spec(MACHINE.but(driver=DRIVER.but(files=files)), hook=hook)
    words = [word.removeprefix("--link=") for word in arguments(got)[0] if "::" in word]
    assert words == [
        "../libnvidia-allocator.so.1::/usr/lib64/gbm/nvidia-drm_gbm.so",
        "libGLX_nvidia.so.1.2::/usr/lib64/libGLX_indirect.so.0",
        "libGLX_nvidia.so.1.2::/usr/lib64/libGLX_nvidia.so.0",
        "libcuda.so.1::/usr/lib64/libcuda.so",
        "libcuda.so.1.2::/usr/lib64/libcuda.so.1",
        "libnvidia-allocator.so.1.2::/usr/lib64/libnvidia-allocator.so.1",
        "libnvidia-glcore.so.1.2::/usr/lib64/libnvidia-glcore.so",
        "libnvidia-none.so.1.2::/usr/lib64/libnvidia-none.so",
        "libnvidia-opticalflow.so.1::/usr/lib64/libnvidia-opticalflow.so",
        "libnvidia-opticalflow.so.1.2::/usr/lib64/libnvidia-opticalflow.so.1",
        "libglxserver_nvidia.so.1.2::/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so",
    ]


DONE = {
    "create-symlinks": ("--link", "--link-if"),
    "enable-cuda-compat": ("--compat", "--driver", "--cuda"),
    "update-ldcache": ("--folder",),
    "disable-device-node-modification": ("--params",),
    "update-application-profile": (),
}


@pytest.mark.parametrize("name", DONE)
def test_what_is_disabled_by_nvidias_name_is_not_done(name: str) -> None:
    """By whichever program; of ours it is arguments."""
    words = {word.partition("=")[0] for word in arguments(spec(DRAWN, hook=OURS, disabled=(name,)))[0][1:]}
    assert words == {word for other in DONE if other != name for word in DONE[other]}
    theirs = spec(DRAWN, hook=THEIRS, disabled=(name,))
    assert [each[0] for each in arguments(theirs)] == [other for other in DONE if other != name]
    assert bool(theirs.devices[0].container_edits.hooks) == (name != "create-symlinks")


@pytest.mark.parametrize("hook", [OURS, THEIRS])
@pytest.mark.parametrize("disabled", [("all",), tuple(DONE)])
def test_where_nothing_is_to_be_done_nothing_is_called(hook: Program, disabled: tuple[str, ...]) -> None:
    got = spec(DRAWN, hook=hook, disabled=disabled)
    assert [each for edits in (got.container_edits, got.devices[0].container_edits) for each in edits.hooks] == []


def test_a_driver_of_unknown_version_has_no_forward_compatibility() -> None:
    """What is newer than it cannot be known."""
    machine = MACHINE.but(driver=DRIVER.but(version="", cuda=""))
    assert not [word for word in arguments(spec(machine, hook=OURS))[0] if word.startswith(("--compat", "--driver"))]
    assert "enable-cuda-compat" not in [each[0] for each in arguments(spec(machine, hook=THEIRS))]


# feature flags


def test_without_sockets_where_the_feature_flag_says_so() -> None:
    assert spec(features=("disable-ipc-discoverer",), hook=OURS).container_edits.mounts == mounted()[1:]


@pytest.mark.parametrize(
    "flag", ["enable-explicit-driver-libraries", "enable-coherent-annotations", "disable-multiple-csv-devices"]
)
def test_a_feature_flag_that_changes_nothing_here_says_so(flag: str) -> None:
    got = made(features=(flag,))
    assert got.spec == made().spec
    assert len(got.notes) == 1
    assert got.notes[0].startswith(f"the feature flag {flag} changes nothing: ")


def test_a_feature_flag_that_asks_for_what_is_so_anyway_says_nothing() -> None:
    assert made(features=("disable-nvsandboxutils",)) == made()


# other modes

CHANNEL = "/dev/nvidia-caps-imex-channels/channel"
OTHERS = (
    *(f"{CHANNEL}{n}" for n in (0, 7)),
    *(f"/dev/nvidia-fs{n}" for n in (0, 1)),
    *("/dev/gdrdrv", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/umad0"),
    *("/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl", "/dev/nvidia-nvlink", "/dev/nvidia-caps/nvidia-cap1"),
)
NODE = MACHINE.but(
    nodes=(*CONTROL, *OTHERS),
    gpus=(A100, a100_mig().gpus[3]),  # type: ignore[index]
)
MODES: dict[Mode, dict[str, list[str]]] = {  # the nodes of each device
    "imex": {"0": [f"{CHANNEL}0"], "7": [f"{CHANNEL}7"]},
    "gds": {"all": ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]},
    "gdrcopy": {"all": ["/dev/gdrdrv"]},
    "mofed": {"all": ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]},
    "nvswitch": {"all": ["/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"]},
    "management": {
        "all": [
            *("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1", "/dev/nvidia2"),
            *("/dev/nvidiactl", f"{CHANNEL}0", f"{CHANNEL}7"),
            *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in (1, 147, 148, 156, 157)),
        ]
    },
}


def test_every_other_mode_is_below() -> None:
    assert {"gpu", *MODES} == set(get_args(Mode))


@pytest.mark.parametrize("mode", MODES)
def test_the_nodes_of_other_modes(mode: Mode) -> None:
    """Those that exist; nothing of the driver's files, but for management and for GPUDirect Storage."""
    got = spec(NODE, mode=mode, kind="nvidia.com/other", hook=OURS)
    assert {device.name: paths(device.container_edits) for device in got.devices} == MODES[mode]
    if mode == "management":
        assert got.container_edits == spec(hook=OURS).container_edits.but(device_nodes=())
    else:
        assert got.container_edits == ContainerEdits(env=(VOID,))
    storage = (mount("/etc/cufile.json"), mount("/run/udev")) if mode == "gds" else ()
    assert [device.container_edits.mounts for device in got.devices] == [storage] * len(got.devices)
    assert got.cdi_version == ("0.5.0" if mode == "imex" else "0.3.0")


@pytest.mark.parametrize(
    ("mode", "what"),
    [
        ("imex", f"{CHANNEL}*"),
        ("gds", "/dev/nvidia-fs*"),
        ("gdrcopy", "/dev/gdrdrv"),
        ("mofed", "/dev/infiniband/uverbs*"),
        ("nvswitch", "/dev/nvidia-nvswitch*"),
        ("management", "/dev/nvidia*"),
    ],
)
def test_without_any_node_there_is_no_document(mode: Mode, what: str) -> None:
    assert made(Machine(driver=DRIVER), mode=mode) == Document(spec=None, left={what: "no such node exists"})


def test_management_has_no_nodes_that_do_not_exist() -> None:
    """Of a GPU, or of a MIG device."""
    gone = (Fault(code="node-missing", message="/dev/c does not exist"),)
    there, away = (MigDevice(n, "1g.10gb", 3, nodes=(f"/dev/nvidia-caps/{n}",)) for n in ("there", "away"))
    split = A100.but(mig=Mig(enabled=True, devices=(there, away.but(faults=gone))))
    machine = MACHINE.but(gpus=(split, A100.but(index=1, nodes=("/dev/nvidia1",), faults=gone)), nodes=())
    assert paths(given(machine, mode="management")["all"]) == ["/dev/nvidia2", "/dev/nvidia-caps/there"]


def test_imex_channels_that_do_not_exist_are_left() -> None:
    """Whatever was asked for: a configuration may want a channel that somebody makes later."""
    got = made(NODE, mode="imex", ids=("channel7", "1", "-1", "x"))
    assert got.spec is not None
    assert [device.name for device in got.spec.devices] == ["7"]
    assert got.left == {f"{CHANNEL}{id}": "no such node exists" for id in ("1", "-1", "x")}
    assert made(NODE, mode="imex", ids=("1",)).spec is None


# what is broken


@pytest.mark.parametrize("mode", ["management"])
def test_management_does_without_cuda(mode: Mode) -> None:
    """It looks after GPUs that nobody computes on; what it misses is told."""
    got = made(NODE.but(driver=Driver(missing="/driver: no such directory")), mode=mode, hook=OURS)
    assert got.spec is not None
    assert paths(got.spec.devices[0].container_edits) == MODES[mode]["all"]
    assert got.notes == ("/driver: no such directory",)
    assert arguments(got.spec) == [("create-container", "--params")]


NVML_ONLY = FILES.but(libraries=FILES.libraries[1:3])


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (None, "the machine has no driver"),
        (Driver(), "the driver has no libcuda.so.* below /driver"),
        (Driver(missing="/driver/usr: permission denied"), "/driver/usr: permission denied"),
        (DRIVER.but(files=NVML_ONLY), "the driver has no libcuda.so.* below /driver"),
    ],
)
def test_without_libcuda_every_gpu_is_left(driver: Driver | None, why: str) -> None:
    """A container would start, and find no GPU: better that it is not given one, and that the node says why."""
    got = made(MACHINE.but(driver=driver), driver_root="/driver")
    assert got == Document(spec=None, left={"GPU-a": f"no container could use it: {why}"}, notes=(why,))


@pytest.mark.parametrize(
    ("broken", "key", "why"),
    [
        ({"uuid": ""}, "/dev/nvidia9", "the driver does not tell its UUID"),
        ({"uuid": "", "nodes": ()}, "device 1", "the driver does not tell its UUID"),
        ({"nodes": (), "minor": None}, "GPU-b", "its device node is not known"),
        (
            {"nodes": (), "faults": (Fault(code="gpu-lost", message="it is lost"),)},
            "GPU-b",
            "its device node is not known: it is lost",
        ),
        (
            {"faults": (Fault(code="node-missing", message="/dev/nvidia9 does not exist"),)},
            "GPU-b",
            "/dev/nvidia9 does not exist",
        ),
        ({"uuid": "GPU-a"}, "/dev/nvidia9", "device 0 has the same name, GPU-a"),
        ({"uuid": "GPU/b"}, "GPU/b", "'GPU/b' cannot be a device's name in CDI"),
        ({"mig": Mig(enabled=True)}, "GPU-b", "it is in MIG mode, and it has no MIG devices"),
    ],
)
def test_a_broken_gpu_is_left_and_the_other_is_as_it_was(broken: dict[str, Any], key: str, why: str) -> None:
    gpu = Gpu(index=1, uuid="GPU-b", nodes=("/dev/nvidia9",)).but(**broken)
    got = made(MACHINE.but(gpus=(gpu, A100)), hook=OURS)
    assert got.left == {key: why}
    assert got.spec == spec(hook=OURS)


def test_an_ill_gpu_that_has_its_node_is_a_device() -> None:
    """Whether it may be given out is not for a document to say: a container that has it goes on having it."""
    machine = MACHINE.but(gpus=(A100.but(faults=(Fault(code="xid-79", message="fallen off the bus"),)),))
    assert made(machine) == made()


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"nodes": ("/dev/c",)}, "the nodes of its GPU instance and compute instance are not known"),
        ({"faults": (Fault(code="node-missing", message="no line for gpu2/gi3"),)}, "no line for gpu2/gi3"),
        ({"uuid": "MIG-GPU-a/3/0"}, "'MIG-GPU-a/3/0' cannot be a device's name in CDI"),
    ],
)
def test_a_broken_mig_device_is_left_and_its_neighbour_is_not(broken: dict[str, Any], why: str) -> None:
    well = MigDevice("MIG-a", "1g.10gb", 3, nodes=("/dev/a", "/dev/b"))
    ill = MigDevice("MIG-b", "1g.10gb", 4, slot=1, nodes=("/dev/c", "/dev/d")).but(**broken)
    got = made(MACHINE.but(gpus=(A100.but(mig=Mig(enabled=True, devices=(ill, well))),)))
    assert got.left[ill.uuid] == why
    assert got.spec is not None
    assert [device.name for device in got.spec.devices] == ["MIG-a"]


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_that_claim_one_name_the_first_has_it(turn: int) -> None:
    """Whichever was seen first: of MIG devices the lower slot, of files for one place the first by path."""
    twins = [MigDevice("MIG-a", "1g.10gb", 3 + n, slot=n, nodes=(f"/dev/{n}", "/dev/x")) for n in (0, 1)][::turn]
    files = [File(f"/{each}/nvidia-smi", target="/usr/bin/nvidia-smi") for each in "ab"][::turn]
    machine = MACHINE.but(
        gpus=(A100.but(mig=Mig(enabled=True, devices=tuple(twins))),),
        driver=DRIVER.but(files=FILES.but(files=tuple(files))),
    )
    got = made(machine)
    assert got.spec is not None
    assert paths(got.spec.devices[0].container_edits) == ["/dev/0", "/dev/nvidia2", "/dev/x"]
    assert got.left["/dev/nvidia2"] == "device 0:0 has the same name, MIG-a"
    assert mount("/a/nvidia-smi", "/usr/bin/nvidia-smi") in got.spec.container_edits.mounts


def test_gpus_that_were_not_counted_make_no_document() -> None:
    assert made(MACHINE.but(gpus=None)) == Document(spec=None)


def test_what_a_container_may_miss_is_told() -> None:
    libraries = tuple(each for each in FILES.libraries if "libcuda" in each.path)
    got = made(MACHINE.but(driver=DRIVER.but(files=DriverFiles(libraries=libraries), missing="two versions")))
    assert got.spec is not None
    assert got.notes == (
        "two versions",
        "the driver has no libnvidia-ml.so.*",
        "the driver has no libnvidia-ptxjitcompiler.so.*",
        "the driver has no nvidia-smi",
    )


def test_a_device_that_would_give_nothing_is_left() -> None:
    """A device without edits would make the whole document invalid."""
    got = made(MACHINE.but(gpus=(A100, A100.but(index=1, uuid="GPU-odd", nodes=("/dev/nvidiactl",)))))
    assert got.left == {"GPU-odd": "it would give a container nothing"}
    assert got.spec == spec()
