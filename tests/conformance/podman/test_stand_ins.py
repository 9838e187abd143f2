"""Stand-ins in a real container runtime: a described GPU on a node that has no driver and no such device."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuplane.kubernetes.resourcenames import OWN_PREFIX
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod
from tests.conformance.podman.box import Podman, Seen

pytestmark = pytest.mark.xdist_group("podman")  # what has one store is not used by two workers
GPU, KVM = "nvidia.com/gpu", f"{OWN_PREFIX}kvm"
NULL = (1, 3)
PROFILE = "workstation"
DESCRIBED = read_machine(find_machine_file(PROFILE).read_bytes(), PROFILE)
GPUS = DESCRIBED.gpus or ()
UUIDS, DRM = [gpu.uuid for gpu in GPUS], [path for gpu in GPUS for path in gpu.dri]
IN_USER_NAMESPACE = ("--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536")
"""root in the container is nobody on the host, as with hostUsers: false."""
USE = """
for node in /dev/nvidia0 /dev/nvidiactl /dev/kvm; do
    cat $node
    echo written > $node
    chmod 666 $node 2>&1 | sed 's/.*: //'
done
"""
"""A program that reads and writes nodes, and tries to change their mode (to what it is: it is that of the host)."""
REFUSED = {"Read-only file system", "Operation not permitted"}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The profile, and a device that is no GPU."""
    path = tmp_path / "machine.yaml"
    described = find_machine_file(PROFILE).read_text()
    path.write_text(f"{described}\ndevices:\n  - {{id: kvm, kind: device-node, device_nodes: [/dev/kvm]}}\n")
    return path


def agent(root: Path, machine: Path, strategy: str) -> Agent:
    state, cdi = ("--state-dir", root / "state"), ("--cdi-dir", root / "cdi")
    options = ("--machine", machine, "--kubelet-root", root / "k", *state, *cdi, "--stand-ins")
    return Agent(*options, f"--device-list-strategy={strategy}")


def added_nodes(seen: Seen, bare: Seen) -> dict[str, tuple[int, int]]:
    return {path: pair for path, pair in seen.nodes.items() if path not in bare.nodes}


def nodes_of_gpus(*gpus: int) -> dict[str, tuple[int, int]]:
    """The nodes of GPUs of the profile that are no DRM nodes, and the driver's own; each of them /dev/null."""
    own = (path for gpu in gpus for path in GPUS[gpu].device_nodes)
    return dict.fromkeys((*DESCRIBED.shared_nodes, *own), NULL)


@pytest.fixture(params=[(), IN_USER_NAMESPACE], ids=["root", "user-namespace"])
def namespace(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


async def test_a_container_gets_stand_ins_by_cdi(
    podman: Podman, bare: Seen, tmp_path: Path, machine: Path, namespace: Sequence[str]
) -> None:
    """Of the agent's files: device nodes that are /dev/null, no file of the driver, and no hook that fails."""
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    async with Kubelet(tmp_path / "k") as kubelet, agent(tmp_path, machine, "cdi-cri"):
        await kubelet.until_capacity(GPU, 2, 2)
        await kubelet.until_capacity(KVM, 1, 1)
        pods = Pod("train", (Container("main", {GPU: 2, KVM: 1}),))
        names = [each.name for each in (await kubelet.run(pods)).response().cdi_devices]
    seen = podman.look(cdi, *names)

    assert len(names) == 3
    assert "NVIDIA_VISIBLE_DEVICES=void" in seen.env
    given = added_nodes(seen, bare)
    assert given == nodes_of_gpus(0, 1) | dict.fromkeys(("/dev/kvm", *DRM), NULL)
    assert {path for path in seen.mounts if path not in bare.mounts} == {*given}
    said = podman.run(cdi, *names, script=USE, more=namespace).splitlines()
    assert (len(said), {*said} <= REFUSED) == (3, True), said


async def test_a_container_gets_stand_ins_by_kubelet(
    podman: Podman, bare: Seen, tmp_path: Path, machine: Path, namespace: Sequence[str]
) -> None:
    """Of kubelet's answer, where the runtime reads no CDI: the same nodes, and the UUIDs in the environment."""
    async with Kubelet(tmp_path / "k") as kubelet, agent(tmp_path, machine, "envvar"):
        await kubelet.until_capacity(GPU, 2, 2)
        await kubelet.until_capacity(KVM, 1, 1)
        got = (await kubelet.run(Pod("train", (Container("main", {GPU: 2, KVM: 1}),)))).response()
    mounts = [f"-v={each.host_path}:{each.container_path}:{'ro' if each.read_only else 'rw'}" for each in got.mounts]
    env = [f"--env={name}={value}" for name, value in got.envs.items()]
    empty = tmp_path / "empty"
    empty.mkdir()
    seen = podman.look(empty, more=[*mounts, *env])

    assert not got.devices
    assert seen.env - bare.env == {f"NVIDIA_VISIBLE_DEVICES={','.join(UUIDS)}"}
    assert added_nodes(seen, bare) == nodes_of_gpus(0, 1) | {"/dev/kvm": NULL}
    said = podman.run(empty, script=USE, more=[*namespace, *mounts]).splitlines()
    assert (len(said), {*said} <= REFUSED) == (3, True), said
