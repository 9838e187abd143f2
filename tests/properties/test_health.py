"""What holds of every history of faults: containment, an honest clock, and recovery of all that is mended."""

import random

import pytest

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.health import records
from gpuplane.node.core.health.context import device_record, health_context
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.step import next_due_time, step
from gpuplane.node.model.encoding import decode, encode
from gpuplane.node.model.facts import (
    AllocationsListed,
    DrainRequested,
    Fact,
    FaultOccurred,
    MachineObserved,
    ProbeFinished,
    Tick,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from tests.lengths import length
from tests.node.core.health.histories import WHOLE, Maker, Moment
from tests.node.core.health.lives import Life
from tests.texts import as_shown

HISTORIES = range(length(20, 200))
CALM = 128 * 5.0 + 5.0
"""Seconds after which even what relapsed again and again has been calm for long enough."""
PAUSE = 60.0
"""Seconds between two probes, and those after which time ends a fault, at the most."""


def history(seed: int) -> tuple[Moment, ...]:
    """A random history of some length."""
    return Maker(seed).history(random.Random(seed).randint(5, 30))


def without(index: int, moment: Moment) -> Moment | None:
    """The moment with nothing in it that concerns this GPU; None where nothing is left."""
    if moment.kind == "change":
        whole = (WHOLE.gpus or ())[index]
        gpus = None
        if moment.machine.gpus is not None:
            gpus = tuple(sorted((whole, *(g for g in moment.machine.gpus if g.index != index)), key=lambda g: g.index))
        processes = tuple(each for each in moment.processes if each[0] != index)
        return moment.but(machine=moment.machine.but(gpus=gpus), processes=processes)
    about = isinstance(moment.fact, FaultOccurred | DrainRequested) and moment.gpus == {index}
    return None if about else moment


def troubles(life: Life, index: int) -> dict[str, str]:
    """Device id → why it is withheld, of all that do not belong to this GPU."""
    return {
        device.id: as_shown(device.unavailable_reason)
        for resource in offer(life.snapshot).resources
        for device in resource.devices
        if device.unit.gpu != f"GPU-{index}"
    }


@pytest.mark.parametrize("number", HISTORIES)
def test_what_befalls_one_gpu_changes_nothing_for_the_others(number: int, seed: int) -> None:
    """With all that concerns one GPU taken out of a history, the others are withheld at the same times, for the same
    reasons: down to the recovery probes that they had."""
    moments, index = history(seed), seed % 3
    life, alone = Life(), Life()
    for moment in moments:
        life.wait(moment.after, answer=True)
        alone.wait(moment.after, answer=True)
        assert troubles(life, index) == troubles(alone, index)
        life.live(moment)
        if (rest := without(index, moment)) is not None:
            alone.live(rest)
        assert troubles(life, index) == troubles(alone, index)
    life.settle()
    alone.settle()
    assert troubles(life, index) == troubles(alone, index)


class Watched(Life):
    """A life that asks the clock after each fact whether it is honest."""

    chance = random.Random(0)

    def follow(self, before: object) -> None:
        """Between now and when it is due, time changes nothing; then it does."""
        super().follow(before)  # type: ignore[arg-type]
        at = next_due_time(self.snapshot)
        assert at is None or at > self.now, f"due {at}, and it is {self.now}"
        assert at is None or step(self.snapshot, Tick(), at) is not self.snapshot, f"due {at}, and nothing changes"
        later = self.now + 1e6 if at is None else at
        for when in (self.now, self.chance.uniform(self.now, later), (self.now + later) / 2):
            if at is None or when < at:
                assert step(self.snapshot, Tick(), when) is self.snapshot


@pytest.mark.parametrize("number", HISTORIES)
def test_time_changes_something_when_it_is_due_and_only_then(number: int, seed: int) -> None:
    """A tick before `due` gives the same object, one at `due` another; so nobody is woken for nothing, or too late."""
    life = Watched()
    life.chance.seed(seed)
    for moment in history(seed):
        life.wait(moment.after, answer=True)
        life.live(moment)
    life.ticks = 0
    life.settle()

    assert life.ticks < 2000, "a probe a minute, and what else there is, for each of seven devices and the node"


class Counted(Life):
    """A life that asks of records which are said to be calm what time makes of them."""

    calm = 0

    def follow(self, before: object) -> None:
        """Nothing, at any time, whoever holds what and whether the driver answers."""
        super().follow(before)  # type: ignore[arg-type]
        health = self.snapshot.ledger.health
        if health is not None and records.have_no_pending_change(health):
            self.calm += 1
            context = health_context(self.snapshot)
            for each in (context, context.but(can_probe=not context.can_probe), context.but(holders=None)):
                assert all(
                    records.apply_elapsed_time(health, each, now) is health for now in (self.now, self.now + 1e6)
                )
                assert records.next_due_time(health, each) is None


def test_time_changes_nothing_about_calm_records(seed: int) -> None:
    """So a grant on a node that has no trouble settles none of them."""
    lives = []
    for number in HISTORIES:
        lives.append(life := Counted())
        for moment in history(seed + number):
            life.wait(moment.after, answer=True)
            life.live(moment)

    assert sum(life.calm for life in lives) > len(HISTORIES)


@pytest.mark.parametrize("number", HISTORIES)
def test_what_is_mended_comes_back(number: int, seed: int) -> None:
    """Looks show nothing any more, the driver was loaded anew, who was befallen has ended, persons have said that what
    they have to mend is mended, and probes find all well: every device is given out again, in bounded time."""
    life = Life()
    for moment in history(seed):
        life.wait(moment.after, answer=True)
        life.live(moment)
    life.wait(31, answer=True)  # the driver is taken up again
    life.machine, life.processes = WHOLE, {}
    life.look()
    life.apply(AllocationsListed((), life.now))
    life.apply(FaultOccurred(code="driver-loaded", gpu="", message="", at=life.now))
    judged_by = health_context(life.snapshot)
    for each in health_without_parents(life.snapshot):
        if (
            each.state == "drained"
            or "drained" in as_shown(each.reason)
            or any(
                judged_by.effective_entry(finding.code).clear_when in ("restored-by-admin", "node-rebooted")
                for finding in device_record(life.snapshot, each.device).findings
            )
        ):
            life.apply(DrainRequested(each.device, None))
    life.wait(CALM + 2 * PAUSE, answer=True)

    assert life.verdicts() == {}
    assert life.ill() == set()


def strange(chance: random.Random) -> Fact:
    """A fact that nobody should tell."""
    device = chance.choice(("", "GPU-0", "GPU-9", "MIG-0-0", "MIG-9", "0000:01:00.0", "0"))
    at = chance.choice((-1.0, 0.0, 1000.0, 1e12))
    fault = Fault(code=chance.choice(("", "xid-79", "gpu-lost", "no such fault")), message="")
    gpu = Gpu(index=chance.choice((-1, 0, 7)), uuid=device, pci=chance.choice(("", "0000:01:00.0")), faults=(fault,))
    return chance.choice(
        (
            MachineObserved(Machine(gpus=(gpu, gpu.but(index=3, uuid="")))),
            MachineObserved(Machine(faults=(fault, fault))),
            FaultOccurred(
                code=fault.code, gpu=device, message="", at=at, gpu_instance=99, pids=(0, -1), kernel_log_number=-5
            ),
            FaultOccurred(code=fault.code, gpu=device, message="", at=at, compute_instance=1),
            ProbeFinished(requested_at=at, gpu=gpu, pids=(7,)),
            DrainRequested(device, Drain(reason="", until=at)),
            DrainRequested(device, None),
        )
    )


@pytest.mark.parametrize("number", HISTORIES)
def test_no_fact_is_too_strange(number: int, seed: int) -> None:
    """Whatever is told, and in whatever order, the next snapshot follows, and so do the views and the news of it."""
    life, chance = Life(), random.Random(seed)
    life.listens = True
    for moment in history(seed):
        life.wait(moment.after, answer=chance.random() < 0.5)
        life.live(moment)
        life.apply(strange(chance))
        for each in health_without_parents(life.snapshot):
            assert (each.state == "healthy") == (not each.reason)
        life.ill()
    assert decode(encode(life.snapshot), Snapshot) == life.snapshot
