"""The site of a play: the agent as a process, an embedded kubelet, their files, and how the agent is asked.

Nothing that is waited for is waited for forever: what does not come raises `Broken`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.model.control import ControlRequest, ControlResponse, GetNodeState, NodeState
from gpuplane.node.model.encoding import decode
from gpuplane.node.model.machine import MachineFile
from gpuplane.node.model.status import DRIVER_PART, MACHINE_FILE_PART
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet

R = TypeVar("R")

SHARES = 2
"""Shares of each whole GPU."""
PERIOD = 0.2
"""Seconds between recovery probes."""
PATIENCE = 1.0
"""Seconds of patience with a fault that the catalogue gives longer ones."""
FOREVER = 60.0
"""Seconds after which something that was waited for counts as waiting forever."""
NOTICED = 1.0
"""Seconds in which it is noticed that a process has ended."""
SPOILED = b"gpus: [this is no machine"


class Broken(Exception):
    """An invariant does not hold."""


class Site:
    """One node. `check` is called while something is waited for, and raises what has broken meanwhile."""

    def __init__(self, root: Path, seed: int, check: Callable[[], None]) -> None:
        self.root, self.check = root, check
        (root / "config.yaml").write_bytes(msgspec.json.encode(_configuration()))
        self.kubelet = Kubelet(root / "k", seed=seed)
        self.agent = Agent(
            "--machine", root / "machine.yaml", "--config", root / "config.yaml",
            "--kubelet-root", root / "k", "--state-dir", root / "s",
        )  # fmt: skip
        self.spoiled, self.mark = False, 0

    def write(self, file: MachineFile | None) -> None:
        """Replace the machine file, with a mark by which it is known when the agent has seen it; None: spoil it."""
        self.spoiled, content = file is None, SPOILED
        if file is not None:
            self.mark += 1
            content = msgspec.json.encode(file.but(insecure_files={f"/mark/{self.mark}": "a mark"}))
        aside = self.root / "machine.new"
        aside.write_bytes(content)
        aside.replace(self.root / "machine.yaml")

    async def within(self, waiting: Awaitable[R], what: str) -> R:
        """What comes of something that must come. Raises Broken."""
        return await within(waiting, what)

    async def wish(self, wish: ControlRequest) -> None:
        """Something that a person wants of the agent. Raises Broken where that does not take it, or has ended."""
        try:
            answer = await self.within(ask(self.root / "s", wish), f"an answer to {type(wish).__name__}")
        except (OSError, msgspec.DecodeError) as error:
            await asyncio.sleep(NOTICED)
            self.check()
            raise Broken(f"{wish}: no answer: {error}") from None
        if answer.error:
            raise Broken(f"{wish}: {answer.error}")

    async def shows(self, ready: Callable[[NodeState], bool], what: str) -> None:
        """Wait until the agent's own picture shows something."""

        async def asking() -> None:
            while True:
                self.check()
                with suppress(OSError, msgspec.DecodeError):
                    picture = (await ask(self.root / "s", GetNodeState())).state
                    if picture is not None and ready(picture):
                        return
                await asyncio.sleep(0.05)

        await self.within(asking(), what)

    async def seen(self) -> None:
        """Wait until the agent has seen the newest version of the machine file."""
        await self.shows(self._sees, f"the agent to see version {self.mark} of the machine file")

    async def known(self) -> None:
        """Wait until the agent has heard of all pods that hold anything."""
        await self.shows(self._knows, "the agent to know which pods run")

    def _sees(self, picture: NodeState) -> bool:
        machine, statuses = picture.snapshot.machine, picture.snapshot.statuses
        marked = machine is not None and f"/mark/{self.mark}" in machine.insecure_files
        if not self.spoiled:
            return marked
        found = (statuses.of(MACHINE_FILE_PART), statuses.of(DRIVER_PART))
        return (marked or machine is None) and any(each is not None and each.state == "failing" for each in found)

    def _knows(self, picture: NodeState) -> bool:
        held = {
            each.holder.pod_name_or_uid for each in picture.snapshot.allocations or () if each.holder.identifies_pod
        }
        uids = {place.uid for place in self.kubelet.devices.allocated}
        return {key for key, each in self.kubelet.pods.items() if each.pod.uid in uids} <= held


async def within(waiting: Awaitable[R], what: str) -> R:
    """What comes of something that must come. Raises Broken."""
    try:
        async with asyncio.timeout(FOREVER):
            return await waiting
    except TimeoutError:
        raise Broken(f"waited {FOREVER:g} s for {what}") from None


async def ask(directory: Path, wish: ControlRequest) -> ControlResponse:
    """The answer of the agent with this state directory. Raises OSError and msgspec.DecodeError."""
    reader, writer = await asyncio.open_unix_connection(directory / "control.sock", limit=1 << 24)
    try:
        writer.write(msgspec.json.encode(wish) + b"\n")
        return decode(await reader.readline(), ControlResponse)
    finally:
        writer.close()


def _configuration() -> dict[str, Any]:
    """Shares of whole GPUs, MIG devices by their names, and a health that is quick."""
    patient = [code for code, entry in CATALOGUE.items() if entry.grace_period > PATIENCE]
    return {
        "version": "v1",
        "flags": {"migStrategy": "mixed"},
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": SHARES}]}},
        "health": {
            "probePeriod": f"{PERIOD * 1000:.0f}ms",
            "faults": {code: {"gracePeriod": f"{PATIENCE * 1000:.0f}ms"} for code in patient},
        },
    }
