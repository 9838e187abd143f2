"""Two agents on one kubelet: one serves it, the other stands by, whatever names and state directories they have."""

import asyncio
import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec
import pytest

from gpuplane.node.core.reports.news import READY_TO_TAKE_OVER_TEXT
from gpuplane.node.model.control import ControlRequest, ControlResponse, DrainDevice, GetNodeState, ReleaseDriver
from gpuplane.node.model.encoding import decode
from gpuplane.node.model.status import KUBELET_LOCK_PART
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Container, Kubelet, Pod, PodRejected
from gpuplane.sandbox.succession import is_during_gap, replace_agent, run_pods_in_turn
from tests.lengths import length
from tests.node.agent.test_process import WAITS

GPUS = 8
NAMES = {"first": "nvidia.com/gpu", "second": "nvidia.com/a100"}
MACHINE = "gpus:\n" + "".join(f"- {{index: {i}, uuid: GPU-{i}, model: NVIDIA A100}}\n" for i in range(GPUS))


class Place:
    """A directory with a machine, for agents that share nothing but a kubelet."""

    def __init__(self, root: Path) -> None:
        self.root, self.kubelet, self.machine = root, root / "k", root / "machine.yaml"
        self.machine.write_text(MACHINE)

    def agent(self, called: str, *more: object) -> Agent:
        """An agent with a state directory and a name for GPUs of its own."""
        name = NAMES[called].removeprefix("nvidia.com/")
        config = self.root / f"{called}.yaml"
        if not config.exists():
            config.write_text(f'version: v1\nresources: {{gpus: [{{pattern: "*", name: {name}}}]}}\n')
        return Agent(
            "--machine", self.machine, "--config", config, "--kubelet-root", self.kubelet,
            "--state-dir", self.root / called, *more,
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def given(kubelet: Kubelet) -> Counter[str]:
    """GPU → how many running pods have it."""
    return Counter(
        id
        for running in kubelet.pods.values()
        for ids in kubelet.devices.held_by(running.pod.uid, "main").values()
        for id in ids
    )


async def test_two_agents_with_two_names_give_no_gpu_twice(place: Place) -> None:
    """Their state directories and their sockets differ: kubelet's directory is what they share."""
    async with Kubelet(place.kubelet) as kubelet, place.agent("first") as first:
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        async with place.agent("second") as second:
            assert f" {first.process.pid} " in await second.until_says(WAITS)
            await kubelet.run(Pod("a", (Container("main", {NAMES["first"]: 5}),)))
            with pytest.raises(PodRejected):
                await kubelet.run(Pod("b", (Container("main", {NAMES["second"]: 1}),)))
            assert NAMES["second"] not in kubelet.node_capacities()

            assert await first.stop() == 0
            await kubelet.until_capacity(NAMES["second"], GPUS, 3)
            await kubelet.run(Pod("c", (Container("main", {NAMES["second"]: 3}),)))
            assert max(given(kubelet).values()) == 1
            assert len(given(kubelet)) == GPUS


async def asked(agent: Agent, port: int) -> tuple[int, str]:
    """What /readyz answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def ready(agent: Agent, port: int) -> None:
    """Until it says that it is."""
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError, IndexError):
                if (await asked(agent, port))[0] == 200:
                    return
            await asyncio.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_one_that_stands_by_is_ready_and_changes_nothing(place: Place) -> None:
    """It makes no socket, no specification and no state directory; a rollout need not wait for ever."""
    port, cdi = free_port(), place.root / "cdi"
    more = ("--metrics-address", f"127.0.0.1:{port}", "--cdi-dir", cdi)
    async with Kubelet(place.kubelet) as kubelet, place.agent("first"):
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        before = sorted(place.kubelet.rglob("*"))
        async with place.agent("second", *more) as second:
            await second.until_says(READY_TO_TAKE_OVER_TEXT)
            await ready(second, port)
            assert not cdi.exists() and not (place.root / "second").exists()
            assert sorted(place.kubelet.rglob("*")) == before
            assert await second.stop() == 0
        assert kubelet.capacity(NAMES["first"]) == (GPUS, GPUS)
        assert kubelet.manager.gaps == []


async def test_an_agent_that_is_stopped_keeps_its_turn_and_is_named(place: Place) -> None:
    """Stopped, not ended (SIGSTOP, a debugger): it could go on at any time. Whoever waits says for whom, and ends."""
    async with Kubelet(place.kubelet) as kubelet, place.agent("first") as first:
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        first.process.send_signal(signal.SIGSTOP)
        async with place.agent("second") as second, place.agent("second") as third:
            for each in (second, third):
                assert f" {first.process.pid} " in await each.until_says(WAITS)
                await each.until_says(READY_TO_TAKE_OVER_TEXT)
            assert await third.stop() == 0
            assert NAMES["second"] not in kubelet.node_capacities()
            await first.kill()
            await kubelet.until_capacity(NAMES["second"], GPUS, GPUS)


async def test_inspect_shows_that_an_agent_stands_by(place: Place) -> None:
    """With its own state directory it shows itself, and refuses every wish; a shared one is the serving agent's."""
    (place.root / "second").mkdir(mode=0o700)
    async with Kubelet(place.kubelet) as kubelet, place.agent("first") as first:
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        async with place.agent("second") as second, place.agent("first") as third:
            await second.until_says(READY_TO_TAKE_OVER_TEXT)
            await third.until_says(READY_TO_TAKE_OVER_TEXT)
            shown = (await (await connect(place.root / "second/control.sock"))(GetNodeState())).state
            assert shown is not None
            assert shown.snapshot.statuses[KUBELET_LOCK_PART].state == "waiting"
            assert f" {first.process.pid} " in f"{shown.offer.waiting_reason}"
            shared = (await (await connect(place.root / "first/control.sock"))(GetNodeState())).state
            assert shared is not None
            assert shared.snapshot.statuses[KUBELET_LOCK_PART].state == "ok"
            with pytest.raises(AssertionError):
                wish = DrainDevice(
                    requested_at=time.clock_gettime(time.CLOCK_BOOTTIME), device="GPU-6", seconds=None, reason="fan"
                )
                await (await connect(place.root / "second/control.sock"))(wish)
        assert not (place.root / "second/control.sock").exists()
        assert (place.root / "first/control.sock").exists()


async def test_one_that_cannot_take_over_is_not_ready(place: Place) -> None:
    """A rollout of a configuration that is broken stops there, and the old agent serves on."""
    port = free_port()
    (place.root / "second.yaml").write_text("version: v1\nflags: {migStrategie: none}\n")
    async with Kubelet(place.kubelet) as kubelet, place.agent("first"):
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        async with place.agent("second", "--metrics-address", f"127.0.0.1:{port}") as second:
            await second.until_says("migStrategie")
            await second.until_says("pod-resources: ok")
            await asyncio.sleep(1.5)  # the pages are made once a second
            status, why = await asked(second, port)
            assert (status, "migStrategie" in why) == (503, True)


async def test_an_agent_that_was_told_to_end_registers_no_more(place: Place) -> None:
    """What it leaves is its last list, and no empty one: the node keeps its capacity."""
    async with Kubelet(place.kubelet) as kubelet, place.agent("first") as first:
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        await first.stop()
        await kubelet.until_capacity(NAMES["first"], GPUS, 0)
        assert not list((place.kubelet / "device-plugins").glob("gpuplane-*"))
        assert [call.method for call in kubelet.trace].count("Register") == 1


async def test_a_hangup_reloads_and_ends_nothing(place: Place) -> None:
    """SIGHUP, as NVIDIA's config manager sends it, however often: sockets and streams stay as they are."""
    async with Kubelet(place.kubelet) as kubelet, place.agent("first") as agent:
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        config = place.root / "first.yaml"
        stat = config.stat()
        config.write_text(config.read_text().replace("name: gpu}", "name: xxx}"))
        os.utime(config, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as it cannot be seen by stat
        for _ in range(3):
            agent.process.send_signal(signal.SIGHUP)
        await agent.until_says("SIGHUP")
        await kubelet.until_capacity("nvidia.com/xxx", GPUS, GPUS)
        assert agent.process.returncode is None
        async with place.agent("second") as second:
            await second.until_says(READY_TO_TAKE_OVER_TEXT)
            second.process.send_signal(signal.SIGHUP)
            await second.until_says("SIGHUP")
            assert await agent.stop() == 0
            await kubelet.until_capacity(NAMES["second"], GPUS, GPUS)


async def test_one_that_stands_by_leaves_the_driver_alone_where_the_other_was_told_to(place: Place) -> None:
    """By a command that only the one that serves was given: else an upgrade of the driver could not go on."""
    async with Kubelet(place.kubelet) as kubelet, place.agent("first") as first:
        await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
        async with place.agent("first") as second:
            await second.until_says(READY_TO_TAKE_OVER_TEXT)
            control = await connect(place.root / "first/control.sock")
            await control(
                ReleaseDriver(requested_at=time.clock_gettime(time.CLOCK_BOOTTIME), seconds=60.0, reason="new driver")
            )
            await second.until_says("driver: ", "new driver")
            assert await first.stop() == 0
            await second.until_says("kubelet lock: ok")
            await kubelet.until(lambda: len(kubelet.manager.gaps) == 1)
            assert kubelet.capacity(NAMES["first"]) == (GPUS, 0)


async def test_a_directory_that_is_made_anew_is_served_by_one(place: Place) -> None:
    """Kubelet's directory is removed with all that is in it, while one agent serves and another stands by."""
    async with place.agent("first") as first, AsyncExitStack() as stack:
        async with Kubelet(place.kubelet) as kubelet:
            await kubelet.until_capacity(NAMES["first"], GPUS, GPUS)
            second = await stack.enter_async_context(place.agent("second"))
            await second.until_says(READY_TO_TAKE_OVER_TEXT)
        (place.kubelet / "device-plugins").rename(place.root / "old")
        async with Kubelet(place.kubelet) as kubelet:
            await kubelet.until(lambda: bool(kubelet.device_health()))
            await asyncio.sleep(2)
            names = [name for name, (_, healthy) in kubelet.node_capacities().items() if healthy]
            assert len(names) == 1
            serving, waiting = (first, second) if names == [NAMES["first"]] else (second, first)
            assert await serving.stop() == 0
            other = NAMES["second"] if serving is first else NAMES["first"]
            await kubelet.until_capacity(other, GPUS, GPUS)
            assert waiting.process.returncode is None


async def test_no_drain_and_no_verdict_is_lost_and_no_pod_is_rejected_but_in_the_gap(place: Place) -> None:
    """Agents replace each other, asked or killed, while pods come and go. One is drained, and one has failed."""
    broken = MACHINE.replace("GPU-7, model", "GPU-7, faults: [{code: gpu-lost, message: gone}], model")
    place.machine.write_text(broken)
    name = NAMES["first"]
    times = list[float]()
    async with Kubelet(place.kubelet) as kubelet:
        old = place.agent("first")
        await old.start()
        try:
            await kubelet.until_capacity(name, GPUS, GPUS - 1)
            control = await connect(place.root / "first/control.sock")
            await control(
                DrainDevice(
                    requested_at=time.clock_gettime(time.CLOCK_BOOTTIME), device="GPU-6", seconds=None, reason="fan"
                )
            )
            await kubelet.until_capacity(name, GPUS, GPUS - 2)
            async with run_pods_in_turn(kubelet, name) as rejected:
                for turn in range(6):
                    new = place.agent("first")
                    gaps = await replace_agent(kubelet, old, new, kill=turn % 3 == 2)
                    old = new
                    times += [gap.ended_at - gap.started_at for gap in gaps]
                    await kubelet.until_capacity(name, GPUS, GPUS - 2)
            assert [each for each in rejected if not is_during_gap(each, kubelet.manager.gaps)] == []
            assert len(times) >= 6
            assert sorted(times)[len(times) // 2] < 1.0  # 20 ms where nobody else is busy
            assert {id for id, health in kubelet.device_health()[name].items() if health == "Unhealthy"} == {
                "GPU-6",
                "GPU-7",
            }
        finally:
            await old.stop()


async def connect(path: Path) -> Callable[[ControlRequest], Awaitable[ControlResponse]]:
    """How an agent is asked."""

    async def ask(request: ControlRequest) -> ControlResponse:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(msgspec.json.encode(request) + b"\n")
        answer = decode(await reader.readline(), ControlResponse)
        writer.close()
        assert not answer.error, answer.error
        return answer

    return ask


@pytest.mark.parametrize("seed", length([1], [1, 2, 3]))
async def test_random_histories_of_two_agents_give_no_gpu_twice(place: Place, seed: int) -> None:
    """Two agents that share nothing but a kubelet start, stop, die and hang, kubelet restarts, and pods come and go.

    Without the lock each seed gives a GPU twice within seconds.
    """
    chance, agents = random.Random(seed), dict[str, Agent]()
    async with Kubelet(place.kubelet, seed=seed) as kubelet:
        try:
            for number in range(60):
                await act(chance, place, kubelet, agents, number)
                assert max(given(kubelet).values(), default=1) == 1, (seed, number, given(kubelet))
            assert len(given(kubelet)) > 0
        finally:
            await asyncio.gather(*(agent.kill() for agent in agents.values()))


async def act(chance: random.Random, place: Place, kubelet: Kubelet, agents: dict[str, Agent], number: int) -> None:
    """One thing that happens."""
    called = chance.choice(list(NAMES))
    roll = chance.random()
    if called not in agents:
        agents[called] = place.agent(called)
        await agents[called].start()
    elif roll < 0.07:
        await agents.pop(called).stop()
    elif roll < 0.14:
        await agents.pop(called).kill()
    elif roll < 0.17:
        await kubelet.restart()
    elif roll < 0.35 and kubelet.pods:
        await kubelet.end(chance.choice(sorted(kubelet.pods)))
    if number % 8 == 0:
        with suppress(TimeoutError):
            await kubelet.until(lambda: any(healthy for _, healthy in kubelet.node_capacities().values()), 5)
    with suppress(PodRejected):
        wanted = chance.choice(sorted(kubelet.device_health()) or [NAMES["first"]])
        await kubelet.run(Pod(f"p{number}", (Container("main", {wanted: chance.randint(1, 3)}),)))
    await asyncio.sleep(chance.choice((0.0, 0.05, 0.3)))
