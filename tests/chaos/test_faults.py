"""The play of faults: it holds, and it finds what does not."""

import os
import signal
from collections.abc import Callable

import pytest

from gpuplane.node.kubelet.protocols import deviceplugin_pb2 as pb
from tests.chaos.memory import ALLOWED, WARM, Memory
from tests.chaos.play import Chaos
from tests.chaos.setups import profile
from tests.chaos.site import Broken
from tests.lengths import length, soaking

GPU = "nvidia.com/gpu"
SECONDS = {"hgx-h100": length(21, 600), "a100-mig": length(36, 600)}
"""Machine → how long it is played on."""


@pytest.mark.timeout(length(300, 3000))
@pytest.mark.parametrize("machine", SECONDS)
async def test_nothing_breaks(machine: str, seed: int) -> None:
    """On whole GPUs and on MIG devices. `make test` plays one history alone, which has a bit of everything."""
    play = Chaos(profile(machine), seed if soaking() else 11, SECONDS[machine])
    async for _ in play.play():
        pass
    print(dict(play.injections), dict(play.checks))
    assert play.bursts == play.checks["quiet moments"] - 1 > 0
    assert play.checks["lists"] > 0
    assert play.injections["fault shown"] > 0
    assert play.injections["agent killed"] > 0


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
    """What is not so, as soon as it is there, and tells the last steps and the agent's log."""
    play = Chaos(profile("hgx-h100"), seed=1, seconds=90)
    told = False
    with pytest.raises(Broken, match=found) as broken:
        async for _ in play.play():
            told = told or lie(play)
    story = str(broken.value)
    assert play.steps[-1] in story
    assert play.agent.log[-1] in story


def test_memory_that_grows_is_found() -> None:
    """In one life or over several; what comes while an agent warms up does not count."""
    memory = Memory()
    for life in range(3):
        for second, resident in ((0, 100), (WARM, 5000), (WARM + 60, 5000 + ALLOWED / 2)):
            memory.add(int(resident), life * 1000 + second)
        if life < 1:
            memory.check(Broken)
        memory.died()

    with pytest.raises(Broken, match=r" 6144 KiB .* 3\.0 "):
        memory.check(Broken)
