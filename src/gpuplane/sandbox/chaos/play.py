"""The play: an agent as a process, an embedded kubelet, and the plan carried out on them, with everything checked.

While anything happens, each list that kubelet gets is checked: no device that nothing has befallen may be unhealthy,
and none that is ill may be healthy. After each burst kubelet must be shown what the oracle says, in the time that it
allows. Whatever does not hold raises `Broken`.
"""

import asyncio
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuplane.core.health.catalogue import CATALOGUE
from gpuplane.core.ledger import stored
from gpuplane.core.resources.sharing import base
from gpuplane.model.control import Answer, Ask, DrainDevice, Picture, RestoreDevice, Show
from gpuplane.model.machine import Device, MachineFile
from gpuplane.model.value import Value
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.chaos import oracle
from gpuplane.sandbox.chaos.memory import Memory
from gpuplane.sandbox.chaos.oracle import Belief
from gpuplane.sandbox.chaos.plan import (
    Aside,
    Burst,
    Death,
    Drain,
    Edit,
    End,
    KubeletRestart,
    LostStreams,
    Nothing,
    Restore,
    Run,
    Step,
    Turn,
    bursts,
    prepared,
)
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, Rejected

R = TypeVar("R")
Ready = Callable[[Picture], bool]

SHARES = 2
"""Shares of each whole GPU."""
PATIENCE = 1.0
"""Seconds of patience with a fault that the catalogue gives longer ones."""
MARGIN = 10.0
"""Seconds that anything may take beyond what the rules allow: this machine may be busy."""
SETTLING = 30.0
"""Seconds in which kubelet is shown everything again after it or the agent was restarted."""
FOREVER = 60.0
"""Seconds after which something that was waited for counts as waiting forever."""
TOLD = 60
"""Steps, and lines of the log, that a story ends with."""
SPOILED = b"gpus: [this is no machine"


class Broken(Exception):
    """An invariant does not hold."""


class Moment(Value):
    """How far the play has come."""

    burst: int
    seconds: float
    checks: int  # lists that kubelet was shown
    did: str


class Summary(Value):
    """What came of a play. Memory in KiB: of the first agent once it was warm, and of the last one."""

    machine: str
    seed: int
    minutes: float
    bursts: int
    injections: Mapping[str, int]
    codes: int  # of the fault catalogue that were seen
    checks: Mapping[str, int]
    agent_restarts: int
    kubelet_restarts: int
    memory_begin: int
    memory_end: int
    memory_per_minute: float
    slowest_recovery: float  # seconds, of those with no relapse
    broken: str = ""
    steps: tuple[str, ...] = ()  # the last ones, where something broke
    log: tuple[str, ...] = ()  # of the agent, then


class Chaos:
    """One play. `machine` is its name, `described` what it is like."""

    def __init__(self, machine: str, described: MachineFile, seed: int, minutes: float, period: float) -> None:
        self.machine, self.seed, self.minutes, self.period = machine, seed, minutes, period
        self.plan = bursts(described, seed)
        self.file = prepared(described)
        self.before = self.after = self.settled = Belief(self.file, frozenset(), period, PATIENCE)
        self.injections, self.checks, self.codes = Counter[str](), Counter[str](), set[str]()
        self.steps = deque[str](maxlen=TOLD)
        self.memory = Memory()
        self.agent_restarts = self.kubelet_restarts = self.bursts = self.mark = self.pod = 0
        self.slowest = 0.0
        self.broken = self.last = ""
        self.healthy: dict[str, float] = {}  # since when a unit is shown healthy
        self.began = self.disturbed = 0.0
        self.killing = self.spoiled = False
        self.read = 0  # lines of the agent's log

    async def play(self) -> AsyncIterator[Moment]:
        """The play, burst by burst. Raises Broken."""
        with tempfile.TemporaryDirectory(prefix="gpuplane-") as directory:
            self.root = Path(directory)
            (self.root / "config.yaml").write_bytes(msgspec.json.encode(_configuration(self.period)))
            self._write(self.file)
            self.kubelet = Kubelet(self.root / "k", seed=self.seed)
            self.kubelet.manager.heard = self._listed
            self.agent = Agent(
                "--machine", self.root / "machine.yaml", "--config", self.root / "config.yaml",
                "--kubelet-root", self.root / "k", "--state-dir", self.root / "s",
            )  # fmt: skip
            self.began = self.disturbed = time.monotonic()
            async with self.kubelet, self.agent:
                try:
                    async for moment in self._bursts():
                        yield moment
                except (Broken, TimeoutError) as broken:
                    self.broken = str(broken)
                    raise Broken(self.broken) from None

    async def _bursts(self) -> AsyncIterator[Moment]:
        await self._seen()
        await self._asked(self._offers, "the agent to offer anything")
        self._believe(oracle.saw(self.before, self.file, {}, time.monotonic()))
        await self._quiet()
        for burst in self.plan:
            if time.monotonic() - self.began > self.minutes * 60:
                break
            self.bursts += 1
            await self._burst(burst)
            yield Moment(self.bursts, time.monotonic() - self.began, self.checks["lists"], self.last)
        self.memory.check(Broken)

    def summary(self) -> Summary:
        """What has come of it so far."""
        return Summary(
            machine=self.machine,
            seed=self.seed,
            minutes=round((time.monotonic() - self.began) / 60, 2),
            bursts=self.bursts,
            injections=dict(sorted(self.injections.items())),
            codes=len(self.codes),
            checks=dict(sorted(self.checks.items())),
            agent_restarts=self.agent_restarts,
            kubelet_restarts=self.kubelet_restarts,
            memory_begin=self.memory.begin,
            memory_end=self.memory.end,
            memory_per_minute=round(self.memory.per_minute(), 1),
            slowest_recovery=round(self.slowest, 2),
            broken=self.broken,
            steps=tuple(self.steps) if self.broken else (),
            log=tuple(self.agent.log[-TOLD:]) if self.broken else (),
        )

    # what is done

    async def _burst(self, burst: Burst) -> None:
        for turn in burst:
            await self._turn(turn)
            await asyncio.sleep(turn.pause)
        await self._quiet()

    async def _turn(self, turn: Turn) -> None:
        self._say(_told(turn))
        asides = [asyncio.create_task(self._aside(each, turn)) for each in turn.asides]
        try:
            await self._step(turn.step)
            for task in asides:
                await self._within(task, f"what came beside {_told(turn)!r}")
        finally:
            for task in asides:
                task.cancel()
            await asyncio.gather(*asides, return_exceptions=True)
        self._ran(any(isinstance(each, KubeletRestart) for each in turn.asides))
        if any(isinstance(each, Run) for each in turn.asides):
            await self._asked(self._knows_pods, "the agent to hear which pods run")
        self._check()

    async def _step(self, step: Step) -> None:
        now = time.monotonic()
        match step:
            case Edit():
                await self._edit(step)
            case Death():
                await self._die(step)
            case Drain(device, seconds):
                self.injections["drain"] += 1
                self._expect(oracle.drained(self.before, device, None if seconds is None else now + seconds))
                await self._ask(DrainDevice(at=_boottime(), device=device, seconds=seconds, why="chaos"))
                self._believe(oracle.drained(self.before, device, None if seconds is None else now + seconds))
            case Restore(device):
                self.injections["restore"] += 1
                self._expect(oracle.restored(self.before, device, now))
                await self._ask(RestoreDevice(at=_boottime(), device=device))
                self._believe(oracle.restored(self.before, device, time.monotonic()))
            case End(place):
                if pods := sorted(self.kubelet.pods):
                    self.injections["pod ended"] += 1
                    await self.kubelet.end(pods[int(place * len(pods))])
            case Nothing():
                pass

    async def _edit(self, edit: Edit) -> None:
        self._count(edit)
        if edit.file is None:
            self._write(None)
            await self._seen()
            return
        holders = self._holders()
        self._expect(oracle.saw(self.before, edit.file, holders, time.monotonic()))
        self._write(edit.file)
        await self._seen()
        self._believe(oracle.saw(self.before, edit.file, holders, time.monotonic()))

    async def _die(self, death: Death) -> None:
        """Killed: it may have seen the edit before or not, and sees the last of those after when it comes back."""
        self.injections["agent killed"] += 1
        holders, last = self._holders(), self.file
        if death.before is not None and death.before.file is not None:
            self._count(death.before)
            last = death.before.file
            self._expect(oracle.saw(self.before, last, holders, time.monotonic()))
            self._write(last)
        await asyncio.sleep(death.after)
        self.killing = True
        await self._within(self.agent.kill(), "the agent to be killed")
        for edit in death.during:
            assert edit.file is not None
            self._count(edit)
            last = edit.file
            self._write(last)
        self.memory.died()
        self._scan()
        began = oracle.started(self.before)
        if not self.spoiled:
            began = oracle.saw(began, last, holders, time.monotonic(), sure=False)
        self._expect(began)
        await self.agent.start()
        self.killing, self.disturbed = False, time.monotonic()
        self.agent_restarts += 1
        await self._seen()
        began = oracle.started(self.before)
        self._believe(began if self.spoiled else oracle.saw(began, last, holders, time.monotonic(), sure=False))

    async def _aside(self, aside: Aside, turn: Turn) -> None:
        match aside:
            case Run():
                await self._run(aside, turn)
            case KubeletRestart():
                self.injections["kubelet restart"] += 1
                self.kubelet_restarts += 1
                await self.kubelet.restart()
                self.disturbed = time.monotonic()
            case LostStreams():
                self.injections["lost streams"] += 1
                await self.kubelet.drop_streams()
                self.disturbed = time.monotonic()

    async def _run(self, run: Run, turn: Turn) -> None:
        resources = sorted(self.kubelet.view())
        if not resources:
            return
        self.injections["pod"] += 1
        self.pod += 1
        resource = resources[int(run.place * len(resources))]
        wanted = Pod(f"chaos-{self.pod}", (Container("main", {resource: run.count}),))
        calls = len(self.kubelet.trace)
        try:
            await self.kubelet.run(wanted)
            self.checks["pods admitted"] += 1
        except Rejected as rejected:
            self.kubelet.workers.failed.pop(wanted.key, None)
            disturbed = isinstance(turn.step, Death) or len(turn.asides) > 1 or not self.before.counted
            ids = [id for call in self.kubelet.trace[calls:] if call.method == "Allocate" for id in call.ids]
            touched = any(belief.touched(base(id)) for id in ids for belief in (self.before, self.after))
            for_want = any(each in str(rejected) for each in ("devices unavailable", "no healthy devices"))
            settled = time.monotonic() > self.disturbed + SETTLING
            if not (disturbed or touched or (for_want and not ids) or (not ids and not settled)):
                raise Broken(
                    f"a pod was refused though nothing has befallen {ids or 'this node'}: {rejected}"
                ) from None
            self.checks["pods refused"] += 1

    def _ran(self, restarted: bool) -> None:
        self._believe(oracle.ran(self.before, frozenset(self.kubelet.pods), restarted, time.monotonic()))

    def _holders(self) -> dict[str, frozenset[str]]:
        """unit → the pods that hold it."""
        running, found = {each.pod.uid: key for key, each in self.kubelet.pods.items()}, dict[str, set[str]]()
        for place, held in self.kubelet.devices.allocated.items():
            for id in held.ids if place.uid in running else ():
                found.setdefault(base(id), set()).add(running[place.uid])
        return {unit: frozenset(pods) for unit, pods in found.items()}

    def _write(self, file: MachineFile | None) -> None:
        """Replace the machine file, with a mark by which it is known when the agent has seen it."""
        self.spoiled = file is None
        content = SPOILED
        if file is not None:
            self.file, self.mark = file, self.mark + 1
            content = msgspec.json.encode(file.but(devices=(Device(id=str(self.mark), kind="mark"),)))
        aside = self.root / "machine.new"
        aside.write_bytes(content)
        aside.replace(self.root / "machine.yaml")

    # what is waited for

    async def _within(self, waiting: Awaitable[R], what: str, seconds: float = FOREVER) -> R:
        try:
            async with asyncio.timeout(seconds):
                return await waiting
        except TimeoutError:
            raise Broken(f"waited {seconds:g} s for {what}") from None

    async def _ask(self, ask: Ask) -> Answer:
        answer = await self._within(self._answer(ask), f"an answer to {type(ask).__name__}")
        if answer.error:
            raise Broken(f"{ask}: {answer.error}")
        return answer

    async def _answer(self, ask: Ask) -> Answer:
        reader, writer = await asyncio.open_unix_connection(self.root / "s/control.sock", limit=1 << 24)
        try:
            writer.write(msgspec.json.encode(ask) + b"\n")
            return msgspec.json.decode(await reader.readline(), type=Answer)
        finally:
            writer.close()

    async def _asked(self, ready: Ready, what: str) -> None:
        """Wait until the agent's own picture shows something."""

        async def asking() -> None:
            while True:
                self._check()
                with suppress(OSError, msgspec.DecodeError):
                    picture = (await self._answer(Show())).picture
                    if picture is not None and ready(picture):
                        return
                await asyncio.sleep(0.05)

        await self._within(asking(), what)

    def _offers(self, picture: Picture) -> bool:
        """What a configuration leaves out is known once there is an offer."""
        self._believe(self.before.but(left=frozenset(each.unit for each in picture.offer.left)))
        return not picture.offer.waiting

    async def _seen(self) -> None:
        """Wait until a look has shown the newest version of the machine file."""
        await self._asked(self._sees_mark, f"a look at version {self.mark} of the machine file")

    def _sees_mark(self, picture: Picture) -> bool:
        snapshot = picture.snapshot
        if self.spoiled:
            return any(
                (stands := snapshot.conditions.get(part)) is not None and stands.standing == "failing"
                for part in ("machine file", "driver")
            ) and (picture.snapshot.machine is None or self._marked(picture))
        return self._marked(picture)

    def _marked(self, picture: Picture) -> bool:
        machine = picture.snapshot.machine
        return machine is not None and any(each.id == str(self.mark) for each in machine.devices)

    def _knows_pods(self, picture: Picture) -> bool:
        held = {each.pod for each in picture.snapshot.allocations or () if each.pod}
        uids = {place.uid for place in self.kubelet.devices.allocated}
        return {key for key, each in self.kubelet.pods.items() if each.pod.uid in uids} <= held

    async def _quiet(self) -> None:
        """Wait until kubelet is shown what the oracle says, and everything is written down."""
        while wrong := self._wrong():
            self._check()
            late = [f"{unit} {told}" for unit, (told, due) in wrong.items() if time.monotonic() > due]
            if late:
                raise Broken(f"kubelet is shown what is not so: {'; '.join(late)}")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    await self.kubelet.changes.next()
        await self._asked(lambda picture: stored(picture.snapshot), "the state directory to hold what is known")
        if not self._wrong():
            self._measure()
            self._believe(oracle.confirmed(self.before, self._view(), time.monotonic()))
            self.settled = self.before
        self._check()
        self._given_once()
        self.checks["quiet moments"] += 1
        with suppress(FileNotFoundError):
            self.memory.sample(self.agent.process.pid, time.monotonic())
        del self.kubelet.trace[:-1000]

    def _view(self) -> dict[str, str]:
        """unit → its health in kubelet's books; "mixed" where its shares differ."""
        found: dict[str, set[str]] = {}
        for devices in self.kubelet.view().values():
            for id, health in devices.items():
                found.setdefault(base(id), set()).add(health)
        return {unit: healths.pop() if len(healths) == 1 else "mixed" for unit, healths in found.items()}

    def _wrong(self) -> dict[str, tuple[str, float]]:
        """unit → (what is wrong with what kubelet is shown of it, by when it has to be right)."""
        view, now, wrong = self._view(), time.monotonic(), dict[str, tuple[str, float]]()
        belief, settled = self.before, self.disturbed + SETTLING
        units = belief.units()
        for unit in units:
            verdict, shown = belief.verdict(unit, now), view.get(unit, "absent")
            if not belief.counted:
                if shown == "Healthy":
                    wrong[unit] = "is Healthy, and the agent has not seen it", settled
            elif shown == "absent" or (verdict != "either" and verdict != shown):
                wrong[unit] = (
                    f"is {shown}, not {verdict} ({belief.told(unit)})",
                    max(belief.due(unit) + MARGIN, settled),
                )
        wrong |= {
            unit: ("is Healthy, and has gone", settled)
            for unit, health in view.items()
            if unit not in units and health != "Unhealthy"  # kubelet remembers what had no stream for a while
        }
        return wrong

    # what is checked

    def _believe(self, belief: Belief) -> None:
        self.before = self.after = belief

    def _expect(self, belief: Belief) -> None:
        """What will be so, once the agent has seen what is done now."""
        self.after = belief

    def _listed(self, resource: str) -> None:
        """Check what kubelet has just been shown."""
        self.checks["lists"] += 1
        now = time.monotonic()
        for id, health in self.kubelet.devices.resources[resource].said.items():
            if health == "Healthy":
                self.healthy.setdefault(base(id), now)
            else:
                self.healthy.pop(base(id), None)
            problem = contradiction(base(id), health, (self.settled, self.before, self.after), now)
            if problem and not self.broken:
                self.broken = f"kubelet was shown {id} as {health}: {problem} ({self.before.told(base(id))})"

    def _check(self) -> None:
        """What must hold at any moment."""
        if self.broken:
            raise Broken(self.broken)
        if not self.killing and self.agent.process.returncode is not None:
            raise Broken(f"the agent has ended by itself, with status {self.agent.process.returncode}")
        self._scan()
        if aside := sorted(self.root.glob("s/*.unreadable")):
            raise Broken(f"a state file was set aside as unreadable: {aside[0].name}")

    def _scan(self) -> None:
        """The agent's log has no traceback."""
        for line in self.agent.log[self.read :]:
            if "Traceback" in line:
                raise Broken(f"a traceback in the agent's log: {line}")
        if len(self.agent.log) > 10 * TOLD:
            del self.agent.log[: -2 * TOLD]
        self.read = len(self.agent.log)

    def _given_once(self) -> None:
        """No device is given to two pods."""
        running = {each.pod.uid: key for key, each in self.kubelet.pods.items()}
        holders: dict[str, list[str]] = {}
        for place, held in self.kubelet.devices.allocated.items():
            for id in held.ids if place.uid in running else ():
                holders.setdefault(id, []).append(running[place.uid])
        for id, pods in holders.items():
            if len(pods) > 1:
                raise Broken(f"{id} is given to {len(pods)} pods: {', '.join(pods)}")
        for unit, several in self._holders().items():
            if len(several) > SHARES:
                raise Broken(f"{unit} is given to {len(several)} pods, and has {SHARES} shares")

    def _measure(self) -> None:
        """How long a recovery took, at the most: one that is no relapse, where nothing was restarted meanwhile."""
        for unit, keys in self.before.units().items():
            mending = [part for part in map(self.before.part, keys) if part.state == "mending"]
            if mending and unit in self.healthy:
                self.checks["recoveries"] += 1
                eased = max(part.eased for part in mending)
                if eased > self.disturbed and all(part.falls < 2 and not part.tried for part in mending):
                    self.slowest = max(self.slowest, self.healthy[unit] - eased)

    def _count(self, edit: Edit) -> None:
        self.injections.update(edit.kinds)
        if edit.file is not None:
            self.codes |= {code for code in _codes(edit.file) if code in CATALOGUE}

    def _say(self, told: str) -> None:
        self.last = told
        self.steps.append(f"{time.monotonic() - self.began:8.2f} s  burst {self.bursts}: {told}")


def contradiction(unit: str, health: str, beliefs: tuple[Belief, ...], now: float) -> str:
    """Why a device may not be shown so; "" if it may. One of the beliefs holds: that of the last quiet moment, or
    those before and after what is done now."""
    if health == "Unhealthy" and not any(belief.touched(unit) for belief in beliefs):
        return "nothing has befallen it"
    if health == "Healthy" and all(belief.surely_ill(unit, now) for belief in beliefs):
        return "what ails it is not over"
    return ""


def _told(turn: Turn) -> str:
    return "; beside it: ".join(filter(None, (_step_told(turn.step), ", ".join(map(_aside_told, turn.asides)))))


def _step_told(step: Step) -> str:
    match step:
        case Edit(_, what, _):
            return what
        case Death(before, after, during):
            first = f"{before.what}, and {after:.2f} s later " if before else ""
            then = f"; meanwhile {'; '.join(edit.what for edit in during)}" if during else ""
            return f"{first}the agent is killed and started{then}"
        case Drain(device, seconds):
            return f"{device} is drained" + (f" for {seconds:.1f} s" if seconds else "")
        case Restore(device):
            return f"{device} is restored"
        case End():
            return "a pod ends"
        case Nothing():
            return "nothing"


def _aside_told(aside: Aside) -> str:
    match aside:
        case Run(count, _):
            return f"a pod asks for {count}"
        case KubeletRestart():
            return "kubelet restarts"
        case LostStreams():
            return "kubelet loses its streams"


def _codes(file: MachineFile) -> set[str]:
    codes = {fault.code for fault in file.faults} | {incident.code for incident in file.incidents}
    for gpu in file.gpus or ():
        faults = [*gpu.faults, *(fault for device in (gpu.mig.devices if gpu.mig else ()) for fault in device.faults)]
        codes |= {fault.code for fault in faults}
    return codes


def _configuration(period: float) -> dict[str, Any]:
    """Shares of whole GPUs, MIG devices by their names, and a health that is quick."""
    patient = [code for code, entry in CATALOGUE.items() if entry.patience > PATIENCE]
    return {
        "version": "v1",
        "flags": {"migStrategy": "mixed"},
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": SHARES}]}},
        "health": {
            "probePeriod": f"{period * 1000:.0f}ms",
            "faults": {code: {"patience": f"{PATIENCE * 1000:.0f}ms"} for code in patient},
        },
    }


def _boottime() -> float:
    """The agent's clock, by which it tells a wish whose sender has given up."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
