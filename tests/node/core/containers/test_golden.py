"""A DGX H100, from its files to the document: what NVIDIA's rules give a container there.

`golden/dgx-h100.tree` is the node, `golden/dgx-h100.golden` what the rules make of it: both were written from NVIDIA's
documentation and source, before there was anything of ours to copy from.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.node.core.containers.cdi.specbuilder import build_spec
from gpuplane.node.core.containers.cdi.specrequest import HookProgram, SpecOptions
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.hardware.nvidia.driver.devicenodes import nodes_of_gpus
from gpuplane.node.hardware.nvidia.driver.driverfiles import DriverFilesSearch
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.model.cdi import ContainerEdits, DeviceNode, Mount, Spec
from gpuplane.node.model.machine import Driver, Machine
from tests.trees import grow, may_make_nodes

GOLDEN = Path(__file__).parent / "golden"
VERSION = "570.172.08"
NVIDIA = HookProgram(path="/usr/bin/nvidia-cdi-hook", is_nvidia=True)
OURS = HookProgram(path="/opt/gpuplane/bin/gpuplane-hook")
MOUNTS: dict[tuple[str, ...], str] = {
    ("ro", "nosuid", "nodev", "rbind", "rprivate"): "ro",
    ("nosuid", "nodev", "rbind", "rprivate", "noexec"): "ipc",
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """What a look at the tree finds; the GPUs themselves are those of the profile, as NVML would tell them."""
    root = tmp_path_factory.mktemp("dgx-h100")
    if not may_make_nodes(root):
        pytest.skip("device nodes with their own modes and groups take CAP_MKNOD")
    grow(root, (GOLDEN / "dgx-h100.tree").read_text())
    files = KernelFiles(str(root))
    found, missing = DriverFilesSearch(str(root), files).search(VERSION)
    assert not missing
    gpus = read_machine(find_machine_file("hgx-h100").read_bytes(), "hgx-h100").gpus or ()
    gpus = tuple(gpu.but(dri=files.dri(gpu.pci)) for gpu in gpus)
    nodes = files.nodes.shared()
    return Machine(
        driver=Driver(version=VERSION, cuda="12.8", files=found),
        gpus=gpus,
        shared_nodes=nodes,
        device_node_stats=files.nodes.numbers((*nodes, *nodes_of_gpus(gpus)), files.majors()),
    )


def golden() -> set[str]:
    """The lines of the golden table."""
    lines = (line.strip() for line in (GOLDEN / "dgx-h100.golden").read_text().splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def told(spec: Spec, name: str) -> Iterator[str]:
    """A document in the words of the golden table, of the devices that one by name."""
    (device,) = (each for each in spec.devices if each.name == name)
    yield f"version {spec.cdi_version}"
    yield from (f"all {line}" for line in _edits(spec.container_edits))
    yield from (f"GPU {line}" for line in _edits(device.container_edits))


def _edits(edits: ContainerEdits) -> Iterator[str]:
    yield from (f"env {each}" for each in edits.env)
    yield from (f"gid {each}" for each in edits.additional_gids)
    yield from map(_node, edits.device_nodes)
    yield from map(_mount, edits.mounts)
    for hook in edits.hooks:
        words = " ".join(hook.args)
        for target, link in re.findall(r"--link(?:-if)?[ =](\S+)::(\S+)", words):
            yield f"link {link} {target}"
        yield from (f"folder {each}" for each in re.findall(r"--folder[ =](\S+)", words))


def _node(node: DeviceNode) -> str:
    assert not node.host_path
    assert node.permissions == "rwm"
    return f"node {node.path} {node.type} {node.major}:{node.minor} {node.file_mode or 0:o} {node.gid or 0}"


def _mount(mount: Mount) -> str:
    moved = f" {mount.container_path}" if mount.container_path != mount.host_path else ""
    return f"mount {MOUNTS[mount.options]} {mount.host_path}{moved}"


def made(machine: Machine, hook: HookProgram) -> Spec:
    """The document with NVIDIA's names."""
    request = SpecOptions(kind="nvidia.com/gpu", naming=("index", "uuid"), with_all_device=True, hook_program=hook)
    found = build_spec(machine, request)
    assert found.spec is not None
    assert not found.omission_reason_by_device
    return found.spec


def test_what_nvidias_rules_give_a_container(machine: Machine) -> None:
    """With NVIDIA's program: every node with its numbers, every mount, link and folder; nothing else."""
    assert set(told(made(machine, NVIDIA), "0")) ^ golden() == set()


def test_our_program_is_told_the_same(machine: Machine) -> None:
    """It gets by one entry what NVIDIA's get by five, and makes a link to a DRM node where that is in the container."""
    spec = made(machine, OURS)
    lines = {line.replace("all link /dev/dri", "GPU link /dev/dri") for line in told(spec, "0")}

    assert len(spec.container_edits.hooks) == 1
    assert not any(device.container_edits.hooks for device in spec.devices)
    others = {line for line in lines if line.startswith("GPU link") and "0000:1b:00.0" not in line}
    assert len(others) == 14
    assert (lines - others) ^ golden() == set()


def test_the_other_gpus_are_likewise(machine: Machine) -> None:
    """Each by two names, with nodes of its own; `all` has the nodes of all."""
    spec = made(machine, NVIDIA)
    names = [device.name for device in spec.devices]
    every = [device for device in spec.devices if device.name == "all"]

    assert sorted(names) == sorted(["all", *(str(i) for i in range(8)), *(gpu.uuid for gpu in machine.gpus or ())])
    for i, gpu in enumerate(machine.gpus or ()):
        nodes = {line for line in told(spec, gpu.uuid) if line.startswith("GPU node")}
        assert nodes == {
            f"GPU node /dev/nvidia{i} c 195:{i} 666 0",
            f"GPU node /dev/dri/card{i + 1} c 226:{i + 1} 660 44",
            f"GPU node /dev/dri/renderD{128 + i} c 226:{128 + i} 660 110",
        }
        assert set(told(spec, str(i))) == set(told(spec, gpu.uuid))
    assert len(every[0].container_edits.device_nodes) == 24


@pytest.mark.parametrize(
    ("mode", "nodes"),
    [
        ("gds", {"/dev/nvidia-fs0"}),
        ("mofed", {"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}),
        ("nvswitch", {"/dev/nvidia-nvswitchctl", *(f"/dev/nvidia-nvswitch{i}" for i in range(4))}),
        (
            "management",
            {
                "/dev/nvidiactl", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
                "/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2", *(f"/dev/nvidia{i}" for i in range(8)),
            },
        ),
    ],
)  # fmt: skip
def test_what_is_not_of_one_gpu(machine: Machine, mode: str, nodes: set[str]) -> None:
    """GPUDirect Storage, Mellanox, switches and management have the nodes that the rules name."""
    request = SpecOptions(kind=f"nvidia.com/{mode}", mode=mode, hook_program=NVIDIA)  # type: ignore[arg-type]
    spec = build_spec(machine, request).spec
    assert spec is not None
    (device,) = spec.devices

    assert device.name == "all"
    assert {each.path for each in (*device.container_edits.device_nodes, *spec.container_edits.device_nodes)} == nodes
    if mode == "gds":
        assert [mount.host_path for mount in device.container_edits.mounts] == ["/etc/cufile.json", "/run/udev"]
