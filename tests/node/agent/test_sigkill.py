"""A real agent that is killed, again and again, while faults come and go: kubelet ends up with what is true.

The machine file is edited live, drains are asked for on the control socket. What has to be so is kept by a few rules
of the test's own (`Truth`). In each round every GPU is changed at most once, so that what a look or the kernel log can
still show decides; the round ends when kubelet has been shown all of it, and it is on disk. In no list on the way may a
device be healthy that was ill and is, or ill that was well and is: neither is forgotten, or made up.
"""

import asyncio
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuplane.node.core.ledger import is_ledger_stored
from gpuplane.node.model.control import ControlRequest, ControlResponse, DrainDevice, GetNodeState, RestoreDevice
from gpuplane.node.model.encoding import decode
from gpuplane.node.model.machine import Fault, Gpu, GpuProcess, Incident, MachineFile
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.lengths import length
from tests.node.core.health.world import machine

LIVES, KILLS = length(2, 5), length(6, 100)
"""Machines, and how often the agent of each is killed."""
PERIOD = "50ms"
GPUS = 6  # the first has two MIG devices
SHOWN = ("gpu-lost", "fabric-failed", "recovery-reset", "node-missing")
PID = 4711


class Truth:
    """What is wrong with each GPU and MIG device, by their names in the machine file ("1", "0:1")."""

    def __init__(self) -> None:
        self.shown: dict[str, str] = {}  # what a look shows
        self.broken = set[str]()  # an XID after which only a reset helps
        self.running = set[str]()  # an XID, and the process that it befell goes on
        self.drained = set[str]()

    def ill(self) -> set[str]:
        """The ids that may not be given out."""
        wrong = {*self.shown, *self.broken, *self.running, *self.drained}
        return {id for id, name in ids().items() if name in wrong or name.partition(":")[0] in wrong}

    def copy(self) -> "Truth":
        """As it is now."""
        other = Truth()
        other.shown = dict(self.shown)
        other.broken, other.running, other.drained = set(self.broken), set(self.running), set(self.drained)
        return other


def ids() -> dict[str, str]:
    """What kubelet calls a device → what the machine file does."""
    return {"MIG-0-0": "0:0", "MIG-0-1": "0:1", **{f"GPU-{index}": str(index) for index in range(1, GPUS)}}


class Place:
    """A node: a kubelet, a machine file, and the agent between them."""

    def __init__(self, root: Path, kubelet: Kubelet, seed: int) -> None:
        self.root, self.kubelet, self.random = root, kubelet, random.Random(seed)
        self.truth = self.before = Truth()
        self.incidents: list[Incident] = []
        self.wrong: list[str] = []
        self.done: list[str] = []
        self.kills = 0
        (root / "config.yaml").write_text(f"version: v1\nhealth: {{probePeriod: {PERIOD}}}\n")
        self.write()
        self.agent = Agent(
            "--machine", root / "machine.yaml", "--config", root / "config.yaml", "--mig-strategy", "mixed",
            "--kubelet-root", kubelet.root, "--state-dir", root / "s",
        )  # fmt: skip
        kubelet.manager.on_list = self.heard

    def write(self) -> None:
        """The machine file, as an editor replaces it."""
        truth = self.truth
        gpus = tuple(self.described(gpu) for gpu in machine(GPUS, parts=[0]).gpus or ())
        processes = tuple(GpuProcess(gpu=int(name.partition(":")[0]), pid=PID) for name in sorted(truth.running))
        file = MachineFile(gpus=gpus, incidents=tuple(self.incidents), processes=tuple(dict.fromkeys(processes)))
        aside = self.root / "machine.new"
        aside.write_bytes(msgspec.yaml.encode(file))
        aside.replace(self.root / "machine.yaml")

    def described(self, gpu: Gpu) -> Gpu:
        """A GPU with what is shown of it."""
        assert gpu.mig is not None
        parts = (part.but(faults=self.faults(f"{gpu.index}:{part.mig_index}")) for part in gpu.mig.devices)
        return gpu.but(faults=self.faults(str(gpu.index)), mig=gpu.mig.but(devices=tuple(parts)))

    def faults(self, name: str) -> tuple[Fault, ...]:
        code = self.truth.shown.get(name)
        return (Fault(code=code, message="described"),) if code else ()

    def heard(self, resource: str) -> None:
        """What kubelet is shown may be as it was before the round or as it will be after it."""
        before, after = self.before.ill(), self.truth.ill()
        for id, health in self.kubelet.devices.resources[resource].last_list.items():
            if id in before & after and health == "Healthy":
                self.wrong.append(f"{id} is ill, and was shown as healthy")
            if id not in before | after and health != "Healthy":
                self.wrong.append(f"{id} is well, and was shown as ill")

    # what happens

    def happens(self) -> Iterator[Callable[[], None]]:
        """Edits of the machine file, each of another GPU."""
        for index in self.random.sample(range(GPUS), self.random.randint(1, 3)):
            part = f"0:{self.random.randrange(2)}" if index == 0 and self.random.random() < 0.6 else str(index)
            yield lambda index=index, part=part: self.happen(str(index), part)  # type: ignore[misc]

    def happen(self, whole: str, part: str) -> None:
        """Something ails a GPU or a MIG device of it, or ails it no more."""
        truth = self.truth
        running = {name for name in truth.running if name.partition(":")[0] == whole}
        shown = next((name for name in (part, whole) if name in truth.shown), None)
        self.done.append(f"{part} changes")
        if running:
            truth.running -= running
        elif shown is not None:
            if truth.shown.pop(shown) in ("gpu-lost", "recovery-reset"):
                truth.broken.discard(whole)  # it has been reset
        elif self.random.random() < 0.5:
            truth.shown[part] = "node-missing" if ":" in part else self.random.choice(SHOWN)
        elif self.random.random() < 0.6:
            truth.broken.add(whole)
            self.incidents.append(Incident(gpu=int(whole), code=self.random.choice(("xid-79", "xid-119", "xid-95"))))
        else:
            truth.running.add(part)
            instance = int(part.partition(":")[2]) + 1 if ":" in part else None
            self.incidents.append(Incident(gpu=int(whole), code="xid-94", gpu_instance=instance, pids=(PID,)))
        self.write()

    async def speak(self) -> None:
        """A person drains a device, or restores it, and says so again to the next agent where none answered."""
        truth, name = self.truth.copy(), self.random.choice(list(ids().values()))
        if name in truth.drained or name in truth.broken:
            truth.drained.discard(name)
            truth.broken.discard(name)
            wish: ControlRequest = RestoreDevice(requested_at=0.0, device=name)
        else:
            truth.drained.add(name)
            wish = DrainDevice(requested_at=0.0, device=name, seconds=None, reason="a new fan")
        self.done.append(f"{type(wish).__name__} {name}")
        self.truth = truth
        await self.until(lambda: self.asked(wish) is not None)

    def asked(self, request: ControlRequest) -> ControlResponse | None:
        """The agent's answer; None where none comes, or one that is none."""
        if not isinstance(request, GetNodeState):
            request = request.but(requested_at=time.clock_gettime(time.CLOCK_BOOTTIME))
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(5)
                connection.connect(str(self.root / "s/control.sock"))
                connection.sendall(msgspec.json.encode(request) + b"\n")
                with connection.makefile("rb") as stream:
                    answer = decode(stream.read(), ControlResponse)
        except (OSError, msgspec.DecodeError):
            return None
        return None if answer.error else answer

    async def until(self, ready: Callable[[], bool], seconds: float = 60.0) -> None:
        """Something of the agent's that nobody is told of is so: asked again and again."""
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(ready):
                await asyncio.sleep(0.02)

    # the rounds

    async def round(self) -> None:
        """Some things happen, the agent is killed amid them once or twice, and all comes to be shown and remembered."""
        self.before = self.truth.copy()
        edits, speaking = list(self.happens()), None
        if self.random.random() < 0.3:
            edits, speaking = [], asyncio.create_task(self.speak())
        late = edits[1:] if self.random.random() < 0.5 else []
        for edit in edits[: len(edits) - len(late)]:
            edit()
        for moment in (0.8, 0.7)[: self.random.randint(1, 2)]:
            await asyncio.sleep(self.random.uniform(0.0, moment))
            await self.agent.kill()
            self.kills += 1
            self.done.append("SIGKILL")
            for edit in late:
                edit()
            late = []
            await self.agent.start()
        if speaking is not None:
            await speaking
        await self.settled()

    def shown(self) -> bool:
        """Whether kubelet has what is so."""
        view = {id: health for devices in self.kubelet.device_health().values() for id, health in devices.items()}
        ill = self.truth.ill()
        return view == {id: "Unhealthy" if id in ill else "Healthy" for id in ids()}

    def remembered(self) -> bool:
        """Whether the agent has it on disk."""
        answer = self.asked(GetNodeState())
        return answer is not None and answer.state is not None and is_ledger_stored(answer.state.snapshot)

    async def settled(self) -> None:
        """Kubelet comes to be shown what is so, and it is on disk. Raises AssertionError with what happened."""
        try:
            await self.kubelet.until(self.shown)
            await self.until(self.remembered)
        except TimeoutError:
            told = f"ill {sorted(self.truth.ill())}\nshown {self.kubelet.device_health()}\nafter {self.done[-12:]}"
            raise AssertionError("\n".join([told, *self.agent.log[-30:]])) from None
        assert self.wrong == []


@pytest.mark.timeout(length(300, 3000))
@pytest.mark.parametrize("life", range(LIVES))
async def test_kubelet_is_shown_what_is_so_however_often_the_agent_is_killed(
    tmp_path: Path, life: int, seed: int
) -> None:
    """A machine a life."""
    async with Kubelet(tmp_path / "k") as kubelet:
        place = Place(tmp_path, kubelet, seed)
        async with place.agent:
            await place.settled()
            while place.kills < KILLS:
                await place.round()
