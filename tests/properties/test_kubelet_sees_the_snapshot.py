"""Whatever happens, in whatever order: when it has settled, kubelet's view is the snapshot's.

Random histories of kubelet restarts and deaths, lost streams, edits of the configuration, changes of the devices, and
pods that come and go, on real sockets. After each burst kubelet must come to show what the offer says, and no GPU may
have been given to two pods under two names.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuplane.node.agent.node import Node, boottime
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.health.probes import requested_probe_times
from gpuplane.node.kubelet import podresources, registration
from gpuplane.node.kubelet.podresources import follow_allocations
from gpuplane.node.kubelet.registration import register_plugins
from gpuplane.node.model.config import NamingRule, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import ConfigLoaded, MachineObserved, ProbeFinished
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected
from tests.lengths import length

GPU = "nvidia.com/gpu"
GPUS = tuple(Gpu(index=i, uuid=f"GPU-{i}", model=("A100", "T4")[i % 2], numa=i // 2) for i in range(4))
LOST = Fault(code="gpu-lost", message="fell off the bus")
AWAY = Fault(code="driver-not-loaded", message="the driver was unloaded")
CALM = 0.002  # seconds of that clock: a GPU that is mended shall be given out again soon
SETTINGS = (
    Settings(probe_period=CALM),
    Settings(probe_period=CALM, gpus=(NamingRule(pattern="*", name="nvidia.com/other"),)),
    Settings(
        probe_period=CALM, gpus=(NamingRule(pattern="T4", name="nvidia.com/t4"), NamingRule(pattern="*", name=GPU))
    ),
    Settings(probe_period=CALM, sharing=Sharing(replicated_resources=(ReplicatedResource(name=GPU, replicas=2),))),
    Settings(
        probe_period=CALM,
        sharing=Sharing(
            replicated_resources=(ReplicatedResource(name=GPU, replicas=3, rename="nvidia.com/gpu.shared"),)
        ),
    ),
)
PATIENCE = 60.0  # of our seconds, in which it has to settle on a busy machine
FAST = 20.0  # the node's clock runs so much faster than ours: ten seconds that kubelet may take become half a one


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and questions come quickly, so that a history of thousands of steps takes a minute."""
    monkeypatch.setattr(registration, "SOCKET_INTERVAL", 0.005)
    monkeypatch.setattr(registration, "STREAM_INTERVAL", 0.01)
    monkeypatch.setattr(registration, "RIVAL_INTERVAL", 0.01)
    monkeypatch.setattr(podresources, "FIRST_INTERVAL", 0.005)
    monkeypatch.setattr(podresources, "SHORT_INTERVAL", 0.01)
    monkeypatch.setattr(podresources, "LONG_INTERVAL", 0.05)
    monkeypatch.setattr(podresources, "KUBELET_START_PERIOD", 0.2)


class World:
    """A node and its kubelet, and what can happen to them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.kubelet = Kubelet(root, seed=seed)
        self.node = Node(Snapshot(), now=lambda: boottime() * FAST)
        self.gpus = list(GPUS)
        self.pods = self.admitted = 0
        self.done: list[str] = []

    def happens(self) -> Iterator[tuple[int, Callable[[], Awaitable[None]]]]:
        """(weight, what happens)."""
        yield 1, self.kubelet_restarts
        yield 1, self.kubelet_dies
        yield 2, self.streams_are_lost
        yield 4, self.the_config_is_edited
        yield 6, self.a_device_changes
        yield 8, self.a_pod_comes
        yield 6, self.a_pod_goes

    async def step(self) -> None:
        """One random thing happens."""
        weights, actions = zip(*self.happens(), strict=True)
        [action] = self.random.choices(actions, weights)
        self.done.append(action.__name__)
        await action()

    async def kubelet_restarts(self) -> None:
        await self.kubelet.restart()

    async def kubelet_dies(self) -> None:
        await self.kubelet.kill()
        await self.kubelet.start()

    async def streams_are_lost(self) -> None:
        await self.kubelet.drop_streams()

    async def the_config_is_edited(self) -> None:
        self.node.apply(ConfigLoaded(self.random.choice(SETTINGS)))

    async def a_device_changes(self) -> None:
        index = self.random.randrange(len(GPUS))
        self.gpus[index] = GPUS[index] if self.random.random() < 0.7 else GPUS[index].but(faults=(LOST,))
        gone = self.random.randrange(len(GPUS)) if self.random.random() < 0.1 else None
        look = Machine(gpus=tuple(gpu for gpu in self.gpus if gpu.index != gone))
        away = Machine(faults=(AWAY,))
        self.node.apply(MachineObserved(away if self.random.random() < 0.05 else look))

    async def a_pod_comes(self) -> None:
        names = sorted(name for name, devices in self.kubelet.device_health().items() if "Healthy" in devices.values())
        if names:
            self.pods += 1
            wants = {self.random.choice(names): self.random.randint(1, 2)}
            with suppress(PodRejected):
                await self.kubelet.run(Pod(f"p{self.pods}", (Container("main", wants),), uid=f"u{self.pods}"))
                self.admitted += 1
                self.given_once()

    async def a_pod_goes(self) -> None:
        if self.kubelet.pods:
            await self.kubelet.end(self.random.choice(sorted(self.kubelet.pods)))

    async def probe(self) -> None:
        """What a driver does for as long as it is there: it answers the probes that are wished for."""
        async for snapshot in self.node.changes():
            for uuid, asked in requested_probe_times(snapshot).items():
                gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), Gpu(-1, uuid, faults=(LOST,)))
                self.node.apply(ProbeFinished(asked, gpu))

    def given_once(self) -> None:
        """No GPU is held under two names or in two layouts at once, and a whole one by one pod only."""
        holders: dict[str, list[tuple[str, str]]] = {}
        for running in self.kubelet.pods.values():
            for resource, ids in self.kubelet.devices.held_by(running.pod.uid, "main").items():
                for id in ids:
                    holders.setdefault(id.partition("::")[0], []).append((resource, id))
        for gpu, held in holders.items():
            assert len(held) == len(set(held)), f"{gpu} twice: {held}"
            assert len({(resource, "::" in id) for resource, id in held}) == 1, f"{gpu} in two ways: {held}"
            assert len(held) == 1 or all("::" in id for _, id in held), f"{gpu} is whole and shared: {held}"

    async def settled(self, running: list[asyncio.Task[None]]) -> None:
        """Kubelet comes to show the offer. Raises AssertionError with both, and the history.

        A resource that is no longer offered is not shown either, but for one whose stream was lost before its last
        list: that kubelet itself keeps for five minutes, with nothing to allocate.
        """

        def shown() -> bool:
            view, offered = self.kubelet.device_health(), self.offered()
            gone = (health for name in view.keys() - offered.keys() for health in view[name].values())
            return all(view.get(name) == offered[name] for name in offered) and "Healthy" not in gone

        async def follow() -> None:
            async for _ in self.node.changes():
                if shown():
                    return

        following = asyncio.create_task(follow())
        changed: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                while not shown():
                    for each in running:
                        if each.done():
                            each.result()  # a part of the node that has ended: raises why
                    changed = asyncio.create_task(self.kubelet.until(shown, 2 * PATIENCE))
                    await asyncio.wait((following, changed, *running), return_when=asyncio.FIRST_COMPLETED)
                    changed.cancel()
                    await asyncio.gather(changed, return_exceptions=True)
        except TimeoutError:
            health, status = self.kubelet.device_health(), self.node.snapshot.statuses
            found = f"offered {self.offered()}\nshown {health}\nstatus {status}"
            raise AssertionError(f"{found}\nafter {self.done[-20:]}") from None
        finally:
            left = [each for each in (following, changed) if each is not None]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def offered(self) -> dict[str, dict[str, str]]:
        """resource → id → health, as kubelet should show it."""
        return {
            resource.name: {d.id: "Unhealthy" if d.unavailable_reason else "Healthy" for d in resource.devices}
            for resource in offer(self.node.snapshot).resources
            if resource.devices
        }


async def live(root: Path, seed: int, steps: int) -> None:
    """One history of so many steps, settled after every few."""
    world = World(root, seed)
    async with world.kubelet:
        world.node.apply(MachineObserved(Machine(gpus=GPUS)))
        world.node.apply(ConfigLoaded(SETTINGS[0]))
        running = [
            asyncio.create_task(world.node.run_clock()),
            asyncio.create_task(world.probe()),
            asyncio.create_task(follow_allocations(world.node, root)),
            asyncio.create_task(register_plugins(world.node, root / "device-plugins", (0.005, 0.05))),
        ]
        assert await world.node.wait_until(lambda s: bool(offer(s).resources), deadline=10 * FAST)
        while len(world.done) < steps:
            for _ in range(world.random.randint(1, 8)):
                await world.step()
            await world.settled(running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert world.admitted > steps / 50, "a history in which hardly a pod was admitted shows nothing"


@pytest.mark.timeout(length(300, 3000))
@pytest.mark.parametrize("life", range(4))
async def test_kubelet_shows_the_snapshot_whenever_it_is_quiet(tmp_path: Path, life: int, seed: int) -> None:
    """A history a life."""
    await live(tmp_path, seed, length(300, 25_000))
