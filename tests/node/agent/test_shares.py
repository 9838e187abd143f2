"""Shares on a node: the whole agent and a whole kubelet, with files that are edited while pods run."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected
from tests.golden import Golden
from tests.removal import remove

INVALID = "rpc error: code = InvalidArgument "
"""What kubelet shows of the status of an Allocate that is refused for what the pod requests."""

GPU, MEMORY, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.mem", "nvidia.com/slice"
TWO = """\
gpus:
- {index: 0, uuid: GPU-a, minor: 0, model: L4, memory_mib: 8192, numa: 0}
- {index: 1, uuid: GPU-b, minor: 1, model: L4, memory_mib: 8192, numa: 1}
"""
IN_GIB = "sharing: {memory: {resources: [{name: gpu}]}}\n"
DISTINCT = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 3, rename: slice, distinctGPUs: true}]}}\n"


class Site:
    """The files of one node."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> None:
        (self.root / "new").write_text(text)
        (self.root / "new").rename(self.root / name)

    def agent(self, machine: str, config: str) -> Agent:
        self.write("machine.yaml", machine)
        self.write("config.yaml", config)
        root = self.root
        return Agent(
            "--machine", root / "machine.yaml", "--config", root / "config.yaml",
            "--kubelet-root", root / "k", "--state-dir", root / "state",
        )  # fmt: skip


@pytest.fixture
def site() -> Iterator[Site]:
    root = Path(tempfile.mkdtemp(prefix="gp"))
    yield Site(root)
    remove(root)


async def runs(kubelet: Kubelet, name: str, resource: str, count: int) -> dict[str, str]:
    """The environment that a new pod gets."""
    return dict((await kubelet.run(Pod(name, (Container("main", {resource: count}),)))).response().envs)


async def refused(kubelet: Kubelet, name: str, resource: str, count: int) -> str:
    """Why a new pod is."""
    with pytest.raises(PodRejected) as rejected:
        await kubelet.run(Pod(name, (Container("main", {resource: count}),)))
    return str(rejected.value)


async def ends(kubelet: Kubelet, name: str) -> None:
    """A pod ends after kubelet has listed it: else its grant would be believed in for a while."""
    asked = kubelet.manager.list_count
    await kubelet.until(lambda: kubelet.manager.list_count > asked)
    await kubelet.end(f"default/{name}")


def on(env: dict[str, str]) -> str:
    return env["NVIDIA_VISIBLE_DEVICES"]


@pytest.mark.parametrize("numa", [False, True])
async def test_memory_is_given_until_it_is_used_up(site: Site, numa: bool, golden: Golden) -> None:
    """Packed, each pod's of one GPU, whichever orders kubelet takes and whether it aligns to NUMA nodes or not. What no
    GPU has room for is refused though the sum would do, with what each has; and the last gibibyte can be had."""
    async with Kubelet(site.root / "k", align_numa=numa) as kubelet, site.agent(TWO, IN_GIB):
        await kubelet.until_capacity(MEMORY, 16, 16)
        first = await runs(kubelet, "a", MEMORY, 5)
        assert first == {
            "NVIDIA_VISIBLE_DEVICES": "GPU-a",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_DEV": "8",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "5",
            "GPUPLANE_MEMORY_MIB": "5120",
        }
        assert on(await runs(kubelet, "b", MEMORY, 6)) == "GPU-b"
        reason = await refused(kubelet, "d", MEMORY, 4)
        assert INVALID in reason
        golden(reason, "no GPU has room")
        assert [on(await runs(kubelet, name, MEMORY, size)) for name, size in (("e", 2), ("f", 3))] == [
            "GPU-b",
            "GPU-a",
        ]
        assert "Requested: 1, Available: 0" in await refused(kubelet, "g", MEMORY, 1)


async def test_a_kubelet_that_takes_no_advice_gets_no_mix(site: Site) -> None:
    """It chooses at random; whatever it chooses of two GPUs is refused, and what it chooses of one is given."""
    async with Kubelet(site.root / "k") as kubelet, site.agent(TWO, IN_GIB):
        await kubelet.until_capacity(MEMORY, 16, 16)
        kubelet.manager.endpoints[MEMORY].options.get_preferred_allocation_available = False
        given = 0
        for n in range(40):
            try:
                env = await runs(kubelet, f"p{n}", MEMORY, 2)
            except PodRejected as rejected:
                assert INVALID in rejected.message
            else:
                given += 1
                assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"
                await kubelet.end(f"default/p{n}")
        assert 0 < given < 40


async def test_another_grain_waits_for_who_holds_the_old_one(site: Site) -> None:
    """The ids are the same and the name is: kubelet alone would count wrong. A GPU without pods is had at once."""
    in_pairs = IN_GIB.replace("{res", "{shareSize: 2, res")
    async with Kubelet(site.root / "k") as kubelet, site.agent(TWO, in_pairs) as agent:
        await kubelet.until_capacity(MEMORY, 8, 8)
        assert on(await runs(kubelet, "a", MEMORY, 3)) == "GPU-a"
        site.write("config.yaml", IN_GIB)
        await kubelet.until_capacity(MEMORY, 16, 8)
        await agent.until_says(
            "container default/a/main holds the device as nvidia.com/gpu.mem in shares of another size or kind "
            "until the pod ends"
        )
        assert on(await runs(kubelet, "b", MEMORY, 8)) == "GPU-b"
        await kubelet.end("default/a")
        await kubelet.until_capacity(MEMORY, 16, 16)
        assert on(await runs(kubelet, "c", MEMORY, 8)) == "GPU-a"


async def test_an_edit_while_no_agent_ran_is_an_edit(site: Site) -> None:
    """What shares were when they were given is on disk: the next agent knows that they mean something else now."""
    coarse = IN_GIB.replace("{res", "{shareSize: 2, res")
    async with Kubelet(site.root / "k") as kubelet:
        async with site.agent(TWO, coarse) as first:
            await kubelet.until_capacity(MEMORY, 8, 8)
            assert on(await runs(kubelet, "a", MEMORY, 3)) == "GPU-a"
            await first.kill()
        async with site.agent(TWO, IN_GIB) as second:
            await kubelet.until_capacity(MEMORY, 16, 8)
            await second.until_says("holds the device as", "in shares of another size or kind")
            await kubelet.end("default/a")
            await kubelet.until_capacity(MEMORY, 16, 16)


async def test_too_fine_a_grain_shares_no_memory_and_nothing_else_is_lost(site: Site) -> None:
    """Edited live, and mended: the reason has the grain that fits."""
    fine = "sharing: {memory: {unit: MiB, resources: [{name: gpu, devices: [1]}]}}\n"
    fits = fine.replace("unit: MiB", "unit: MiB, shareSize: 2")
    async with Kubelet(site.root / "k") as kubelet, site.agent(TWO, "version: v1\n") as agent:
        await kubelet.until_capacity(GPU, 2, 2)
        site.write("config.yaml", fine)
        await kubelet.until_capacity(GPU, 1, 1)
        assert "GPU 1: memory shares of 1 MiB" in await agent.until_says("sharing: failing")
        said = await agent.until_says("not offered under any resource name")
        assert "would make 8192 devices on this node, but the limit is 4096" in said
        assert "set shareSize to 2 MiB or more" in said
        assert kubelet.capacity(MEMORY) == (0, 0)
        site.write("config.yaml", fits)
        await kubelet.until_capacity(MEMORY, 4096, 4096)
        assert (await runs(kubelet, "a", MEMORY, 4096))["ALIYUN_COM_GPU_MEM_CONTAINER"] == "8192"


@pytest.mark.parametrize("numa", [False, True])
async def test_distinct_shares_are_of_different_gpus(site: Site, numa: bool, golden: Golden) -> None:
    """A pod gets as many GPUs as it has shares, for as long as so many have one free; then the reason, which does not
    tell it to wait: two GPUs are all there are."""
    async with Kubelet(site.root / "k", align_numa=numa) as kubelet, site.agent(TWO, DISTINCT):
        await kubelet.until_capacity(SLICE, 6, 6)
        assert sorted(on(await runs(kubelet, "a", SLICE, 2)).split(",")) == ["GPU-a", "GPU-b"]
        one = on(await runs(kubelet, "b", SLICE, 1))
        assert sorted(on(await runs(kubelet, "c", SLICE, 2)).split(",")) == ["GPU-a", "GPU-b"]
        other = on(await runs(kubelet, "d", SLICE, 1))
        assert {one, other} == {"GPU-a", "GPU-b"}
        await kubelet.end("default/a")
        assert "Requested: 3, Available: 2" in await refused(kubelet, "e", SLICE, 3)
        await kubelet.end("default/b")
        reason = await refused(kubelet, "f", SLICE, 3)
        assert INVALID in reason
        golden(reason.replace("GPU-b", "GPU-a"), "more shares than GPUs")  # kubelet chooses two shares of either


MIG = """\
gpus:
- index: 0
  uuid: GPU-a
  minor: 0
  model: A100
  mig: {enabled: %s, devices: [%s]}
- {index: 1, uuid: GPU-b, minor: 1, model: A100, mig: {enabled: false}}
"""
PART = "{uuid: MIG-%d, profile: %s, gpu_instance: %d, mig_index: %d, memory_mib: 4864}"
SMALL, HALF = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb"


def cut(*profiles: str, first: int = 0) -> str:
    """A machine whose first GPU is cut so."""
    parts = (PART % (first + n, profile, n + 1, n) for n, profile in enumerate(profiles))
    return MIG % ("true", ", ".join(parts))


WHOLE = MIG % ("false", "")


async def test_layouts_change_under_pods(site: Site) -> None:
    """Whole, cut, cut otherwise, empty and whole again: each time what no container works on is given out, no more."""
    mixed = "flags: {migStrategy: mixed}\n"
    async with Kubelet(site.root / "k") as kubelet, site.agent(WHOLE, mixed) as agent:
        await kubelet.until_capacity(GPU, 2, 2)
        site.write("machine.yaml", cut("1g.5gb", "1g.5gb"))
        await kubelet.until_capacity(GPU, 1, 1)
        await kubelet.until_capacity(SMALL, 2, 2)
        held = on(await runs(kubelet, "a", SMALL, 1))
        site.write("machine.yaml", cut("3g.20gb", "1c.3g.20gb", first=5))
        await kubelet.until_capacity(SMALL, 0, 0)
        await kubelet.until_capacity(HALF, 1, 0)
        await agent.until_says("MIG-6: not offered under any resource name", "1c.3g.20gb")
        await agent.until_says(f"MIG-5: not available as {HALF}", "container default/a/main")
        assert held in ("MIG-0", "MIG-1")
        assert on(await runs(kubelet, "b", GPU, 1)) == "GPU-b"
        site.write("machine.yaml", MIG % ("true", ""))
        await kubelet.until_capacity(HALF, 0, 0)
        await agent.until_says("GPU-a: not offered under any resource name: it is in MIG mode and has no MIG devices")
        site.write("machine.yaml", WHOLE)
        await kubelet.until_capacity(GPU, 2, 1)
        await kubelet.end("default/a")
        await kubelet.until_capacity(GPU, 2, 2)
        assert on(await runs(kubelet, "c", GPU, 1)) == "GPU-a"


async def test_the_strategy_changes_under_pods(site: Site) -> None:
    """Names move from profile to nvidia.com/gpu and to whole GPUs in MIG mode; who holds a part keeps it."""
    async with (
        Kubelet(site.root / "k") as kubelet,
        site.agent(cut("1g.5gb", "1g.5gb"), "flags: {migStrategy: mixed}\n") as agent,
    ):
        await kubelet.until_capacity(SMALL, 2, 2)
        held = on(await runs(kubelet, "a", SMALL, 1))
        other = ({"MIG-0", "MIG-1"} - {held}).pop()
        site.write("config.yaml", "flags: {migStrategy: single}\n")
        await kubelet.until_capacity(GPU, 2, 1)
        await agent.until_says("GPU-b: not offered under any resource name", "migStrategy single")
        assert on(await runs(kubelet, "b", GPU, 1)) == other
        await ends(kubelet, "b")
        site.write("config.yaml", "flags: {migStrategy: none, wholeMigGpus: true}\n")
        await kubelet.until(lambda: kubelet.device_health().get(GPU) == {"GPU-a": "Unhealthy", "GPU-b": "Healthy"})
        await kubelet.end("default/a")
        await kubelet.until_capacity(GPU, 2, 2)


async def test_a_sick_mig_device_takes_only_its_own_shares(site: Site) -> None:
    """Memory shares of its sibling are given out, and those of other GPUs."""
    config = f"flags: {{migStrategy: mixed}}\nsharing: {{memory: {{resources: [{{name: {SMALL}}}]}}}}\n"
    machine, memory = cut("1g.5gb", "1g.5gb"), f"{SMALL}.mem"
    sick = machine.replace(PART % (0, "1g.5gb", 1, 0), "FIRST").replace(
        "FIRST", (PART % (0, "1g.5gb", 1, 0))[:-1] + ", faults: [{code: gpu-lost, message: gone}]}"
    )
    async with Kubelet(site.root / "k") as kubelet, site.agent(machine, config):
        await kubelet.until_capacity(memory, 8, 8)
        site.write("machine.yaml", sick)
        await kubelet.until_capacity(memory, 8, 4)
        assert on(await runs(kubelet, "a", memory, 4)) == "MIG-1"
        assert kubelet.capacity(GPU) == (1, 1)


SLICES = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n"
IN_4_GIB = "sharing: {memory: {resources: [{name: gpu, shareSize: 4}]}}\n"


async def test_an_agent_that_lost_its_state_knows_shares_by_what_their_containers_were_told(site: Site) -> None:
    """As one that comes to a node with another plugin's pods. What the shares are of another kind stays withheld."""
    async with Kubelet(site.root / "k") as kubelet:
        async with site.agent(TWO, SLICES) as agent:
            await kubelet.until_capacity(GPU, 4, 4)
            await runs(kubelet, "train", GPU, 1)
            await agent.kill()
        shutil.rmtree(site.root / "state")
        async with site.agent(TWO, SLICES) as agent:
            await kubelet.until_capacity(GPU, 4, 4)
            await agent.stop()
        shutil.rmtree(site.root / "state")
        async with site.agent(TWO, IN_4_GIB):
            await kubelet.until_capacity(MEMORY, 4, 2)
            await kubelet.end("default/train")
            await kubelet.until_capacity(MEMORY, 4, 4)
