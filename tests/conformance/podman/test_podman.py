"""Our specifications in a real container runtime: what a process in a container sees of the devices it was given."""

from pathlib import Path

import pytest

from gpuplane.node.core.containers.cdi.names import VENDOR
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, pod
from tests.conformance.podman.box import Failed, Podman, Seen
from tests.conformance.podman.node import (
    CONTROL,
    FOLDER,
    GPUS,
    LIBRARIES,
    MIGS,
    SOCKET,
    VERSION,
    Node,
    install,
    machine,
)
from tests.node.hardware.nvidia.driver.standin import StandIn

pytestmark = pytest.mark.xdist_group("podman")  # what has one store is not used by two workers
GPU = "nvidia.com/gpu"
LIBCUDA = f"{FOLDER}/libcuda.so.{VERSION}"
BY_PATH = "/dev/dri/by-path/pci-0000:0{}:00.0-{}"


def nodes(seen: Seen, bare: Seen) -> dict[str, tuple[int, int]]:
    """The device nodes that a container has by its devices."""
    assert bare.nodes.items() <= seen.nodes.items()
    return {path: pair for path, pair in seen.nodes.items() if path not in bare.nodes}


def mounts(seen: Seen, bare: Seen) -> dict[str, tuple[str, str]]:
    """The mounts that a container has by its devices."""
    return {path: mount for path, mount in seen.mounts.items() if path not in bare.mounts}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("0",), GPUS["GPU-0"]),
        (("GPU-1",), GPUS["GPU-1"]),
        (("0", "GPU-1"), GPUS["GPU-0"] | GPUS["GPU-1"]),
        (("2:0",), GPUS["GPU-2"] | MIGS["MIG-0"]),
        (("MIG-1", "GPU-0"), GPUS["GPU-2"] | MIGS["MIG-1"] | GPUS["GPU-0"]),
        (("all",), {path: pair for each in (*GPUS.values(), *MIGS.values()) for path, pair in each.items()}),
        (("none",), {}),
    ],
)
def test_its_nodes_and_no_other(
    names: tuple[str, ...], expected: dict[str, tuple[int, int]], podman: Podman, bare: Seen, hook: Path, node: Node
) -> None:
    """By index, UUID, MIG index and `all`: nodes of the right numbers, which the host does not have."""
    node.generate("--hook-path", hook, *(["--device-id=none"] if names == ("none",) else []))
    seen = podman.look(node.cdi, *(f"{GPU}={name}" for name in names))

    assert nodes(seen, bare) == CONTROL | expected
    cards = {path for path in seen.links if path.startswith("/dev/dri/by-path/")}
    assert cards == {
        BY_PATH.format(i + 1, what)
        for i, uuid in enumerate(("GPU-0", "GPU-1"))
        for what in ("card", "render")
        if GPUS[uuid].items() <= expected.items()
    }


def test_what_it_may_open(podman: Podman, hook: Path, node: Node) -> None:
    """Its own nodes; another GPU's not, even where it makes the node itself."""
    node.generate("--hook-path", hook)
    tried = "mknod /dev/nvidia1 c 195 1; for n in 0 1; do echo $(cat /dev/nvidia$n 2>&1); done"
    own, other = podman.run(node.cdi, f"{GPU}=0", script=tried, more=["--cap-add", "MKNOD"]).splitlines()

    assert "Operation not permitted" not in own  # but, where it has no driver, "No such device or address"
    assert "Operation not permitted" in other


def test_its_mounts_and_its_environment(podman: Podman, bare: Seen, hook: Path, node: Node) -> None:
    """The driver's files at their places, read-only but for sockets, and two variables; the hook makes the links."""
    node.generate("--hook-path", hook)
    seen = podman.look(node.cdi, f"{GPU}=0")
    found = mounts(seen, bare)

    assert seen.env - bare.env == {f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}", "NVIDIA_VISIBLE_DEVICES=void"}
    assert found.keys() == node.files().keys()
    for path, source in node.files().items():
        what, options = found[path]
        assert source.endswith(what), path
        assert {"nosuid", "nodev"} <= {*options.split(",")}, path
        assert options.split(",")[0] == ("rw" if path == SOCKET else "ro"), path
    links = {path: to for path, to in seen.links.items() if path.startswith(FOLDER)}
    assert links == {
        f"{FOLDER}/libcuda.so": "libcuda.so.1",
        f"{FOLDER}/libcuda.so.1": f"libcuda.so.{VERSION}",
        f"{FOLDER}/libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
        f"{FOLDER}/libnvidia-ptxjitcompiler.so.1": f"libnvidia-ptxjitcompiler.so.{VERSION}",
    }


def test_the_image_finds_the_driver(podman: Podman, hook: Path, node: Node) -> None:
    """A program of the image loads libcuda.so.1 and calls it: by the loader's cache, which the hook has written."""
    with pytest.raises(Failed, match=r"libcuda\.so\.1: cannot open shared object file"):
        podman.run(node.cdi, script="probe")
    node.generate("--hook-path", hook)
    said = podman.run(node.cdi, f"{GPU}=0", script="probe; cat /etc/ld.so.cache")

    assert said.startswith("CUDA 13000\n")
    assert all(each.soname in said for each in LIBRARIES)


def test_without_a_hook_the_image_finds_it_too(podman: Podman, bare: Seen, node: Node) -> None:
    """By mounts under each name, in the folders where loaders look by themselves; no program of ours is called."""
    node.generate("--hook=none")
    seen = podman.look(node.cdi, f"{GPU}=0")

    assert podman.run(node.cdi, f"{GPU}=0", script="probe") == "CUDA 13000\n"
    assert seen.links == bare.links
    aliases = mounts(seen, bare).keys() - node.files().keys()
    assert {Path(path).name for path in aliases} >= {"libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"}


def test_what_is_not_defined_is_refused(podman: Podman, hook: Path, node: Node) -> None:
    """A container that asks for a device which is not there does not start, and its name is said."""
    node.generate("--hook-path", hook)
    for name in ("7", "GPU-2"):  # one in MIG mode is no device
        with pytest.raises(Failed, match=rf"unresolvable CDI devices.*{GPU}={name}"):
            podman.run(node.cdi, f"{GPU}=0", f"{GPU}={name}", script="true")


async def test_a_pod_gets_what_kubelet_was_given(podman: Podman, bare: Seen, hook: Path, node: Node) -> None:
    """The agent keeps the specification, kubelet hands on the names, and the container has those GPUs. When the agent
    is gone it starts again."""
    async with Kubelet(node.root / "k") as kubelet:
        async with node.agent("--machine", node.machine, "--hook-path", hook):
            await kubelet.until_capacity(GPU, 2, 2)
            await kubelet.until_capacity("nvidia.com/mig-3g.40gb", 2, 2)
            whole = (await kubelet.run(pod("two", gpu=2))).response()
        names = [each.name for each in whole.cdi_devices]
        seen = podman.look(node.cdi, *names)

    assert sorted(names) == [f"{VENDOR}/gpu=GPU-0", f"{VENDOR}/gpu=GPU-1"]
    assert nodes(seen, bare) == CONTROL | GPUS["GPU-0"] | GPUS["GPU-1"]
    assert mounts(seen, bare).keys() == node.files().keys()
    assert podman.run(node.cdi, *names, script="probe") == "CUDA 13000\n"


async def test_from_the_drivers_library_to_the_container(
    podman: Podman, bare: Seen, hook: Path, node: Node, compiled: Path
) -> None:
    """No machine file: the driver tells its GPUs, and their nodes and its files are found on the disk."""
    standin = StandIn(node.root / "standin", compiled)
    standin.describe(machine())
    node.driver = install(node.root / "driver")
    (node.driver / "lib64").symlink_to(standin.folder)  # has libnvidia-ml.so.1, and nothing else of a driver
    async with Kubelet(node.root / "k") as kubelet:
        async with node.agent("--machine", "nvml", "--host-root", standin.root, "--hook-path", hook):
            await kubelet.until_capacity("nvidia.com/mig-3g.40gb", 2, 2)
            whole = (await kubelet.run(Pod("part", (Container("main", {"nvidia.com/mig-3g.40gb": 1}),)))).response()
        [name] = [each.name for each in whole.cdi_devices]
        seen = podman.look(node.cdi, name)

    assert nodes(seen, bare) == CONTROL | GPUS["GPU-2"] | MIGS[name.partition("=")[2]]
    assert mounts(seen, bare).keys() == node.files().keys()
    assert podman.run(node.cdi, name, script="probe") == "CUDA 13000\n"
