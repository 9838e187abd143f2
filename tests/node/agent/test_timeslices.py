"""The whole agent: time slices by its configuration, over faults, restarts and SIGKILL."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.machine import Fault
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.agent.test_process import gpuplane
from tests.node.hardware.nvidia.driver.standin import StandIn
from tests.node.hardware.nvidia.nvidiasmi.standin import SmiStandIn

MACHINE = read_machine(find_machine_file("l40s").read_bytes(), "l40s.yaml")
A, B, C = (gpu.uuid for gpu in (MACHINE.gpus or ())[:3])
COUNT = len(MACHINE.gpus or ())


def config(**lengths: str) -> str:
    """GPUs in two shares each: a length, and their indices."""
    entries = (
        f"{{name: nvidia.com/gpu, rename: nvidia.com/{length}, replicas: 2, timeSlice: {length}, devices: {indices}}}"
        for length, indices in lengths.items()
    )
    return (
        f"version: v1\nsharing: {{timeSlicing: {{resources: [{', '.join(entries)}]}}}}\n"
        if lengths
        else "version: v1\n"
    )


class Node:
    """One with a driver, and nvidia-smi in its driver root."""

    def __init__(self, root: Path, compiled: Path) -> None:
        self.root, self.smi = root, SmiStandIn(root / "driver-root")
        self.driver = StandIn(root / "d", compiled)
        self.driver.describe(MACHINE)
        (self.smi.root / "usr/lib64").symlink_to(self.driver.folder)
        self.configure()

    def configure(self, **lengths: str) -> None:
        aside = self.root / "new.yaml"
        aside.write_text(config(**lengths))
        aside.replace(self.root / "config.yaml")

    def agent(self) -> Agent:
        root = self.root
        return Agent(
            "--machine", "nvml", "--driver-root-ctr-path", self.smi.root, "--host-root", self.driver.root,
            "--config", root / "config.yaml", "--kubelet-root", root / "k", "--state-dir", root / "s",
        )  # fmt: skip

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for it; fails with what nvidia-smi was asked."""
        try:
            async with asyncio.timeout(60):
                while not ready():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError((self.smi.lengths(), self.smi.runs())) from None

    async def said(self) -> tuple[str, str]:
        """The condition `time slices`, as `gpuplane inspect` shows it."""
        status, told = await gpuplane("inspect", "--state-dir", self.root / "s")
        lines = (line.split("\t") for line in told.splitlines())
        return next(((line[2], line[-1]) for line in lines if line[:2] == ["part", "time slices"]), ("", told * status))

    async def until_said(self, *wanted: str) -> None:
        """Wait for the condition."""
        async with asyncio.timeout(60):
            while await self.said() != wanted:
                await asyncio.sleep(0.05)

    async def until_remembered(self, *gpus: str) -> None:
        """Wait until the disk knows these GPUs as ours."""
        path = self.root / "s/time-slices.json"

        def remembered() -> set[str]:
            with suppress(FileNotFoundError):  # it goes with the last of them
                return set(json.loads(path.read_text())["value"])
            return set()

        await self.until(lambda: remembered() == set(gpus))


@pytest.fixture
async def node(tmp_path: Path, compiled: Path) -> AsyncIterator[Node]:
    """With a kubelet."""
    async with Kubelet(tmp_path / "k"):
        yield Node(tmp_path, compiled)


async def test_lengths_follow_the_configuration(node: Node) -> None:
    """Live; a GPU that no entry names any more is set back, and one that never was is never touched."""
    node.configure(long="['0', '1']")
    async with node.agent() as agent:
        await node.until(lambda: node.smi.lengths() == {A: "long", B: "long"})
        await node.until_said("ok", "long: GPU 0, 1")
        node.configure(short="['1']")
        await node.until(lambda: node.smi.lengths() == {A: "default", B: "short"})
        await node.until_said("ok", "short: GPU 1")
        node.configure()
        await node.until(lambda: node.smi.lengths() == {A: "default", B: "default"})
        await node.until_remembered()
        assert await node.said() == ("", "")
        assert await agent.stop() == 0
    assert {gpu for gpu, _ in node.smi.runs()} == {A, B}


async def test_a_gpu_without_lengths_is_served_and_said(node: Node) -> None:
    """The others of the entry have theirs."""
    node.smi.does(A, "refuse")
    node.configure(long="['0', '1']")
    async with node.agent() as agent:
        await node.until(lambda: node.smi.lengths() == {B: "long"})
        line = await agent.until_says("time slices: failing", "GPU 0")
        assert "Not Supported" in line
        standing, reason = await node.said()
        assert standing == "failing"
        assert all(word in reason for word in ("GPU 0", A, "Not Supported", "GPU 1"))
        status, told = await gpuplane("inspect", "--state-dir", node.root / "s")
        assert f"device\t{A}::0\tnvidia.com/long\thealthy" in told, (status, told)


async def test_a_reset_gpu_gets_its_length_again(node: Node) -> None:
    """It alone."""
    node.configure(long="['0', '1']")
    async with node.agent() as agent:
        await node.until(lambda: node.smi.lengths() == {A: "long", B: "long"})
        lost = (Fault(code="gpu-lost", message="it fell off the bus"),)
        gpus = tuple(gpu.but(faults=lost) if gpu.uuid == B else gpu for gpu in MACHINE.gpus or ())
        node.driver.describe(MACHINE.but(gpus=gpus))
        await agent.until_says(f"{B}: not available")
        node.smi.forget(B)
        node.driver.describe(MACHINE)
        await node.until(lambda: node.smi.lengths() == {A: "long", B: "long"})
        assert node.smi.runs() == [(A, "long"), (B, "long"), (B, "long")]


async def test_a_driver_that_was_let_go_of_has_forgotten_all(node: Node) -> None:
    """Nothing is set meanwhile, not even what is wished for anew."""
    node.configure(long="['0']")
    where = ("--state-dir", node.root / "s")
    async with node.agent():
        await node.until_said("ok", "long: GPU 0")
        status, said = await gpuplane("driver", "release", "--for", "5m", "--why", "new driver", *where)
        assert status == 0, said
        node.smi.forget(A)
        node.configure(long="['0', '1']")
        await node.until_said("waiting", "the agent will set: long: GPU 0, 1")
        assert node.smi.runs() == [(A, "long")]
        assert (await gpuplane("driver", "resume", *where))[0] == 0
        await node.until(lambda: node.smi.lengths() == {A: "long", B: "long"})


async def test_an_agent_that_is_killed_leaves_nothing_undone(node: Node) -> None:
    """Killed while nvidia-smi runs, which has set the length already and told nobody: it ends with the agent. The next
    agent, whose configuration wants no length any more, sets it back, and touches no other GPU."""
    node.configure(short="['0']")
    async with node.agent() as first:
        await node.until(lambda: node.smi.lengths() == {A: "short"})
        await node.until_said("ok", "short: GPU 0")
        node.smi.does(B, "late")
        node.configure(short="['0']", long="['1']")
        await node.until(lambda: node.smi.lengths() == {A: "short", B: "long"})
        assert len(node.smi.running()) == 1
        await first.kill()
        await node.until(lambda: not node.smi.running())
    node.smi.does(B, "")
    node.configure(short="['0']")
    async with node.agent():
        await node.until(lambda: node.smi.lengths() == {A: "short", B: "default"})
        await node.until_remembered(A)
        await node.until_said("ok", "short: GPU 0")
    assert {gpu for gpu, _ in node.smi.runs()} == {A, B}


async def test_a_gpu_that_was_reset_while_nobody_looked_is_set_again(node: Node) -> None:
    """After a restart every length is set again: it costs little, and nobody can tell whether it is still there."""
    node.configure(long="['0', '2']")
    async with node.agent() as first:
        await node.until_said("ok", "long: GPU 0, 2")
        await first.kill()
    node.smi.forget(C)
    async with node.agent():
        await node.until(lambda: node.smi.lengths() == {A: "long", C: "long"})


async def test_one_that_hangs_keeps_nobody_waiting(node: Node) -> None:
    """Neither a reader of the picture, nor the driver's release, which ends it; nor the agent's end."""
    node.smi.does(A, "hang")
    node.configure(long="['0']")
    async with node.agent() as agent:
        await node.until(lambda: len(node.smi.running()) == 1)
        await node.until_said("waiting", "the agent will set: long: GPU 0")
        where = ("--state-dir", node.root / "s")
        status, said = await gpuplane("driver", "release", "--for", "5m", "--why", "reset", *where)
        assert (status, node.smi.running()) == (0, []), said
        assert (await gpuplane("driver", "resume", *where))[0] == 0
        await node.until(lambda: len(node.smi.running()) == 1)
        assert await agent.stop() == 0
    assert node.smi.running() == []


async def test_a_described_machine_plays_it(tmp_path: Path) -> None:
    """No nvidia-smi is run; a failure of its call is told."""
    (tmp_path / "machine.yaml").write_text(
        "gpus: [{index: 0, uuid: GPU-a, model: P4}, {index: 1, uuid: GPU-b, model: A100}]\n"
        "failures: [{effect: error, nvml_function: nvidia-smi, gpu: 0, error: NOT_SUPPORTED}]\n"
    )
    (tmp_path / "config.yaml").write_text(config(long="all"))
    arguments = (
        "--machine", tmp_path / "machine.yaml", "--config", tmp_path / "config.yaml",
        "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s",
    )  # fmt: skip
    async with Kubelet(tmp_path / "k") as kubelet, Agent(*arguments) as agent:
        await kubelet.until_capacity("nvidia.com/long", 4, 4)
        await agent.until_says(
            "the time slice length of GPU 0 (GPU-a) could not be set to long: nvidia-smi: NOT_SUPPORTED; long: GPU 1"
        )
