"""Chaos, played: it holds, and it finds what does not."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gpuplane.hardware.machinefile import read
from gpuplane.hardware.profiles import find
from gpuplane.kubelet.protocols import deviceplugin_pb2 as pb
from gpuplane.model.control import RestoreDevice
from gpuplane.sandbox.chaos import Broken, Chaos
from gpuplane.sandbox.chaos.memory import ALLOWED, WARM, Memory
from gpuplane.sandbox.chaos.site import Site

GPU = "nvidia.com/gpu"


def command(*arguments: str) -> list[str]:
    """The command line of a play."""
    return [sys.executable, "-m", "gpuplane", "sandbox", "chaos", *arguments]


async def output(*arguments: str) -> tuple[int | None, str]:
    """(exit status, what is said) of a play. Nothing else may be said."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command(*arguments), stdout=pipe, stderr=pipe)
    try:
        said, beside = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert "Traceback" not in beside.decode(), beside.decode()
    return process.returncode, said.decode() + beside.decode() * (process.returncode != 0)


@pytest.mark.timeout(300)
async def test_nothing_breaks() -> None:
    """On whole GPUs and on MIG devices, at the same time. The summary says what was done and how often all was
    checked."""
    plays = {"hgx-h100": 0.35, "a100-mig": 1.0}
    results = await asyncio.gather(
        *(
            output("--minutes", str(minutes), "--seed", "11", "--machine", machine, "--json")
            for machine, minutes in plays.items()
        )
    )
    for (machine, minutes), (status, said) in zip(plays.items(), results, strict=True):
        assert status == 0, said
        summary = json.loads(said)
        assert (summary["seed"], summary["machine"], summary["broken"]) == (11, machine, "")
        assert summary["minutes"] >= minutes
        assert summary["bursts"] == summary["checks"]["quiet moments"] - 1 > 0
        assert summary["injections"]["fault shown"] > 0
        assert summary["agent_restarts"] == summary["injections"]["agent killed"] > 0


async def test_a_play_that_breaks_tells_its_story() -> None:
    """Its agent is killed behind its back: exit status 1, the last steps, the log, and the line that repeats it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command("--minutes", "5", "--seed", "3"), stdout=pipe)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        for child in psutil.Process(process.pid).children():
            child.kill()
        said = (await process.communicate())[0].decode()
    finally:
        if process.returncode is None:
            process.terminate()
    assert process.returncode == 1
    assert "BROKEN: " in said
    assert " -9\n" in said
    assert "nvidia.com/gpu: 16 " in said
    assert " gpuplane sandbox chaos --minutes 1 --seed 3 --machine hgx-h100 --probe-period 0.2s" in said


@pytest.mark.parametrize("ends", ["while it is asked", "before it is asked"])
async def test_an_agent_that_ends_as_it_is_asked_breaks_the_play(root: Path, ends: str) -> None:
    """The story is told then too: it is no error of a socket."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    def check() -> None:
        raise Broken("the agent has ended by itself")

    site = Site(root, 1, 0.2, check)
    (root / "s").mkdir()
    server = await asyncio.start_unix_server(leave, root / "s/control.sock")
    if ends == "before it is asked":
        server.close()
    async with asyncio.timeout(60):
        with pytest.raises(Broken):
            await site.wish(RestoreDevice(requested_at=0.0, device="GPU-0"))
    server.close()


async def test_a_machine_without_gpus_is_refused(root: Path) -> None:
    """There is nothing that anything could befall."""
    (root / "bare.yaml").touch()
    said = "Error: bare.yaml has no GPU that could fail\n"
    assert await output("--machine", str(root / "bare.yaml")) == (1, said)


def lists(play: Chaos, unit: str, health: str) -> None:
    """Kubelet gets a list in which one GPU is said to be so; "" to be nowhere."""
    said = {
        id: health if id.startswith(unit) else was for id, was in play.kubelet.devices.resources[GPU].last_list.items()
    }
    devices = [pb.Device(ID=id, health=told) for id, told in said.items() if told]
    play.kubelet.manager.list_received(GPU, pb.ListAndWatchResponse(devices=devices))


def falsely_ill(play: Chaos) -> bool:
    """A GPU that nothing befell is said to be ill."""
    unit = next((unit for unit in play.before.units() if not play.before.touched(unit)), None)
    if unit is not None:
        lists(play, unit, "Unhealthy")
    return unit is not None


def falsely_well(play: Chaos) -> bool:
    """A GPU that is ill is said to be well."""
    units = play.before.units()
    unit = next((unit for unit in units if play.settled.surely_ill(unit, 0) and play.before.surely_ill(unit, 0)), None)
    if unit is not None:
        lists(play, unit, "Healthy")
    return unit is not None


def falsely_gone(play: Chaos) -> bool:
    """A GPU that is there is in no list."""
    lists(play, next(iter(play.before.units().keys() & play.settled.units().keys())), "")
    return True


def dead(play: Chaos) -> bool:
    """The agent ends."""
    os.kill(play.agent.process.pid, signal.SIGKILL)
    return True


def raising(play: Chaos) -> bool:
    """A part of the agent raises."""
    play.agent.log.append("Traceback (most recent call last):")
    return True


def forgetting(play: Chaos) -> bool:
    """The agent cannot read what it wrote."""
    (play.site.root / "s/health.unreadable").touch()
    return True


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (falsely_ill, "as Unhealthy: it has no fault and no drain"),
        (falsely_well, "as Healthy: its fault or drain is not over"),
        (falsely_gone, "a list without GPU-"),
        (dead, "the agent has ended by itself, with status -9"),
        (raising, "a traceback in the agent's log"),
        (forgetting, "a state file was set aside as unreadable: health.unreadable"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
async def test_it_finds(lie: Callable[[Chaos], bool], found: str) -> None:
    """What is not so, as soon as it is there."""
    path = find("hgx-h100")
    play = Chaos("hgx-h100", read(path.read_bytes(), path.name), seed=1, minutes=1.5, period=0.2)
    told = False
    with pytest.raises(Broken, match=found):
        async for _ in play.play():
            told = told or lie(play)
    assert play.summary().broken
    assert play.summary().steps


def test_memory_that_grows_is_found() -> None:
    """In one life or over several; what comes while an agent warms up does not count."""
    memory = Memory()
    for life in range(3):
        for second, resident in ((0, 100), (WARM, 5000), (WARM + 60, 5000 + ALLOWED / 2)):
            memory.add(int(resident), life * 1000 + second)
        if life < 1:
            memory.check(Broken)
        memory.died()

    assert memory.begin == 5000
    assert memory.per_minute() == ALLOWED / 2
    with pytest.raises(Broken, match=r" 6144 KiB .* 3\.0 "):
        memory.check(Broken)
