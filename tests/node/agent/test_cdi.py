"""The agent beside kubelet: what a container is given by CDI is on disk before, is current, and stays as long."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, pod
from tests.node.host.cdi.world import GPU, VERSION, Place, document, machine

GPUS, ONE_G, THREE_G = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
MIG = "version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri]}}\n"
INDEX = "version: v1\nflags: {migStrategy: mixed, plugin: {deviceListStrategy: [cdi-cri], deviceIDStrategy: index}}\n"
ENVVAR = "version: v1\nflags: {plugin: {deviceListStrategy: [envvar]}}\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def until(true: Callable[[], object], deadline: float = 60.0) -> None:
    """Wait for what a file says."""
    async with asyncio.timeout(deadline):
        while not true():
            await asyncio.sleep(0.02)


async def made(kubelet: Kubelet, name: str) -> set[str]:
    """The device nodes in the container of a pod, once it runs."""
    running = kubelet.pods[f"default/{name}"]
    await kubelet.until(lambda: "main" in running.started)
    return {node.path for node in running.created["main"].device_nodes}


async def test_what_kubelet_is_told_is_on_disk(place: Place) -> None:
    """At every list: no device is healthy that the file does not define, and at the first none is ill meanwhile."""
    place.configure(MIG)
    told: list[dict[str, str]] = []

    def heard(resource: str) -> None:
        told.append(dict(kubelet.device_health()[resource]))
        healthy = {id for id, health in told[-1].items() if health == "Healthy"}
        assert healthy <= place.names(), "a device was given out before it was described"

    async with place.kubelet() as kubelet:
        kubelet.manager.on_list = heard
        async with place.agent():
            await kubelet.until_capacity(GPUS, 2, 2)
            assert told[0] == {"GPU-0": "Healthy", "GPU-1": "Healthy"}
            place.describe(machine(range(8), {6: 7, 7: 2}))
            await kubelet.until_capacity(ONE_G, 7, 7)
            await kubelet.until_capacity(THREE_G, 2, 2)
            await kubelet.until_capacity(GPUS, 6, 6)
        assert len(told) >= 4


async def test_a_container_gets_its_devices_and_no_others(place: Place) -> None:
    """By the runtime, from the file: its node with numbers, the control nodes, the libraries."""
    async with place.kubelet() as kubelet, place.agent():
        await kubelet.until_capacity(GPUS, 2, 2)
        running = await kubelet.run(pod("train", gpu=1))
        assert await made(kubelet, "train") == {"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"}
        [node] = (each for each in running.created["main"].device_nodes if each.path == "/dev/nvidia0")
        assert (node.type, node.major, node.minor) == ("c", 195, 0)
        assert any(mount.host_path.endswith(f"libcuda.so.{VERSION}") for mount in running.created["main"].mounts)


async def test_every_change_is_taken_up_live(place: Place) -> None:
    """Hot-plug, a partition, another driver, another configuration, a hook that is installed."""
    place.configure(MIG)
    async with place.kubelet() as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPUS, 2, 2)
        process = agent.process.pid

        place.describe(machine(range(3)))
        await kubelet.until_capacity(GPUS, 3, 3)
        assert place.names() == {"GPU-0", "GPU-1", "GPU-2"}

        place.describe(machine(range(3), {2: 2}))
        await kubelet.until_capacity(THREE_G, 2, 2)
        assert place.names() == {"GPU-0", "GPU-1", "MIG-2-2-0", "MIG-2-2-1"}

        place.describe(machine(range(3), {2: 2}, version="590.10"))
        await until(lambda: place.libraries() == {"590.10"})

        place.configure(INDEX)
        await until(lambda: place.names() == {"0", "1", "2:0", "2:1"})

        place.hook.write_text("#!/bin/true\n")
        place.hook.chmod(0o755)
        await until(lambda: place.spec().container_edits.hooks)  # type: ignore[union-attr]

        place.configure(ENVVAR)
        await until(lambda: not place.file().exists())
        assert agent.process.returncode is None
        assert agent.process.pid == process


async def test_no_list_changes_where_only_what_all_devices_share_does(place: Place) -> None:
    """A driver upgrade writes the file anew, and no device is ill for a moment."""
    async with place.kubelet() as kubelet, place.agent():
        await kubelet.until_capacity(GPUS, 2, 2)
        lists: list[str] = []
        kubelet.manager.on_list = lists.append
        place.describe(machine(version="590.10"))
        await until(lambda: place.libraries() == {"590.10"})
        await asyncio.sleep(0.3)
    assert lists == []


async def test_what_a_container_holds_stays_until_its_pod_ends(place: Place) -> None:
    """Its GPU is gone, and then CDI is: the name can be resolved all the same, and is gone with the pod."""
    async with place.kubelet() as kubelet, place.agent():
        await kubelet.until_capacity(GPUS, 2, 2)
        await kubelet.run(pod("train", gpu=2))
        await made(kubelet, "train")
        place.describe(machine([1]))
        await kubelet.until_capacity(GPUS, 1, 1)
        assert place.names() == {"GPU-0", "GPU-1"}
        place.configure(ENVVAR)
        await asyncio.sleep(1.5)
        assert place.names() == {"GPU-0", "GPU-1"}

        kubelet.workers.crash("default/train", "main")
        assert {"/dev/nvidia0", "/dev/nvidia1"} < await made(kubelet, "train")

        await kubelet.end("default/train")
        await kubelet.run(pod("next", gpu=1))  # kubelet forgets a pod that has gone with the next allocation
        await kubelet.end("default/next")
        await until(lambda: not place.file().exists())


async def test_a_container_restarts_while_no_agent_runs(place: Place) -> None:
    """Kubelet names the device again, as its checkpoint has it."""
    async with place.kubelet() as kubelet:
        async with place.agent() as agent:
            await kubelet.until_capacity(GPUS, 2, 2)
            await kubelet.run(pod("train", gpu=1))
            before = await made(kubelet, "train")
            assert await agent.stop() == 0
        assert place.names() == {"GPU-0", "GPU-1"}
        kubelet.workers.crash("default/train", "main")
        assert await made(kubelet, "train") == before


async def test_an_index_means_another_device_after_a_partition(place: Place) -> None:
    """And is given out as such; an index that is no more stays while any container holds anything."""
    place.configure(INDEX)
    place.describe(machine(range(2), {1: 7}))
    async with place.kubelet() as kubelet, place.agent():
        await kubelet.until_capacity(ONE_G, 7, 7)
        await kubelet.until_capacity(GPUS, 1, 1)
        await kubelet.run(pod("train", gpu=1))
        place.describe(machine(range(2), {1: 2}))
        await kubelet.until_capacity(THREE_G, 2, 2)
        assert place.names() == {"0", *(f"1:{n}" for n in range(7))}
        await kubelet.run(Pod("other", (Container("main", {THREE_G: 1}),)))
        assert "/dev/nvidia-caps/nvidia-cap121" in await made(kubelet, "other")

        for name in ("train", "other"):
            await kubelet.end(f"default/{name}")
        await kubelet.run(pod("last", gpu=1))
        await kubelet.end("default/last")
        await until(lambda: place.names() == {"0", "1:0", "1:1"})


async def test_without_cdi_nothing_is_written(place: Place) -> None:
    """Neither by `envvar`, nor where `auto` does not know the runtime: there is not even a directory."""
    for config in (ENVVAR, "version: v1\n"):
        place.configure(config)
        async with place.kubelet() as kubelet, place.agent() as agent:
            await kubelet.until_capacity(GPUS, 2, 2)
            await agent.until_says("cdi: ok")
        assert not place.cdi.exists()


async def test_another_files_device_is_not_given_out_until_that_file_is_gone(place: Place) -> None:
    """The log names the file; the other GPU is given out meanwhile, and its container starts."""
    async with place.kubelet() as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPUS, 2, 2)
        other = place.cdi / "mine.yaml"
        other.write_bytes(document(GPU, "GPU-1"))
        await kubelet.until_capacity(GPUS, 2, 1)
        await agent.until_says(f"GPU-1: not available as nvidia.com/gpu: CDI: {other} defines {GPU}=GPU-1 too")
        await kubelet.run(pod("train", gpu=1))
        assert "/dev/nvidia0" in await made(kubelet, "train")
        other.unlink()
        await kubelet.until_capacity(GPUS, 2, 2)
        await kubelet.run(pod("next", gpu=1))
        assert "/dev/nvidia1" in await made(kubelet, "next")


async def test_one_device_that_cannot_be_described_leaves_the_others(place: Place) -> None:
    """It is unhealthy, with the reason, and back once it can be."""
    good = machine(range(3))
    assert good.gpus is not None
    place.describe(good.but(gpus=(good.gpus[0], good.gpus[1].but(device_nodes=()), good.gpus[2])))
    async with place.kubelet() as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPUS, 3, 2)
        await agent.until_says("GPU-1: not available as nvidia.com/gpu: CDI: the agent does not know its device node")
        assert place.names() == {"GPU-0", "GPU-2"}
        place.describe(good)
        await kubelet.until_capacity(GPUS, 3, 3)


async def test_without_the_drivers_files_nobody_is_given_a_gpu(place: Place) -> None:
    """A container would start and find none; so all are unhealthy, with the reason."""
    found = machine()
    assert found.driver is not None
    place.describe(found.but(driver=found.driver.but(files=None, files_error="/nowhere: No such file or directory")))
    async with place.kubelet() as kubelet, place.agent() as agent:
        await kubelet.until_capacity(GPUS, 2, 0)
        await agent.until_says("/nowhere: No such file or directory")
        place.describe(found)
        await kubelet.until_capacity(GPUS, 2, 2)


async def test_another_agent_changes_nothing_of_what_is_right(place: Place) -> None:
    """The file is that of the agent before it, hook and all: it is not written again."""
    place.hook.write_bytes(b"\x7fELF")
    place.hook.chmod(0o755)
    async with place.kubelet() as kubelet:
        async with place.agent():
            await kubelet.until_capacity(GPUS, 2, 2)
        before = place.file().stat()
        async with place.agent():
            await kubelet.until_capacity(GPUS, 2, 2)
            await kubelet.run(pod("train", gpu=1))
            await made(kubelet, "train")
        assert place.file().stat() == before
