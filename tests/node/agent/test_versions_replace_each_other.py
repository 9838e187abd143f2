"""Agents of this version and of the next replace each other, forward and back: what is remembered passes between them.

Drains are set by the command line. Verdicts are of incidents that no look shows, and that are taken out of the machine
file again before the next agent reads it: only the state directory can tell of them.
"""

import json
import random
from functools import partial
from pathlib import Path

from gpuplane.node.core.ledger import FORMAT_VERSION
from gpuplane.sandbox.agent import AGENT_PROGRAM, Agent
from gpuplane.sandbox.kubelet import Kubelet
from gpuplane.sandbox.kubelet.manager import PluginGap
from gpuplane.sandbox.succession import RejectedPod, is_during_gap, replace_agent, run_pods_in_turn
from tests import next_version
from tests.lengths import length
from tests.node.agent.test_process import GPU, gpuplane

GPUS = 8
MACHINE = "gpus:\n" + "".join(f"- {{index: {i}, uuid: GPU-{i}, model: NVIDIA A100}}\n" for i in range(GPUS))
VERSIONS = (AGENT_PROGRAM, next_version.PROGRAM)


class History:
    """A node, and what its agents have been told so far: `drained`, device → why, and `failed`."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.chance = root, random.Random(seed)
        self.drained, self.failed = dict[str, str](), set[str]()
        self.machine = root / "machine.yaml"
        self.machine.write_text(MACHINE)
        (root / "config.yaml").write_text("version: v1\n")

    def agent(self, version: int) -> Agent:
        """An agent of a version, 0 or 1, on the state directory of all."""
        return Agent(
            "--machine", self.machine, "--config", self.root / "config.yaml", "--kubelet-root", self.root / "k",
            "--state-dir", self.root / "s", program=VERSIONS[version],
        )  # fmt: skip

    async def act(self, kubelet: Kubelet, turn: int) -> None:
        """Drain or restore a device, or let one fail or be replaced; four of them stay well."""
        ill = [*self.drained, *self.failed]
        well = [f"GPU-{i}" for i in range(GPUS) if f"GPU-{i}" not in ill]
        if len(ill) == 4 or (ill and self.chance.random() < 0.3):
            await self.restore(self.chance.choice(ill))
        elif self.chance.random() < 0.5:
            await self.drain(self.chance.choice(well), f"fan {turn}")
        else:
            await self.fail(kubelet, self.chance.choice(well))
        await self.until_shown(kubelet)

    async def drain(self, device: str, why: str) -> None:
        """By the command line."""
        status, said = await gpuplane("health", "drain", device, "--why", why, "--state-dir", self.root / "s")
        assert status == 0, said
        self.drained[device] = why

    async def restore(self, device: str) -> None:
        """Take back a drain, or say that a device which failed is mended."""
        status, said = await gpuplane("health", "restore", device, "--state-dir", self.root / "s")
        assert status == 0, said
        self.drained.pop(device, None)
        self.failed.discard(device)

    async def fail(self, kubelet: Kubelet, device: str) -> None:
        """An XID that only a reset ends, and that no kernel log keeps."""
        entry = f"{{gpu: {device.removeprefix('GPU-')}, code: xid-79, in_kernel_log: false, message: off the bus}}"
        self.edit(f"{MACHINE}incidents:\n- {entry}\n")
        self.failed.add(device)
        await self.until_shown(kubelet)
        self.edit(MACHINE)

    def edit(self, text: str) -> None:
        """Replace the machine file in one piece."""
        new = self.machine.with_suffix(".new")
        new.write_text(text)
        new.rename(self.machine)

    async def until_shown(self, kubelet: Kubelet) -> None:
        """Until kubelet has as unhealthy what has to be, and nothing else."""
        await kubelet.until(lambda: unhealthy(kubelet) == self.ill, 60)

    @property
    def ill(self) -> set[str]:
        """The devices that may not be given out."""
        return {*self.drained, *self.failed}


def unhealthy(kubelet: Kubelet) -> set[str]:
    return {id for id, health in kubelet.device_health().get(GPU, {}).items() if health == "Unhealthy"}


def note(kubelet: Kubelet, shown: list[set[str]], resource: str) -> None:
    """Note what a list says that kubelet is sent."""
    shown.append(unhealthy(kubelet))


def just_ill(refusal: RejectedPod, acts: list[PluginGap]) -> bool:
    """Whether a pod was refused a device in the very moment in which that was drained or failed."""
    return " not available" in refusal.why and is_during_gap(refusal, acts)


def left_out(said: list[str]) -> bool:
    """Whether an agent of this version says what it left out of the next one's file, and that a copy is kept."""
    words = (
        f"health.json: the file has format version {next_version.NEXT}, but this agent writes version {FORMAT_VERSION}",
        "devices.GPU-",
        f".{next_version.ADDED}",
        "ignored the fields",
        "a copy is kept as health.other-version",
    )
    return any(all(word in line for word in words) for line in said)


async def remembered(history: History) -> tuple[dict[str, str], set[str]]:
    """(device → why it is drained, devices with a verdict), as the agent that serves says."""
    status, text = await gpuplane("inspect", "health", "--json", "--state-dir", history.root / "s")
    assert status == 0, text
    devices = json.loads(text)["devices"]
    drained = {each["uuid"]: each["reason"] for each in devices if each["state"] == "drained"}
    return drained, {each["uuid"] for each in devices if each["code"] == "xid-79"}


async def test_no_drain_and_no_verdict_is_lost_between_versions_and_no_pod_but_in_the_gap(
    tmp_path: Path, seed: int
) -> None:
    """Forward and back, asked or killed, while pods come and go; the older one says what it left out."""
    history = History(tmp_path, seed)
    turns, gaps, acts = length(4, 50), list[PluginGap](), list[PluginGap]()
    async with Kubelet(tmp_path / "k", seed=seed) as kubelet:
        old = history.agent(0)
        await old.start()
        try:
            await kubelet.until_capacity(GPU, GPUS, GPUS)
            await history.drain("GPU-6", "waits for its replacement")
            await history.fail(kubelet, "GPU-7")
            async with run_pods_in_turn(kubelet, GPU) as refusals:
                for turn in range(turns):
                    version = (turn + 1) % 2
                    new, shown = history.agent(version), list[set[str]]()
                    kubelet.manager.on_list = partial(note, kubelet, shown)
                    gaps += await replace_agent(kubelet, old, new, kill=turn % 4 >= 2, deadline=60)
                    old = new
                    await history.until_shown(kubelet)
                    assert all(each >= history.ill for each in shown), (turn, history.ill, shown)
                    assert await remembered(history) == (history.drained, history.failed)
                    said = [line for line in new.log if "has format version" in line]
                    assert said == [] if version == 1 else left_out(said)
                    began = kubelet.manager.options.now()
                    await history.act(kubelet, turn)
                    acts.append(PluginGap(GPU, began, kubelet.manager.options.now()))
            assert [
                each for each in refusals if not is_during_gap(each, kubelet.manager.gaps) and not just_ill(each, acts)
            ] == []
            assert len(gaps) >= turns
            print("gaps in ms:", sorted(round((gap.ended_at - gap.started_at) * 1e3) for gap in gaps))
        finally:
            if old.process.returncode is None:
                await old.stop()
