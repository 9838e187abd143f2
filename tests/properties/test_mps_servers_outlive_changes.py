"""Whatever happens, in whatever order: nobody's server is ended under its clients, and in the end all is as wanted."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable

import pytest

from gpuplane.node.host.mps import processes
from gpuplane.node.host.mps.files import FILES_FOLDER
from gpuplane.node.host.mps.processes import Process
from gpuplane.node.model.mps import MpsDaemon
from tests.lengths import length
from tests.node.host.mps.world import World

GPU = "nvidia.com/gpu"
SHARED = MpsDaemon(
    name=GPU,
    client_memory_mib_by_device={"GPU-a": 1024, "GPU-b": 1024},
    active_thread_percentage=25,
    exclusive_compute_mode=True,
)
COUNTED = 4.0
"""Seconds after which the supervisor knows a client, on a slow machine too."""


class Life:
    """A supervisor, a daemon, their clients, and what may befall them."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice, self.wish = world, dice, SHARED
        self.clients: dict[asyncio.subprocess.Process, tuple[Process, float]] = {}  # its server, and since when
        self.told: list[str] = []

    def want(self, wish: MpsDaemon | None) -> None:
        """Containers with clients hold their share, as kubelet would say."""
        self.world.want(*([wish] if wish else []), held=(GPU,) if self.clients else ())

    async def step(self) -> None:
        """One thing that happens."""
        acts: list[Callable[[], Awaitable[None]]] = [
            self.supervisor_dies, self.daemon_dies, self.limits, self.devices, self.unset, self.client_comes,
            self.client_comes, self.client_ends, self.client_meddles,
        ]  # fmt: skip
        act = self.dice.choice(acts)
        self.told.append(act.__name__)
        await act()
        await asyncio.sleep(self.dice.random())
        self.check()

    def check(self) -> None:
        """Each client's server is there."""
        for client, (server, _) in self.clients.items():
            assert client.returncode is None
            assert processes.is_alive(server), f"the server of client {client.pid} was ended after {self.told}"

    async def supervisor_dies(self) -> None:
        await self.world.kill(self.dice.choice((signal.SIGKILL, signal.SIGTERM)))
        await self.world.supervise()

    async def daemon_dies(self) -> None:
        running = self.world.daemon(GPU)
        young = [client for client, (_, since) in self.clients.items() if time.monotonic() - since < COUNTED]
        if running is not None and not young:
            os.kill(running.pid, signal.SIGKILL)

    async def limits(self) -> None:
        self.wish = self.wish.but(active_thread_percentage=self.dice.randint(1, 100))
        self.want(self.wish)

    async def devices(self) -> None:
        self.wish = self.wish.but(
            client_memory_mib_by_device={f"GPU-{each}": 512 for each in self.dice.sample("abc", 2)}
        )
        self.want(self.wish)

    async def unset(self) -> None:
        self.want(None)
        await asyncio.sleep(self.dice.random())
        self.want(self.wish)

    async def client_comes(self) -> None:
        """Where it is said to be served. Its container holds its share before."""
        self.world.want(self.wish, held=(GPU,))
        stands = self.world.standing(GPU)
        await self.world.until_heard()  # a container takes longer to start
        steady = stands is not None and stands.state == "ok" and self.world.standing(GPU) == stands
        if steady and self.intact():
            client, _ = await self.world.compute(GPU)
            self.clients[client] = await self.world.serving(GPU), time.monotonic()

    async def client_meddles(self) -> None:
        """It takes away what is in its directory, or puts something else there."""
        pipe = self.world.pipe(GPU)
        names = sorted(path.name for path in pipe.iterdir() if not path.is_dir()) if pipe.exists() else []
        if names:
            path = pipe / self.dice.choice(names)
            path.unlink()
            self.dice.choice((lambda: None, path.mkdir, lambda: os.mkfifo(path), path.touch))()

    def intact(self) -> bool:
        """Whether clients can reach the daemon's socket: what was taken away is put back."""
        ours, theirs = self.world.root / FILES_FOLDER / GPU / "control", self.world.pipe(GPU) / "control"
        return ours.exists() and theirs.exists() and ours.samefile(theirs)

    async def client_ends(self) -> None:
        if self.clients:
            client = self.dice.choice(list(self.clients))
            del self.clients[client]
            await self.world.end(client)
            self.want(self.wish)


@pytest.mark.timeout(length(300, 3000))
@pytest.mark.parametrize("number", range(length(1, 3)))
async def test_a_life(world: World, number: int, seed: int) -> None:
    """No server ends under its clients; when they have ended what is wanted runs; when nothing is, nothing is left."""
    life = Life(world, random.Random(seed))
    await world.supervise()
    world.want(SHARED)
    await world.until_ok(GPU)
    for _ in range(length(12, 120)):
        await life.step()
    for client in list(life.clients):
        await world.end(client)
    world.want(life.wish)
    await world.until(
        lambda: (s := world.standing(GPU)) and set(s.devices) == set(life.wish.client_memory_mib_by_device)
    )
    assert len(world.servers(GPU)) <= 1
    world.want()
    await world.until(lambda: not world.pipe(GPU).exists() and not world.family())
    await world.until(lambda: set(world.modes().values()) == {"DEFAULT"})
