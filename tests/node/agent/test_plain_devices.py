"""An agent with devices that are no GPUs: a described one, and one whose device nodes are looked up on the node."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected
from tests.node.agent.test_process import gpuplane

GPU, KVM = "nvidia.com/gpu", "gpuplane.io/kvm"
ONE_GPU = "gpus: [{index: 0, uuid: GPU-0, minor: 0, device_nodes: [/dev/nvidia0]}]\n"
ONE_NODE = "devices: [{id: kvm, kind: device-node, device_nodes: [/dev/kvm]}]\n"


class Place:
    """Where a node is played."""

    def __init__(self, root: Path) -> None:
        self.root, self.machine = root, root / "machine.yaml"

    def write(self, text: str, name: str = "machine.yaml") -> None:
        """Replace a file in one step."""
        aside = self.root / f"{name}.new"
        aside.write_text(text)
        aside.replace(self.root / name)

    def agent(self, *more: object) -> Agent:
        """An agent on the described machine."""
        return Agent(
            "--machine", self.machine, "--kubelet-root", self.root / "k", "--state-dir", self.root / "s", *more
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)


async def inspected(state_dir: Path) -> dict[str, list[dict[str, object]]]:
    """What `gpuplane inspect --json` prints."""
    status, text = await gpuplane("inspect", "--json", "--state-dir", state_dir)
    assert status == 0, text
    found: dict[str, list[dict[str, object]]] = json.loads(text)
    return found


def asks(name: str, resource: str = KVM) -> Pod:
    """A pod for one device."""
    return Pod(name, (Container("main", {resource: 1}),))


async def test_a_device_node_is_served_while_the_driver_is_missing_and_the_other_way_round(place: Place) -> None:
    """Each kind comes and goes by itself; what was seen before stays."""
    place.write("faults: [{code: driver-missing, message: there is none}]\n" + ONE_NODE)
    async with Kubelet(place.root / "k") as kubelet, place.agent():
        await kubelet.until_capacity(KVM, 1, 1)
        pod = await kubelet.run(asks("virtual"))
        assert [each.host_path for each in pod.response().devices] == ["/dev/kvm"]
        assert [kind["name"] for kind in (await inspected(place.root / "s"))["kinds"] if not kind["counted"]] == [
            "nvidia-gpu"
        ]

        place.write(ONE_GPU + ONE_NODE)
        await kubelet.until_capacity(GPU, 1, 1)
        place.write(ONE_GPU + "uncounted: {device-node: /dev cannot be read}\n")
        await kubelet.until(lambda: True)
        assert (await kubelet.run(asks("train", GPU))).response().envs["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        await kubelet.until_capacity(KVM, 1, 1)


async def test_a_renamed_device_is_withheld_and_a_drained_one_too_over_a_restart(place: Place) -> None:
    place.write(ONE_GPU + ONE_NODE)
    async with Kubelet(place.root / "k") as kubelet:
        async with place.agent():
            await kubelet.until_capacity(KVM, 1, 1)
            pod = await kubelet.run(asks("virtual"))
            place.write(ONE_GPU + ONE_NODE.replace("]}", "], attributes: {resource: virt}}"))
            await kubelet.until_capacity("gpuplane.io/virt", 1, 0)
        async with place.agent():  # it knows of the container by kubelet alone
            await kubelet.until_capacity("gpuplane.io/virt", 1, 0)
            await kubelet.end(pod.pod.key)
            await kubelet.until_capacity("gpuplane.io/virt", 1, 1)


async def test_on_a_real_node_a_device_is_as_healthy_as_its_node_is_there(place: Place) -> None:
    """The file only names it. A bad version of the file changes nothing, and says so."""
    place.write(ONE_GPU)
    place.write(ONE_NODE, "devices.yaml")
    (place.root / "dev").mkdir()
    node = place.root / "dev/kvm"
    more = "--devices", place.root / "devices.yaml", "--host-root", place.root
    async with Kubelet(place.root / "k") as kubelet, place.agent(*more):
        await kubelet.until_capacity(KVM, 1, 0)
        with pytest.raises(PodRejected):
            await kubelet.run(asks("early"))
        node.symlink_to("/dev/null")
        await kubelet.until_capacity(KVM, 1, 1)
        await kubelet.run(asks("virtual"))

        place.write(ONE_GPU + ONE_NODE, "devices.yaml")
        await kubelet.until(lambda: True)
        node.unlink()
        node.write_text("a file")
        await kubelet.until_capacity(KVM, 1, 0)
        parts = {each["name"]: each["state"] for each in (await inspected(place.root / "s"))["parts"]}
        assert parts["devices file"] == "failing"
        await kubelet.until_capacity(GPU, 1, 1)


async def test_another_agent_takes_over_with_what_is_missing_and_drained(place: Place) -> None:
    """The one that stood by saw the nodes itself; the drain is in the ledger of the one before it."""
    two = "devices: [{id: a, kind: device-node, device_nodes: [/dev/a], attributes: {resource: kvm}%s}, %s]\n"
    b = "{id: b, kind: device-node, device_nodes: [/dev/b], attributes: {resource: kvm}}"
    place.write(ONE_GPU + two % ("", b))
    async with Kubelet(place.root / "k") as kubelet, place.agent() as first:
        await kubelet.until_capacity(KVM, 2, 2)
        status, text = await gpuplane("health", "drain", "b", "--why", "repair", "--state-dir", place.root / "s")
        assert status == 0, text
        await kubelet.until_capacity(KVM, 2, 1)
        async with place.agent() as second:
            await second.until_says("ready to take over")
            missing = ", faults: [{code: device-node-missing, message: no such file}]"
            place.write(ONE_GPU + two % (missing, b))
            await kubelet.until_capacity(KVM, 2, 0)
            await first.stop()
            await kubelet.until(lambda: len(kubelet.manager.endpoints) == 2)
            await kubelet.until_capacity(KVM, 2, 0)
            place.write(ONE_GPU + two % ("", b))
            await kubelet.until_capacity(KVM, 2, 1)
            await kubelet.until_capacity(GPU, 1, 1)
