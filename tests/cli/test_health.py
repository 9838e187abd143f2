"""`gpuplane health`: GPUs taken out of service by hand and given back, with a real agent and the embedded kubelet."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from gpuplane.sandbox.kubelet import Kubelet, pod
from tests.agent.test_process import GPU, MACHINE, Place, cluster, gpuplane, label

MIXED = (
    "gpus:\n"
    "- {index: 0, uuid: GPU-0, model: NVIDIA A100}\n"
    "- {index: 1, uuid: GPU-1, pci: '0000:3b:00.0', model: NVIDIA A100, mig: {enabled: true, devices: [\n"
    "    {uuid: MIG-1, profile: 1g.10gb, gpu_instance: 7, slot: 0},\n"
    "    {uuid: MIG-2, profile: 1g.10gb, gpu_instance: 8, slot: 1}]}}\n"
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
    return [id for id, health in sorted(kubelet.view()[resource].items()) if health == "Unhealthy"]


def befall(place: Place, *incidents: str) -> None:
    """Things happen to the machine."""
    place.edit(place.machine, MACHINE + "incidents:\n" + "".join(f"- {{{each}}}\n" for each in incidents))


async def test_a_drain_survives_the_agent_and_ends_with_restore(place: Place) -> None:
    """Kubelet is told at once, who holds the GPU is said, and runs on; SIGKILL forgets nothing."""
    async with Kubelet(place.kubelet) as kubelet:
        async with place.agent() as agent:
            await kubelet.until_capacity(GPU, 4, 4)
            [held] = (await kubelet.run(pod("train", gpu=1))).got().envs["NVIDIA_VISIBLE_DEVICES"].split(",")
            free = next(id for id in WELL if id != held)
            async with asyncio.timeout(60):
                while "default/train" not in (await gpuplane("inspect", "--state-dir", place.state))[1]:
                    pass  # kubelet names the pod a moment after its start
            assert await health(place, "drain", held, "--why", "a fan is loud") == (
                0,
                f"GPU {held[4:]} ({held}) is drained until it is restored: a fan is loud."
                " Still held by default/train/main.\n",
            )
            await kubelet.until_capacity(GPU, 4, 3)
            assert unhealthy(kubelet) == [held]
            assert (await health(place, "drain", free[4:], "--for", "2d", "--why", "x"))[1] == (
                f"GPU {free[4:]} ({free}) is drained for 2 d: x. Nobody holds it.\n"
            )
            await kubelet.until_capacity(GPU, 4, 2)
            assert "default/train" in kubelet.pods
            await agent.kill()
        async with place.agent():
            await kubelet.until_capacity(GPU, 4, 2)
            assert unhealthy(kubelet) == sorted([held, free])
            stands = (await inspected(place))[held]
            assert (stands["state"], stands["reason"]) == ("drained", "a fan is loud")
            for id in (held, free):
                assert await health(place, "restore", id) == (0, f"GPU {id[4:]} ({id}) is healthy.\n")
            await kubelet.until_capacity(GPU, 4, 4)


async def test_all_devices_can_be_drained_and_given_back(place: Place) -> None:
    """By the name `all`. What a person drained by its own name stays drained, and is named."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        await kubelet.run(pod("train", gpu=1))
        await health(place, "drain", 2, "--why", "fan")
        status, said = await health(place, "drain", "all", "--why", "new cables")
        assert (status, said.partition("Still held")[0]) == (
            0, "The node is drained until it is restored: new cables. "
        ), said  # fmt: skip
        await kubelet.until_capacity(GPU, 4, 0)
        assert await health(place, "restore", "all") == (
            0,
            "The node is healthy. GPU 2 is not given out for all that: drained: fan.\n",
        )
        await kubelet.until_capacity(GPU, 4, 3)


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
        assert (stands["state"], stands["code"], stands["counts"]) == ("unhealthy", "xid-79", {"xid-79": 1})
        assert await health(place, "restore", "GPU-1") == (0, "GPU 1 (GPU-1) is healthy.\n")
        await kubelet.until_capacity(GPU, 4, 4)


async def test_restore_says_what_a_look_still_shows(place: Place) -> None:
    """A person's word mends no hardware."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        lost = "model: NVIDIA A100, faults: [{code: gpu-lost, message: fell off the bus}]"
        place.edit(place.machine, re.sub("(GPU-3.*)model: NVIDIA A100", rf"\1{lost}", MACHINE))
        await kubelet.until_capacity(GPU, 4, 3)
        status, said = await health(place, "restore", 3)
        assert status == 1
        assert said.startswith(
            "Error: GPU 3 (GPU-3) is not well: a look still shows gpu-lost: fell off the bus. Reset it"
        )
        assert unhealthy(kubelet) == ["GPU-3"]


async def test_restore_while_the_driver_is_let_go_of_says_what_it_has_done(place: Place) -> None:
    """The drain is ended, though nobody can look at the GPU now; a reason is shown without what a terminal obeys."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        assert (await health(place, "drain", 1, "--why", "a \x1b[31mfan\x07"))[1] == (
            "GPU 1 (GPU-1) is drained until it is restored: a \ufffd[31mfan\ufffd. Nobody holds it.\n"
        )
        release = ("release", "--for", "10m", "--why", "firmware", "--state-dir", place.state)
        assert (await gpuplane("driver", *release))[0] == 0
        assert await health(place, "restore", 1) == (
            1,
            "Error: GPU 1 (GPU-1) cannot be probed while the driver is let go of: firmware."
            " The drain by hand is ended\n",
        )
        assert (await gpuplane("driver", "take", "--state-dir", place.state))[0] == 0
        await kubelet.until_capacity(GPU, 4, 4)


async def test_restore_says_why_the_probe_failed(place: Place) -> None:
    """The process that an XID befell still computes on the GPU; when it has ended, the GPU comes back by itself."""
    befallen = MACHINE + "incidents: [{gpu: 1, code: xid-94, message: contained, pids: [4711]}]\n"
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        place.edit(place.machine, befallen + "processes: [{gpu: 1, pid: 4711}]\n")
        await kubelet.until_capacity(GPU, 4, 3)
        status, said = await health(place, "restore", 1)
        assert (status, said) == (
            1,
            "Error: GPU 1 (GPU-1) is not well: the probe failed: process 4711, which it befell, still runs on it."
            " It is probed again by itself\n",
        )
        place.edit(place.machine, befallen)
        await kubelet.until_capacity(GPU, 4, 4)


async def test_restore_says_who_else_wants_it_drained(place: Place) -> None:
    """Our Node's annotation still asks; when it no longer does, the GPU is given out."""
    async with (
        cluster(place) as server,
        Kubelet(place.kubelet) as kubelet,
        place.agent("--node-name", "n1", "--kubeconfig", place.root / "kubeconfig"),
    ):
        await kubelet.until_capacity(GPU, 4, 4)
        label(server, **{"gpuplane.io/drain": "1=the autopilot found it slow"})
        await kubelet.until_capacity(GPU, 4, 3)
        status, said = await health(place, "restore", 1)
        assert (status, "is still drained: " in said, "the annotation of our Node object" in said) == (1, True, True), (
            said
        )
        label(server)
        await kubelet.until_capacity(GPU, 4, 4)


async def test_a_mig_device_is_drained_alone_and_a_gpu_with_all_of_its_own(place: Place) -> None:
    """By index, as nvidia-smi counts, or by the address of its GPU."""
    place.machine.write_text(MIXED)
    place.config.write_text(place.config.read_text() + "flags: {migStrategy: mixed}\n")
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(PART, 2, 2)
        assert (await health(place, "drain", "1:1", "--why", "noisy"))[1].startswith(
            "MIG device 1:1 (MIG-2) is drained"
        )
        await kubelet.until_capacity(PART, 2, 1)
        assert unhealthy(kubelet, PART) == ["MIG-2"]
        await health(place, "restore", "MIG-2")
        await kubelet.until_capacity(PART, 2, 2)

        assert (await health(place, "drain", "0000:3b:00.0", "--why", "noisy"))[1].startswith(
            "GPU 1 (GPU-1) is drained"
        )
        await kubelet.until_capacity(PART, 2, 0)
        status, said = await health(place, "restore", "1:0")
        assert (status, said) == (1, "Error: MIG device 1:0 (MIG-1) is still drained: as GPU 1: noisy\n")
        await health(place, "restore", "1")
        await kubelet.until_capacity(PART, 2, 2)


async def test_restore_names_what_of_a_gpu_is_still_not_given_out(place: Place) -> None:
    """A GPU that is well, of which one MIG device is not."""
    place.machine.write_text(MIXED)
    place.config.write_text(place.config.read_text() + "flags: {migStrategy: mixed}\n")
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(PART, 2, 2)
        await health(place, "drain", "1:0", "--why", "noisy")
        assert await health(place, "restore", 1) == (
            0,
            "GPU 1 (GPU-1) is healthy. MIG device 1:0 is not given out for all that: drained: noisy.\n",
        )


async def test_what_cannot_be_is_said(place: Place) -> None:
    """An unknown device with what there is, a drain without end or reason, an agent that does not run."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        for words in (("drain", "7", "--why", "x"), ("restore", "7")):
            status, said = await health(place, *words)
            assert (status, "there is no device '7' here; known are 0, 1, 2, 3" in said) == (1, True), said
        for seconds, why, *refused in (
            ("4000d", "x", 2, "3650d at most"),
            ("0s", "x", 2, "1ms at least"),
            ("1h", " ", 1, "--why"),
        ):
            status, said = await health(place, "drain", 0, "--for", seconds, "--why", why)
            assert [status, said.rpartition(": ")[2].strip()] == refused, said
        assert {each["state"] for each in (await inspected(place)).values()} == {"healthy"}
    for words in (("drain", "0", "--why", "x"), ("restore", "0")):
        status, said = await health(place, *words)
        assert (status, "no agent answers" in said) == (1, True), said


async def test_a_drain_says_where_kubelet_cannot_be_told(place: Place) -> None:
    """It holds all the same, and kubelet hears of it with its first list."""
    async with Kubelet(place.kubelet) as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPU, 4, 4)
        await kubelet.kill()
        await agent.until_says("plugin/nvidia.com/gpu: waiting")
        status, said = await health(place, "drain", 0, "--why", "x")
        assert (status, f"Kubelet is told when it reads {GPU} again: " in said) == (0, True), said
        await kubelet.start()
        await kubelet.until_capacity(GPU, 4, 3)
