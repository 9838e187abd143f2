"""`gpuplane health`: GPUs taken out of service by hand and given back, with a real agent and the embedded kubelet."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet, pod
from tests.golden import Golden
from tests.node.agent.test_process import GPU, MACHINE, Place, cluster, gpuplane, label

MIXED = (
    "gpus:\n"
    "- {index: 0, uuid: GPU-0, model: NVIDIA A100}\n"
    "- {index: 1, uuid: GPU-1, pci: '0000:3b:00.0', model: NVIDIA A100, mig: {enabled: true, devices: [\n"
    "    {uuid: MIG-1, profile: 1g.10gb, gpu_instance: 7, mig_index: 0},\n"
    "    {uuid: MIG-2, profile: 1g.10gb, gpu_instance: 8, mig_index: 1}]}}\n"
)
PART = "nvidia.com/mig-1g.10gb"
WELL = [f"GPU-{i}" for i in range(4)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Four GPUs, which are probed soon."""
    place = Place(tmp_path)
    place.config.write_text("version: v1\nhealth: {probePeriod: 200ms}\n")
    return place


async def health(place: Place, *words: object) -> tuple[int, str]:
    """(exit status, output) of `gpuplane health …`."""
    return await gpuplane("health", *words, "--state-dir", place.state)


async def inspected(place: Place) -> dict[str, dict[str, object]]:
    """device → how it stands, by `gpuplane inspect health --json`."""
    status, text = await gpuplane("inspect", "health", "--json", "--state-dir", place.state)
    assert status == 0, text
    return {each["uuid"]: each for each in json.loads(text)["devices"]}


def unhealthy(kubelet: Kubelet, resource: str = GPU) -> list[str]:
    """The ids that kubelet has as unhealthy."""
    return [id for id, health in sorted(kubelet.device_health()[resource].items()) if health == "Unhealthy"]


async def until_registered(kubelet: Kubelet, agent: Agent, resource: str, count: int) -> None:
    """Until kubelet shows all these devices and the agent knows it: kubelet reads them before it answers Register."""
    await kubelet.until_capacity(resource, count, count)
    await agent.until_says(f"plugin/{resource}: ok")


def befall(place: Place, *incidents: str) -> None:
    """Things happen to the machine."""
    place.edit(place.machine, MACHINE + "incidents:\n" + "".join(f"- {{{each}}}\n" for each in incidents))


async def test_a_drain_survives_the_agent_and_ends_with_restore(place: Place, golden: Golden) -> None:
    """Kubelet is told at once, who holds the GPU is said, and runs on; SIGKILL forgets nothing."""
    async with Kubelet(place.kubelet) as kubelet:
        async with place.agent() as agent:
            await until_registered(kubelet, agent, GPU, 4)
            [held] = (await kubelet.run(pod("train", gpu=1))).response().envs["NVIDIA_VISIBLE_DEVICES"].split(",")
            free = next(id for id in WELL if id != held)
            async with asyncio.timeout(60):
                while "default/train" not in (await gpuplane("inspect", "--state-dir", place.state))[1]:
                    pass  # kubelet names the pod a moment after its start
            status, said = await health(place, "drain", held, "--why", "a fan is loud")
            assert status == 0, said
            golden(said.replace(held[4:], "N"), "drained while it is held")
            await kubelet.until_capacity(GPU, 4, 3)
            assert unhealthy(kubelet) == [held]
            status, said = await health(place, "drain", free[4:], "--for", "2d", "--why", "x")
            assert status == 0, said
            golden(said.replace(f"GPU {free[4:]}", "GPU N").replace(free, "GPU-N"), "drained for a time")
            await kubelet.until_capacity(GPU, 4, 2)
            assert "default/train" in kubelet.pods
            await agent.kill()
        async with place.agent():
            await kubelet.until_capacity(GPU, 4, 2)
            assert unhealthy(kubelet) == sorted([held, free])
            stands = (await inspected(place))[held]
            assert (stands["state"], stands["reason"]) == ("drained", "a fan is loud")
            for id in (held, free):
                status, said = await health(place, "restore", id)
                assert status == 0, said
                golden(said.replace(id[4:], "N"), "restored")
            await kubelet.until_capacity(GPU, 4, 4)


async def test_all_devices_can_be_drained_and_given_back(place: Place, golden: Golden) -> None:
    """By the name `all`. What a person drained by its own name stays drained, and is named."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, GPU, 4)
        await kubelet.run(pod("train", gpu=1))
        await health(place, "drain", 2, "--why", "fan")
        status, said = await health(place, "drain", "all", "--why", "new cables")
        assert status == 0, said
        golden(said.partition("Still held")[0], "drained")
        await kubelet.until_capacity(GPU, 4, 0)
        status, said = await health(place, "restore", "all")
        assert status == 0, said
        golden(said, "restored")
        await kubelet.until_capacity(GPU, 4, 3)
        assert {id: (each["state"], each["reason"]) for id, each in (await inspected(place)).items()} == {
            id: ("drained", "fan") if id == "GPU-2" else ("healthy", "") for id in WELL
        }


async def test_a_drain_ends_by_itself(place: Place) -> None:
    """When its time is over, nobody has to come back."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        assert (await health(place, "drain", 2, "--for", "1s", "--why", "a look at it"))[0] == 0
        await agent.until_says("GPU-2: not available as nvidia.com/gpu: drained: a look at it")
        await kubelet.until_capacity(GPU, 4, 4)
        await agent.until_says("GPU-2: available again")


async def test_restore_heals_what_waited_for_a_reset(place: Place) -> None:
    """After an XID that only a reset ends a person's word will do; a probe comes before the GPU is given out again."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        befall(place, "gpu: 1, code: xid-79, message: GPU has fallen off the bus")
        await kubelet.until_capacity(GPU, 4, 3)
        stands = (await inspected(place))["GPU-1"]
        assert (stands["state"], stands["code"], stands["fault_counts"]) == ("unhealthy", "xid-79", {"xid-79": 1})
        assert (await health(place, "restore", "GPU-1"))[0] == 0
        await kubelet.until_capacity(GPU, 4, 4)
        assert (await inspected(place))["GPU-1"]["state"] == "healthy"


async def test_restore_says_what_a_look_still_shows(place: Place, golden: Golden) -> None:
    """A person's word mends no hardware."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, GPU, 4)
        lost = "model: NVIDIA A100, faults: [{code: gpu-lost, message: fell off the bus}]"
        place.edit(place.machine, re.sub("(GPU-3.*)model: NVIDIA A100", rf"\1{lost}", MACHINE))
        await kubelet.until_capacity(GPU, 4, 3)
        status, said = await health(place, "restore", 3)
        assert status == 1
        assert "gpu-lost: fell off the bus" in said
        golden(said)
        assert unhealthy(kubelet) == ["GPU-3"]


async def test_restore_while_the_driver_is_released_says_what_it_has_done(place: Place, golden: Golden) -> None:
    """The drain is ended, though nobody can look at the GPU now; a reason is shown without what a terminal obeys."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, GPU, 4)
        status, said = await health(place, "drain", 1, "--why", "a \x1b[31mfan\x07")
        assert (status, "a \ufffd[31mfan\ufffd" in said) == (0, True), said
        release = ("release", "--for", "10m", "--why", "firmware", "--state-dir", place.state)
        assert (await gpuplane("driver", *release))[0] == 0
        status, said = await health(place, "restore", 1)
        assert status == 1
        golden(said)
        assert (await gpuplane("driver", "resume", "--state-dir", place.state))[0] == 0
        await kubelet.until_capacity(GPU, 4, 4)


async def test_restore_says_why_the_probe_failed(place: Place, golden: Golden) -> None:
    """The process that an XID befell still computes on the GPU; when it has ended, the GPU comes back by itself."""
    befallen = MACHINE + "incidents: [{gpu: 1, code: xid-94, message: contained, pids: [4711]}]\n"
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, GPU, 4)
        place.edit(place.machine, befallen + "processes: [{gpu: 1, pid: 4711}]\n")
        await kubelet.until_capacity(GPU, 4, 3)
        status, said = await health(place, "restore", 1)
        assert (status, "4711" in said) == (1, True), said
        golden(said)
        place.edit(place.machine, befallen)
        await kubelet.until_capacity(GPU, 4, 4)


async def test_restore_says_who_else_wants_it_drained(place: Place, golden: Golden) -> None:
    """Our Node's annotation still asks; when it no longer does, the GPU is given out."""
    async with (
        cluster(place) as server,
        Kubelet(place.kubelet) as kubelet,
        place.agent("--node-name", "n1", "--kubeconfig", place.root / "kubeconfig") as agent,
    ):
        await until_registered(kubelet, agent, GPU, 4)
        label(server, **{"gpuplane.io/drain": "1=the autopilot found it slow"})
        await kubelet.until_capacity(GPU, 4, 3)
        status, said = await health(place, "restore", 1)
        assert status == 1
        golden(said)
        assert (await inspected(place))["GPU-1"]["state"] == "drained"
        label(server)
        await kubelet.until_capacity(GPU, 4, 4)


async def test_a_mig_device_is_drained_alone_and_a_gpu_with_all_of_its_own(place: Place, golden: Golden) -> None:
    """By index, as nvidia-smi counts, or by the address of its GPU."""
    place.machine.write_text(MIXED)
    place.config.write_text(place.config.read_text() + "flags: {migStrategy: mixed}\n")
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, PART, 2)
        golden((await health(place, "drain", "1:1", "--why", "noisy"))[1], "a MIG device is drained")
        await kubelet.until_capacity(PART, 2, 1)
        assert unhealthy(kubelet, PART) == ["MIG-2"]
        await health(place, "restore", "MIG-2")
        await kubelet.until_capacity(PART, 2, 2)

        golden((await health(place, "drain", "0000:3b:00.0", "--why", "noisy"))[1], "its GPU is drained")
        await kubelet.until_capacity(PART, 2, 0)
        status, said = await health(place, "restore", "1:0")
        assert status == 1
        golden(said, "a MIG device of a drained GPU is restored")
        await health(place, "restore", "1")
        await kubelet.until_capacity(PART, 2, 2)


async def test_restore_names_what_of_a_gpu_is_still_not_given_out(place: Place, golden: Golden) -> None:
    """A GPU that is well, of which one MIG device is not."""
    place.machine.write_text(MIXED)
    place.config.write_text(place.config.read_text() + "flags: {migStrategy: mixed}\n")
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, PART, 2)
        await health(place, "drain", "1:0", "--why", "noisy")
        status, said = await health(place, "restore", 1)
        assert status == 0
        golden(said)


async def test_what_cannot_be_is_said(place: Place, golden: Golden) -> None:
    """An unknown device with what there is, a drain without end or reason, an agent that does not run."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, GPU, 4)
        for words in (("drain", "7", "--why", "x"), ("restore", "7")):
            status, said = await health(place, *words)
            assert status == 1
            golden(said, f"{words[0]} 7")
        for seconds, why, refused in (("4000d", "x", 2), ("0s", "x", 2), ("1h", " ", 1)):
            status, said = await health(place, "drain", 0, "--for", seconds, "--why", why)
            assert status == refused, said
            golden(said, f"drain --for={seconds} --why='{why}'")
        assert {each["state"] for each in (await inspected(place)).values()} == {"healthy"}
    for words in (("drain", "0", "--why", "x"), ("restore", "0")):
        status, said = await health(place, *words)
        assert status == 1
        golden(said, f"{words[0]} without an agent")


async def test_a_drain_says_where_kubelet_cannot_be_told(place: Place, golden: Golden) -> None:
    """It holds all the same, and kubelet hears of it with its first list."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await until_registered(kubelet, agent, GPU, 4)
        await kubelet.kill()
        await agent.until_says("plugin/nvidia.com/gpu: waiting: kubelet no longer reads the device list")
        status, said = await health(place, "drain", 0, "--why", "x")
        assert status == 0
        golden(re.sub(r"nvidia.com/gpu: .*", "nvidia.com/gpu: …", said))
        await kubelet.start()
        await kubelet.until_capacity(GPU, 4, 3)
