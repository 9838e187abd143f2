"""A crash at any write costs nothing that a look or the kernel log can still show.

Each history is lived through twice: once undisturbed, and once by agents that die at random moments of their writing.
Where the next agent comes at once, both come to the same verdicts: state and deciding fault of every device. Where it
comes after a while, it gives out nothing that the other withholds, and the verdicts are the same once looks show
nothing any more: till then a fault may go on to stand that an agent would have found to be over meanwhile.

What cannot be known is computed, and the undisturbed agent does not hear of it either: the XIDs that the kernel log
does not have, and that fell between the last completed write and the next agent's start. So is a recovery that was not
written: who relapses then is held no longer than after a first fault. Neither can be known in which
order a GPU was reset and befallen in that time, or what a change of it hid that came after another one; so a history
has one of these at such a time. People repeat what was not answered.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.host import state
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    LedgerLoaded,
)
from gpuplane.node.model.snapshot import Ledger, Snapshot
from tests.lengths import length, soaking
from tests.node.core.health.histories import WHOLE, Maker, Moment
from tests.node.core.health.lives import Life
from tests.node.core.health.world import BOOT, SETTINGS, World

HISTORIES = length(60, 10_000)


class Killed(BaseException):
    """The agent is no more."""


class Disk:
    """A state directory whose writer dies at the n-th thing that it does to it."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory, self.left, self.random = directory, 0, random.Random(0)
        for name in ("open", "fsync", "replace", "unlink"):
            patch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Any) -> Any:
        def counted(*arguments: Any, **more: Any) -> Any:
            if self.left > 0:
                self.left -= 1
                if self.left == 0:
                    if name == "fsync":
                        self._tear(arguments[0])
                    raise Killed
            if name == "fsync":
                return None  # it is our death that is tried here, not the machine's
            return call(*arguments, **more)

        return counted

    def _tear(self, fd: int) -> None:
        """What was being written is there in part."""
        path = Path(f"/proc/self/fd/{fd}").resolve()
        if path.is_file():
            os.truncate(path, self.random.randrange(path.stat().st_size + 1))


class Mortal(Life):
    """Agents, one after another."""

    def __init__(self, disk: Disk) -> None:
        self.disk, self.writer, self.dying, self.deaths = disk, state.LedgerWriter(disk.directory), 0, 0
        self.unknown: list[FaultOccurred] = []
        super().__init__()

    def apply(self, fact: Fact) -> None:
        """A fact; it is on disk before the next one comes."""
        before = self.snapshot.ledger
        World.apply(self, fact)
        if self.snapshot.ledger != before:
            self.store()
        self.follow(before)

    def store(self) -> None:
        """Write what the ledger says."""
        self.disk.left, self.dying = self.dying, 0
        try:
            assert self.writer.write(self.snapshot.ledger) is None
        finally:
            self.dying, self.disk.left = self.disk.left, 0

    def absent(self, moment: Moment) -> None:
        """What happens at a moment while there is no agent."""
        self.now += moment.after
        if moment.kind == "change":
            self.machine, self.processes = moment.machine, dict(moment.processes)
        elif isinstance(moment.fact, FaultOccurred) and moment.fact.kernel_log_number is not None:
            self.kernel_log.append(moment.fact.but(at=self.now))
        else:
            assert isinstance(moment.fact, FaultOccurred)
            self.unknown.append(moment.fact)

    def start(self, again: Fact | None) -> None:
        """The next agent: with what is on disk, it looks, hears of kubelet, and reads the kernel log from its start."""
        self.deaths += 1
        remembered, problems = state.load_ledger(self.disk.directory, BOOT)
        assert problems == []
        self.writer, self.read = state.LedgerWriter(self.disk.directory), 0
        self.snapshot = Snapshot(ledger=Ledger(boot_id=BOOT))
        for fact in (LedgerLoaded(remembered), ConfigLoaded(SETTINGS), *((again,) if again else ())):
            self.apply(fact)
        if self.disk.random.random() < 0.5:
            self.look()
        self.apply(self.held or AllocationsListed((), self.now))
        self.look()


def undisturbed(history: tuple[Moment, ...], unknown: list[FaultOccurred]) -> Life:
    """One agent, that does not hear of what cannot be known."""
    life = Life()
    for moment in history:
        life.wait(moment.after, answer=True)
        if moment.fact is None or not any(moment.fact is fact for fact in unknown):
            life.live(moment)
    return life


def disturbed(history: tuple[Moment, ...], disk: Disk, patient: bool) -> Mortal:
    """Agents that die at writes, at random."""
    life, moments = Mortal(disk), list(history)
    while moments:
        moment = moments.pop(0)
        at = life.now + moment.after
        if life.dying == 0 and disk.random.random() < 0.2:
            life.dying = disk.random.randint(1, 25)
        try:
            life.wait(moment.after, answer=True)
        except Killed:
            moments.insert(0, moment.but(after=at - life.now))
            succeed(life, None, moments, patient)
            continue
        try:
            life.live(moment)
        except Killed:
            succeed(life, moment, moments, patient)
    succeed(life, None, [], patient)
    life.dying = 0
    return life


def succeed(life: Mortal, told: Moment | None, moments: list[Moment], patient: bool) -> None:
    """The next agent comes: at once, or, `patient`, after some of the moments to come.

    `told`: what the dead one heard last.
    """
    chance = life.disk.random
    remembered, _ = state.load_ledger(life.disk.directory, BOOT)
    written = remembered.health == life.snapshot.ledger.health
    if (
        told is not None
        and isinstance(told.fact, FaultOccurred)
        and told.fact.kernel_log_number is None
        and not written
    ):
        life.unknown.append(told.fact)
    missed = [told] if told else []
    if life.shown is not life.machine and (told is None or told.kind != "change"):  # the driver was let go of
        missed.append(Moment("change", 0.0, frozenset(gpu.index for gpu in WHOLE.gpus or ()), mends=True))
    while (
        patient
        and moments
        and chance.random() < 0.6
        and not driver_release_reason(life.snapshot)
        and _can_miss(moments[0], missed)
    ):
        missed.append(moments.pop(0))
        life.absent(missed[-1])
    again = (
        life.worded(told.fact)
        if told is not None and isinstance(told.fact, DrainRequested | DriverReleaseRequested)
        else None
    )
    while True:
        life.dying = chance.randint(1, 25) if chance.random() < 0.1 else 0
        try:
            life.start(again)
            return
        except Killed:
            pass


def _can_miss(moment: Moment, missed: list[Moment]) -> bool:
    """Whether all stays knowable: nobody speaks then, and no change of a GPU hides another, or when it was reset."""
    if moment.kind not in ("change", "event") or any(each.kind not in ("change", "event") for each in missed):
        return False
    return not any(moment.gpus & each.gpus and _hides(moment, each) for each in missed)


def _hides(moment: Moment, other: Moment) -> bool:
    return moment.mends or other.mends or moment.kind == other.kind == "change"


def relapses(life: Life, device: str) -> int:
    """How often a device was ill again soon after it had recovered, as this agent knows."""
    records = life.snapshot.ledger.health
    record = records.devices.get(device) if records is not None else None
    return record.relapses if record is not None else 0


@pytest.mark.timeout(length(300, 3000))
@pytest.mark.parametrize("patient", [False, True], ids=["at once", "after a while"])
def test_verdicts_survive_a_crash_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: bool, seed: int
) -> None:
    """Random histories, half of them each way."""
    disk = Disk(tmp_path, monkeypatch)
    deaths = unknown = ill = mended = 0
    for _ in range(HISTORIES // 2):
        seed += 1
        disk.random.seed(seed)
        history = Maker(seed).history(disk.random.randint(5, 20))
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        life = disturbed(history, disk, patient)
        assert all(event.kernel_log_number is None for event in life.unknown)
        expected = undisturbed(history, life.unknown)
        life.settle()
        expected.settle()
        known = {device for device in expected.ill() if relapses(life, device) >= relapses(expected, device)}
        assert life.ill() >= known, f"seed {seed}"
        assert patient or life.verdicts() == expected.verdicts(), f"seed {seed}"
        ill += len(expected.ill())
        life.mend()
        expected.mend()
        assert life.verdicts() == expected.verdicts(), f"seed {seed}"
        deaths, unknown, mended = deaths + life.deaths, unknown + len(life.unknown), mended + len(expected.ill())
    assert min(deaths, ill, mended) > HISTORIES / 4  # half of what is usual
    assert unknown or not soaking()  # one history in ten loses a fault before it is written
