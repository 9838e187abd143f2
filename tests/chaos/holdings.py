"""The play of holdings: whatever is changed, damaged or lost, what a container has is given to no other.

Kubelet's books say what each container got; what that was (a whole GPU, a part of its memory, a MIG device of which
layout) is known from the configuration and the machine at that moment. After each admission `given_twice` looks at all
that is held. At quiet moments all pods end, and then everything has to be offered again. Whatever does not hold raises
`Broken`. That a file of the state directory cannot be read is no news here; a traceback is.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from fractions import Fraction

import msgspec

from gpuplane.node.core.reports.news import READY_TO_TAKE_OVER_TEXT
from gpuplane.node.core.shares import unit_of
from gpuplane.node.model.control import GetNodeState, NodeState
from gpuplane.node.model.machine import MachineFile
from gpuplane.node.model.status import KUBELET_LOCK_PART
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected
from gpuplane.sandbox.scratch import Scratch
from tests.chaos import setups
from tests.chaos.damage import damage, remove, repair
from tests.chaos.given import Given, given_twice
from tests.chaos.site import FOREVER, Broken, ask, within
from tests.chaos.story import story
from tests.chaos.turns import Edits, Round, rounds

ROOM = 3.0
"""Seconds for what was withheld to be offered again, before the story goes on without."""
BOTH = 3.0
"""Seconds for a rival that serves beside the agent to have its list at kubelet: that must not be."""


class Holdings:
    """One play, on a machine, for so many seconds."""

    def __init__(self, machine: MachineFile, seed: int, seconds: float) -> None:
        self.seed, self.seconds = seed, seconds
        self.plan, self.file = rounds(seed), setups.prepared(machine)
        self.setups, self.rivals = setups.setups(self.file.gpus or ()), setups.rival()
        self.setup = self.setups[0]
        self.layouts = {gpu.uuid: setups.OFF for gpu in self.file.gpus or ()}
        self.given: dict[str, Given] = {}  # by the pod's key
        self.injections, self.checks = Counter[str](), Counter[str]()
        self.steps = list[str]()
        self.rounds = self.pods = self.mark = self.others = 0
        self.began = time.monotonic()
        self.agents: dict[str, Agent] = {}  # those that live, and those that end by themselves: name → process
        self.living: list[Agent] = []  # those, and the ones that are being ended
        self.logs = list[str]()  # of agents that are over

    async def play(self) -> AsyncIterator[int]:
        """The play: the number of each round once it is over. Raises Broken, with the story."""
        with Scratch() as self.root:
            self.kubelet = Kubelet(self.root / "k", seed=self.seed)
            self._write()
            self.began = time.monotonic()
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.kubelet)
                stack.push_async_callback(self._leave)
                try:
                    async for number in self._rounds():
                        yield number
                except (Broken, TimeoutError) as broken:
                    logs = (*self.logs, *(line for agent in self.agents.values() for line in agent.log))
                    raise Broken(story(str(broken), self.steps, logs)) from None

    async def _rounds(self) -> AsyncIterator[int]:
        await self._start("agent", "s")
        await self._settled()
        for each in self.plan:
            if time.monotonic() - self.began > self.seconds:
                break
            self.rounds += 1
            await self._round(each)
            yield self.rounds
        await self._quiet()

    # what is done

    async def _round(self, each: Round) -> None:
        await self._make_room()
        self._say("pods come")
        for place in each.come:
            await self._come(place)
        if each.early or each.happening != "death":
            self._edit(each.edits)
        if each.happening != "death":
            await self._settled()
        match each.happening:
            case "death":
                await self._die(each)
            case "rival":
                await self._rival()
            case "successor":
                await self._succeed()
            case "kubelet":
                self._say("kubelet restarts")
                await self.kubelet.restart()
            case "edits":
                pass
        await self._settled()
        await self._fill()
        if each.rival_ends and "rival" in self.agents:
            self._say("the rival is killed")
            await self._kill("rival")
            await self._settled()
            await self._fill()
        self._some_end(each.end)
        if each.quiet:
            await self._quiet()

    def _edit(self, edits: Edits) -> None:
        """Change the machine and the configuration."""
        if edits.layout is not None and (gpu := self._divisible(edits.gpu)):
            layout = setups.another(self.layouts[gpu], edits.layout)
            self._say(f"the MIG layout of {gpu} changes: {layout}")
            self.layouts[gpu] = layout
        if edits.setup is not None:
            among = (edits.akin and setups.akin(self.setup, self.setups)) or self.setups
            self.setup = among[int(edits.setup * len(among))]
            self._say(f"configured: {self.setup.what}")
        self._write()

    def _divisible(self, place: float) -> str:
        """A GPU that can be partitioned, rather one of which something is held; "" for none."""
        able = [gpu.uuid for gpu in self.file.gpus or () if gpu.mig is not None]
        held = sorted({each.gpu for each in self._held()} & set(able))
        among = held or able
        return among[int(place * len(among))] if among else ""

    async def _die(self, each: Round) -> None:
        """The agent is killed and started. Meanwhile its directory suffers, and the world changes."""
        self._say("the agent is killed")
        await self._kill("agent")
        if each.removed:
            self._say("its state directory is removed")
            remove(self.root / "s")
        elif each.lost:
            self._say(f"{' and '.join(each.lost)} {each.how}")
            damage(self.root / "s", each.lost, each.how)
        if not each.early:
            self._edit(each.edits)
        await self._start("agent", "s")

    async def _rival(self) -> None:
        """Another agent comes beside the one that is there, with a state directory and resource names of its own."""
        if "rival" in self.agents:
            return
        self.others += 1
        self._say("a rival agent starts")
        rival = await self._start("rival", f"r{self.others}")
        await self._until(
            lambda: any(READY_TO_TAKE_OVER_TEXT in line for line in rival.log) or self._both(), "the rival to stand by"
        )
        with suppress(TimeoutError):
            await self.kubelet.until(self._both, BOTH if self._both() else 0.05)

    def _both(self) -> bool:
        """Whether kubelet has a list of the rival's."""
        return any(
            _of_rival(name) and known.stopped_at is None for name, known in self.kubelet.devices.resources.items()
        )

    async def _succeed(self) -> None:
        """A new agent comes beside the old one, with the same directory, and the old one is asked to end."""
        self._say("the agent is replaced")
        new = await self._start("successor", "s")
        await self._until(lambda: any(READY_TO_TAKE_OVER_TEXT in line for line in new.log), "the new agent to stand by")
        old = self.agents.pop("agent")
        await within(old.stop(), "the old agent to end")
        self._over(old)
        self.agents["agent"] = self.agents.pop("successor")

    async def _make_room(self) -> None:
        """All pods end where nothing is free, and for a while it is waited until anything is. That may take longer: a
        kubelet that has just started is not believed that a pod has ended."""
        if not any(self._free().values()):
            self._some_end(1.0)
            with suppress(TimeoutError):
                await self.kubelet.until(lambda: any(self._free().values()), ROOM)

    async def _come(self, place: float) -> None:
        """A pod asks for one of a resource."""
        if resources := sorted(name for name, free in self._free().items() if free):
            await self._run(resources[int(place * len(resources))])

    async def _fill(self) -> None:
        """Pods take all that kubelet believes free."""
        self._say("pods take what is free")
        for resource, free in sorted(self._free().items()):
            for _ in range(free):
                if not await self._run(resource):
                    break

    def _free(self) -> dict[str, int]:
        """resource → how many of its devices are healthy, and held by no pod that runs."""
        held = Counter(each.resource for each in self._held() if self._healthy(each))
        return {name: len(known.healthy) - held[name] for name, known in sorted(self.kubelet.devices.resources.items())}

    def _healthy(self, each: Given) -> bool:
        return each.id in self.kubelet.devices.resources[each.resource].healthy

    async def _run(self, resource: str) -> bool:
        self.pods += 1
        pod = Pod(f"chaos-{self.pods}", (Container("main", {resource: 1}),))
        try:
            await within(self.kubelet.run(pod), "a pod to be admitted")
        except PodRejected:
            self.kubelet.workers.rejected_pods.pop(pod.key, None)
            self.checks["pods refused"] += 1
            return False
        self.checks["pods admitted"] += 1
        for id in self.kubelet.devices.held_by(pod.uid, "main").get(resource, ()):
            self.given[pod.key] = self._what(pod.name, resource, id)
        self._check()
        return True

    def _what(self, pod: str, resource: str, id: str) -> Given:
        """What an id is now."""
        unit = unit_of(id)
        gpu = next(uuid for uuid in self.layouts if unit == uuid or unit in self._devices(uuid))
        setup = self.rivals if _of_rival(resource) else self.setup
        part = setup.sizes.get(resource, Fraction(1))
        return Given(pod=pod, resource=resource, id=id, gpu=gpu, layout=self.layouts[gpu], part=part)

    def _devices(self, uuid: str) -> set[str]:
        """The MIG devices that a GPU can have, in any layout."""
        gpu = next(each for each in self.file.gpus or () if each.uuid == uuid)
        cut = (setups.laid_out(gpu, layout).mig for layout in setups.PLACES)
        return {device.uuid for mig in cut if mig for device in mig.devices}

    def _held(self) -> list[Given]:
        """What pods that run hold."""
        self.given = {key: each for key, each in self.given.items() if key in self.kubelet.pods}
        return list(self.given.values())

    def _some_end(self, share: float) -> None:
        for key in sorted(self.kubelet.pods)[: round(share * len(self.kubelet.pods))]:
            self.kubelet.workers.pods.pop(key)
        self.kubelet.changes.notify()

    # processes and files

    async def _start(self, name: str, state: str) -> Agent:
        config = "rival.yaml" if name == "rival" else "config.yaml"
        agent = self.agents[name] = Agent(
            "--machine", self.root / "machine.yaml", "--config", self.root / config,
            "--kubelet-root", self.root / "k", "--state-dir", self.root / state,
        )  # fmt: skip
        await agent.start()
        self.living.append(agent)
        return agent

    async def _kill(self, name: str) -> None:
        agent = self.agents.pop(name)
        if agent.process.returncode is not None:
            raise Broken(f"the {name} has ended by itself, with status {agent.process.returncode}")
        await within(agent.kill(), f"the {name} to be killed")
        self._over(agent)

    def _over(self, agent: Agent) -> None:
        self.living.remove(agent)
        self._scan(agent)
        self.logs.extend(agent.log)

    async def _leave(self) -> None:
        await asyncio.gather(*(agent.kill() for agent in self.living))

    def _write(self) -> None:
        """Replace the machine and the configurations, with a mark by which it is known when an agent has seen them."""
        self.mark += 1
        gpus = tuple(
            gpu if gpu.mig is None else setups.laid_out(gpu, self.layouts[gpu.uuid]) for gpu in self.file.gpus or ()
        )
        machine = self.file.but(gpus=gpus, insecure_files={f"/mark/{self.mark}": "a mark"})
        for name, content in {
            "machine.yaml": machine,
            "config.yaml": setups.marked(self.setup, self.mark),
            "rival.yaml": setups.marked(self.rivals, self.mark),
        }.items():
            aside = self.root / f"{name}.new"
            aside.write_bytes(msgspec.json.encode(content))
            aside.replace(self.root / name)

    # what is waited for, and checked

    async def _settled(self) -> None:
        """Wait until an agent serves kubelet, and works with the newest machine and configuration."""

        async def shown() -> None:
            while not await self._served():
                self._check()
                await asyncio.sleep(0.05)

        await within(shown(), f"an agent to serve kubelet and to see version {self.mark} of machine and configuration")
        await self._until(self._listed, "kubelet to have a list")

    async def _served(self) -> bool:
        for state in {f"r{self.others}" if name == "rival" else "s" for name in self.agents}:
            with suppress(OSError, msgspec.DecodeError):
                picture = (await within(ask(self.root / state, GetNodeState()), "an answer to GetNodeState")).state
                if picture is not None and self._sees(picture):
                    return True
        return False

    def _sees(self, picture: NodeState) -> bool:
        snapshot = picture.snapshot
        lock, settings, machine = snapshot.statuses.of(KUBELET_LOCK_PART), snapshot.config.settings, snapshot.machine
        if lock is None or lock.state != "ok" or settings is None or machine is None:
            return False
        marks = machine.insecure_files, {each.pattern for each in settings.gpus}
        return f"/mark/{self.mark}" in marks[0] and f"mark-{self.mark}" in marks[1] and not picture.offer.waiting_reason

    def _listed(self) -> bool:
        return any(known.stopped_at is None and known.last_list for known in self.kubelet.devices.resources.values())

    async def _quiet(self) -> None:
        """All pods end, nothing is wrong with the directory any longer: all that there is has to be offered."""
        if "rival" in self.agents:
            await self._kill("rival")
        self._some_end(1.0)
        repair(self.root / "s")
        self._say("all is quiet: every pod has ended")
        await self._settled()
        await self._until(lambda: not self._withheld(), "everything to be offered")
        self.checks["quiet moments"] += 1
        self._check()
        del self.kubelet.trace[:-1000]

    def _withheld(self) -> set[str]:
        """The units that kubelet is not shown healthy, with all their shares."""
        units = set[str]()
        for gpu in self.file.gpus or ():
            mig = setups.laid_out(gpu, self.layouts[gpu.uuid]).mig
            units |= {device.uuid for device in mig.devices} if mig and mig.enabled else {gpu.uuid}
        live = [each for each in self.kubelet.devices.resources.values() if each.stopped_at is None]
        ill = {unit_of(id) for each in live for id in each.unhealthy}
        return ill | (units - {unit_of(id) for each in live for id in each.healthy})

    async def _until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for something that must come. Raises Broken."""
        deadline = time.monotonic() + FOREVER
        while not ready():
            self._check()
            if time.monotonic() > deadline:
                left = f"; not healthy: {', '.join(sorted(self._withheld()))}" if what.startswith("everything") else ""
                raise Broken(f"waited {FOREVER:g} s for {what}{left}")
            await asyncio.sleep(0.02)

    def _check(self) -> None:
        """What must hold at any moment."""
        for name, agent in self.agents.items():
            self._scan(agent)
            if agent.process.returncode is not None:
                raise Broken(f"the {name} has ended by itself, with status {agent.process.returncode}")
        if problem := given_twice(self._held()):
            raise Broken(problem)

    def _scan(self, agent: Agent) -> None:
        """Its log has no traceback."""
        for line in agent.log:
            if "Traceback" in line:
                raise Broken(f"a traceback in the agent's log: {line}")

    def _say(self, told: str) -> None:
        self.injections[told.partition(": ")[0] if "GPU-" not in told else "the MIG layout of a GPU changes"] += 1
        self.steps.append(f"{time.monotonic() - self.began:8.2f} s  round {self.rounds}: {told}")


def _of_rival(resource: str) -> bool:
    return resource.startswith(setups.PREFIX + setups.RIVAL)
