"""The play: an agent as a process, an embedded kubelet, and the plan carried out on them, with everything checked.

While anything happens, each list that kubelet gets is checked: no device that nothing has befallen may be unhealthy,
and none that is ill may be healthy. After each burst kubelet must be shown what the oracle says, in the time that it
allows. Whatever does not hold raises `Broken`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress

from gpuplane.node.core.ledger import is_ledger_stored
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.control import DrainDevice, NodeState, RestoreDevice
from gpuplane.node.model.machine import MachineFile
from gpuplane.sandbox.kubelet import Container, Pod, PodRejected
from gpuplane.sandbox.kubelet.endpoint import Endpoint
from gpuplane.sandbox.scratch import Scratch
from tests.chaos import oracle
from tests.chaos.belief import Belief
from tests.chaos.checks import contradiction, given_too_often, holders, shown
from tests.chaos.memory import Memory
from tests.chaos.plan import bursts, prepared
from tests.chaos.site import PATIENCE, PERIOD, SHARES, Broken, Site
from tests.chaos.steps import (
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
    told,
)
from tests.chaos.story import TOLD, story

MARGIN = 10.0
"""Seconds that anything may take beyond what the rules allow: this machine may be busy."""
SETTLING = 30.0
"""Seconds in which kubelet is shown everything again after it or the agent was restarted."""
WRITTEN = "the agent to store its state in the state directory"


class Chaos:
    """One play, on a machine, for so many seconds."""

    def __init__(self, machine: MachineFile, seed: int, seconds: float) -> None:
        self.seed, self.seconds = seed, seconds
        self.plan = bursts(machine, seed)
        self.file = prepared(machine)
        self.before = self.after = self.settled = Belief(self.file, frozenset(), PERIOD, PATIENCE)
        self.injections, self.checks = Counter[str](), Counter[str]()
        self.steps = list[str]()
        self.memory = Memory()
        self.bursts = self.pod = 0
        self.broken = ""
        self.ids: dict[tuple[str, str], str] = {}  # (resource, id) → unit, of all that was ever shown
        self.heard: dict[str, Endpoint] = {}  # whose list of a resource came last
        self.began, self.disturbed = time.monotonic(), 0.0
        self.killing = False
        self.read = 0  # lines of the agent's log

    async def play(self) -> AsyncIterator[int]:
        """The play: the number of each burst once it is over. Raises Broken, with the story."""
        with Scratch() as directory:
            self.site = Site(directory, self.seed, self._check)
            self.kubelet, self.agent = self.site.kubelet, self.site.agent
            self.kubelet.manager.on_list = self._listed
            self._write(self.file)
            self.began = self.disturbed = time.monotonic()
            try:
                async with self.kubelet, self.agent:
                    async for number in self._bursts():
                        yield number
            except (Broken, TimeoutError) as broken:
                raise Broken(story(str(broken), self.steps, self.agent.log)) from None

    async def _bursts(self) -> AsyncIterator[int]:
        await self.site.seen()
        await self.site.shows(self._offers, "the agent to offer anything")
        self._believe(oracle.saw(self.before, self.file, {}, time.monotonic()))
        await self._quiet()
        for burst in self.plan:
            if time.monotonic() - self.began > self.seconds:
                break
            self.bursts += 1
            await self._burst(burst)
            yield self.bursts
        self.memory.check(Broken)

    # what is done

    async def _burst(self, burst: Burst) -> None:
        for turn in burst:
            await self._turn(turn)
            await asyncio.sleep(turn.pause)
        await self._quiet()

    async def _turn(self, turn: Turn) -> None:
        self._say(told(turn))
        asides = [asyncio.create_task(self._aside(each, turn)) for each in turn.asides]
        try:
            await self._step(turn.step)
            for task in asides:
                await self.site.within(task, f"the steps that run at the same time as {told(turn)!r}")
        finally:
            for task in asides:
                task.cancel()
            await asyncio.gather(*asides, return_exceptions=True)
        self._ran(any(isinstance(each, KubeletRestart) for each in turn.asides))
        if any(isinstance(each, Run) for each in turn.asides):
            await self.site.known()
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
                await self.site.wish(
                    DrainDevice(requested_at=_boottime(), device=device, seconds=seconds, reason="chaos")
                )
                self._believe(oracle.drained(self.before, device, None if seconds is None else now + seconds))
            case Restore(device):
                self.injections["restore"] += 1
                self._expect(oracle.restored(self.before, device, now))
                await self.site.wish(RestoreDevice(requested_at=_boottime(), device=device))
                self._believe(oracle.restored(self.before, device, time.monotonic()))
            case End(place):
                if pods := sorted(self.kubelet.pods):
                    self.injections["pod ended"] += 1
                    await self.kubelet.end(pods[int(place * len(pods))])
            case Nothing():
                pass

    async def _edit(self, edit: Edit) -> None:
        self.injections.update(edit.kinds)
        held = holders(self.kubelet)
        if edit.file is not None:
            self._expect(oracle.saw(self.before, edit.file, held, time.monotonic()))
        self._write(edit.file)
        await self.site.seen()
        if edit.file is not None:
            self._believe(oracle.saw(self.before, edit.file, held, time.monotonic()))

    async def _die(self, death: Death) -> None:
        """Killed: it may have seen the edit before or not, and sees the last of those after when it comes back. What
        it was shown before that is on disk."""
        self.injections["agent killed"] += 1
        await self.site.shows(lambda picture: is_ledger_stored(picture.snapshot), WRITTEN)
        held, last = holders(self.kubelet), self.file
        if death.before is not None and death.before.file is not None:
            self.injections.update(death.before.kinds)
            last = death.before.file
            self._expect(oracle.saw(self.before, last, held, time.monotonic()))
            self._write(last)
        await asyncio.sleep(death.after)
        self.killing = True
        await self.site.within(self.agent.kill(), "the agent to be killed")
        for edit in death.during:
            assert edit.file is not None
            self.injections.update(edit.kinds)
            last = edit.file
            self._write(last)
        self.memory.died()
        self._scan()
        began = oracle.started(self.before)
        if not self.site.spoiled:
            began = oracle.saw(began, last, held, time.monotonic(), sure=False)
        self._expect(began)
        await self.agent.start()
        self.killing, self.disturbed = False, time.monotonic()
        await self.site.seen()
        began = oracle.started(self.before)
        self._believe(began if self.site.spoiled else oracle.saw(began, last, held, time.monotonic(), sure=False))

    async def _aside(self, aside: Aside, turn: Turn) -> None:
        match aside:
            case Run():
                await self._run(aside, turn)
            case KubeletRestart():
                self.injections["kubelet restart"] += 1
                await self.kubelet.restart()
                self.disturbed = time.monotonic()
            case LostStreams():
                self.injections["lost streams"] += 1
                await self.kubelet.drop_streams()
                self.disturbed = time.monotonic()

    async def _run(self, run: Run, turn: Turn) -> None:
        resources = sorted(self.kubelet.device_health())
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
        except PodRejected as rejected:
            self.kubelet.workers.rejected_pods.pop(wanted.key, None)
            disturbed = isinstance(turn.step, Death) or len(turn.asides) > 1 or not self.before.counted
            ids = [id for call in self.kubelet.trace[calls:] if call.method == "Allocate" for id in call.ids]
            touched = any(belief.touched(unit_of(id)) for id in ids for belief in (self.before, self.after))
            for_want = any(each in str(rejected) for each in ("devices unavailable", "no healthy devices"))
            settled = time.monotonic() > self.disturbed + SETTLING
            if not (disturbed or touched or (for_want and not ids) or (not ids and not settled)):
                raise Broken(
                    f"a pod was refused although nothing had happened to {ids or 'this node'}: {rejected}"
                ) from None
            self.checks["pods refused"] += 1

    def _ran(self, restarted: bool) -> None:
        self._believe(oracle.ran(self.before, frozenset(self.kubelet.pods), restarted, time.monotonic()))

    def _write(self, file: MachineFile | None) -> None:
        self.file = file or self.file
        self.site.write(file)

    # what is waited for

    def _offers(self, picture: NodeState) -> bool:
        """What a configuration leaves out is known once there is an offer."""
        self._believe(self.before.but(left=frozenset(each.unit for each in picture.offer.not_offered)))
        return not picture.offer.waiting_reason

    async def _quiet(self) -> None:
        """Wait until kubelet is shown what the oracle says, and everything is written down."""
        while wrong := self._wrong():
            self._check()
            late = [f"{unit} {problem}" for unit, (problem, due) in wrong.items() if time.monotonic() > due]
            if late:
                raise Broken(f"kubelet is shown a wrong state: {'; '.join(late)}")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    await self.kubelet.changes.next_change()
        await self.site.shows(lambda picture: is_ledger_stored(picture.snapshot), WRITTEN)
        if not self._wrong():
            self._believe(oracle.confirmed(self.before, shown(self.kubelet, self.heard), time.monotonic()))
            self.settled = self.before
        self._check()
        if problem := given_too_often(self.kubelet, SHARES):
            raise Broken(problem)
        self.checks["quiet moments"] += 1
        with suppress(FileNotFoundError, ProcessLookupError):
            self.memory.sample(self.agent.process.pid, time.monotonic())
        del self.kubelet.trace[:-1000]

    def _wrong(self) -> dict[str, tuple[str, float]]:
        """unit → (what is wrong with what kubelet is shown of it, by when it has to be right)."""
        view, now, wrong = shown(self.kubelet, self.heard), time.monotonic(), dict[str, tuple[str, float]]()
        belief, settled = self.before, self.disturbed + SETTLING
        units = belief.units()
        for unit in units:
            verdict, health = belief.verdict(unit, now), view.get(unit, "absent")
            if not belief.counted:
                if health == "Healthy":
                    wrong[unit] = "is Healthy, but the agent has not seen it", settled
            elif health not in ("Healthy", "Unhealthy") or verdict not in ("either", health):
                problem = f"is {health}, not {verdict} ({belief.told(unit)})"
                wrong[unit] = problem, max(belief.due(unit) + MARGIN, settled)
        wrong |= {
            unit: ("is Healthy, but the machine no longer has it", settled)
            for unit, health in view.items()
            if unit not in units and health in ("Healthy", "mixed")  # what has no stream is remembered for a while
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
        now, beliefs = time.monotonic(), (self.settled, self.before, self.after)
        if endpoint := self.kubelet.manager.endpoints.get(resource):
            self.heard[resource] = endpoint
        said = self.kubelet.devices.resources[resource].last_list
        problems = []
        for id, health in said.items():
            unit = self.ids[resource, id] = unit_of(id)
            if problem := contradiction(unit, health, beliefs, now):
                problems.append(f"{id} as {health}: {problem} ({self.before.told(unit)})")
        for (name, id), unit in self.ids.items():
            if name == resource and id not in said and all(unit in belief.units() for belief in beliefs):
                problems.append(f"a list without {id}, although the machine has this device")
        self.broken = self.broken or (f"kubelet was shown {'; '.join(problems)}" if problems else "")

    def _check(self) -> None:
        """What must hold at any moment."""
        if self.broken:
            raise Broken(self.broken)
        if not self.killing and self.agent.process.returncode is not None:
            raise Broken(f"the agent has ended by itself, with status {self.agent.process.returncode}")
        self._scan()
        if aside := sorted(self.site.root.glob("s/*.unreadable")):
            raise Broken(f"a state file was set aside as unreadable: {aside[0].name}")

    def _scan(self) -> None:
        """The agent's log has no traceback."""
        for line in self.agent.log[self.read :]:
            if "Traceback" in line:
                raise Broken(f"a traceback in the agent's log: {line}")
        if len(self.agent.log) > 10 * TOLD:
            del self.agent.log[: -2 * TOLD]
        self.read = len(self.agent.log)

    def _say(self, told: str) -> None:
        self.steps.append(f"{time.monotonic() - self.began:8.2f} s  burst {self.bursts}: {told}")


def _boottime() -> float:
    """The agent's clock, by which it tells a wish whose sender has given up."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
