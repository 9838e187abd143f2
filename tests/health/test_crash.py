"""A crash at any write costs nothing that a look or the kernel log can still show.

Each history is lived through twice: once undisturbed, and once by agents that die at random moments of their writing.
Where the next agent comes at once, both come to the same verdicts: state and deciding fault of every device. Where it
comes after a while, they come to tell kubelet the same, and to the same verdicts once looks show nothing any more (till
then a fault may still be there that an agent would have found to be over while none was there).

What cannot be known is computed, and the undisturbed agent does not hear of it either: the XIDs that the kernel log
does not have, and that fell between the last completed write and the next agent's start. The order of two things that
both happened in that time cannot be known either; so of things of which it matters a history has one in such a time:
a reset, or what needs one, of one GPU. People repeat what was not answered.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuplane.core.health.diagnose import released
from gpuplane.host import state
from gpuplane.model.facts import Configured, Drained, Fact, Happened, Listed, ReleaseWished, Remembered, Stood
from gpuplane.model.snapshot import LET_GO, Condition, Ledger, Snapshot
from tests.health.histories import RELEASE, WHOLE, Maker, Moment
from tests.health.world import BOOT, SETTINGS, World

HISTORIES, SOAK = 1000, 20_000
SETTLING = 2000.0
"""Seconds after which nothing changes any more: the longest calm and pause, and the longest time that ends a fault."""


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


class Life(World):
    """Agents, one after another, that live through a history."""

    listens = False

    def __init__(self, disk: Disk | None = None) -> None:
        self.disk, self.written, self.dying = disk, dict[str, Any].fromkeys(state.PARTS), 0
        self.kernel_log: list[Happened] = []
        self.read = 0
        self.unknown: list[Happened] = []
        self.shown = WHOLE  # the machine at the last look
        self.deaths = 0
        self.held: Listed | None = None
        super().__init__(WHOLE)

    def tell(self, fact: Fact) -> None:
        """A fact; it is on disk before the next one comes. When the driver is let go of, and taken up, it is."""
        before = self.snapshot
        super().tell(fact)
        self.store(before.ledger)
        was, now = bool(released(before)), bool(released(self.snapshot))
        if now and not was:
            self.tell(Stood("driver", Condition(standing="waiting", reason=LET_GO)))
        elif was and not now:
            self.look()
        if self.snapshot.machine is not None and self.snapshot.machine.gpus is not None:
            while self.read < len(self.kernel_log):
                self.read += 1
                super().tell(self.kernel_log[self.read - 1])
                self.store(None)

    def store(self, before: Ledger | None) -> None:
        if self.disk is None or self.snapshot.ledger == before:
            return
        self.disk.left, self.dying = self.dying, 0
        try:
            assert state._store(self.disk.directory, self.snapshot.ledger, self.written) is None
        finally:
            self.dying, self.disk.left = self.disk.left, 0

    def look(self) -> None:
        if not released(self.snapshot):
            super().look()
            self.shown = self.machine

    def live(self, moment: Moment) -> None:
        """What happens at a moment."""
        fact = moment.fact
        if moment.kind == "change":
            self.machine, self.processes = moment.machine, dict(moment.processes)
            self.look()
        elif isinstance(fact, Happened):
            self.befall(fact)
        elif isinstance(fact, Listed):
            self.held = Listed(fact.allocations, self.now)
            self.tell(self.held)
        elif fact is not None:
            self.tell(self.worded(fact))

    def worded(self, fact: Drained | ReleaseWished) -> Fact:
        """A person's word, with times that count from now."""
        if isinstance(fact, Drained) and fact.drain is not None:
            return fact if fact.drain.until is None else fact.but(drain=fact.drain.but(until=self.now + 300))
        if isinstance(fact, ReleaseWished) and fact.release is not None:
            return fact.but(release=fact.release.but(until=self.now + RELEASE))
        return fact

    def befall(self, event: Happened) -> None:
        """The kernel log tells of it, or the driver alone does, to whoever has not let go of it."""
        event = event.but(at=self.now)
        if event.log is not None:
            self.kernel_log.append(event)
            self.tell(Stood("kernel log", None))  # that there is more of it to read
        elif not released(self.snapshot):
            self.tell(event)

    def absent(self, moment: Moment) -> None:
        """What happens at a moment while there is no agent."""
        self.now += moment.after
        if moment.kind == "change":
            self.machine, self.processes = moment.machine, dict(moment.processes)
        elif isinstance(moment.fact, Happened) and moment.fact.log is not None:
            self.kernel_log.append(moment.fact.but(at=self.now))
        else:
            assert isinstance(moment.fact, Happened)
            self.unknown.append(moment.fact)

    def start(self, again: Fact | None) -> None:
        """The next agent: with what is on disk, it looks, hears of kubelet, and reads the kernel log from its start."""
        assert self.disk is not None
        self.deaths += 1
        remembered, problems = state.load(self.disk.directory, BOOT)
        assert problems == []
        self.snapshot, self.written, self.read = Snapshot(ledger=Ledger(boot_id=BOOT)), dict.fromkeys(state.PARTS), 0
        for fact in (Remembered(remembered), Configured(SETTINGS), *((again,) if again else ())):
            self.tell(fact)
        if self.disk.random.random() < 0.5:
            self.look()
        self.tell(self.held or Listed((), self.now))
        self.look()

    def settle(self) -> None:
        """Nothing happens any more."""
        self.wait(SETTLING, answer=True)

    def mend(self) -> None:
        """Looks come to show nothing."""
        self.machine, self.processes = WHOLE, {}
        self.look()
        self.settle()


def undisturbed(history: tuple[Moment, ...], unknown: list[Happened]) -> Life:
    """One agent, that does not hear of what cannot be known."""
    life = Life()
    for moment in history:
        life.wait(moment.after, answer=True)
        if moment.fact is None or not any(moment.fact is fact for fact in unknown):
            life.live(moment)
    return life


def disturbed(history: tuple[Moment, ...], disk: Disk, patient: bool) -> Life:
    """Agents that die at writes, at random."""
    life, moments = Life(disk), list(history)
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


def succeed(life: Life, told: Moment | None, moments: list[Moment], patient: bool) -> None:
    """The next agent comes: at once, or, `patient`, after some of the moments to come.

    `told`: what the dead one heard last.
    """
    assert life.disk is not None
    chance = life.disk.random
    remembered, _ = state.load(life.disk.directory, BOOT)
    written = remembered.health == life.snapshot.ledger.health
    if told is not None and isinstance(told.fact, Happened) and told.fact.log is None and not written:
        life.unknown.append(told.fact)
    missed = [told] if told else []
    if life.shown is not life.machine and (told is None or told.kind != "change"):  # the driver was let go of
        missed.append(Moment("change", 0.0, frozenset(gpu.index for gpu in WHOLE.gpus or ()), mends=True))
    while (
        patient and moments and chance.random() < 0.6 and not released(life.snapshot) and _can_miss(moments[0], missed)
    ):
        missed.append(moments.pop(0))
        life.absent(missed[-1])
    again = life.worded(told.fact) if told is not None and isinstance(told.fact, Drained | ReleaseWished) else None
    while True:
        life.dying = chance.randint(1, 25) if chance.random() < 0.1 else 0
        try:
            life.start(again)
            return
        except Killed:
            pass


def _can_miss(moment: Moment, missed: list[Moment]) -> bool:
    """Whether all stays knowable: nobody speaks meanwhile, and there is no order of a reset and something else."""
    if moment.kind not in ("change", "event") or any(each.kind not in ("change", "event") for each in missed):
        return False
    return not any(moment.gpus & each.gpus and (moment.mends or each.mends) for each in missed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("patient", [False, True], ids=["at once", "after a while"])
def test_verdicts_survive_a_crash_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soak: bool, patient: bool
) -> None:
    """A thousand histories, half of them each way; twenty thousand with `--soak`."""
    disk = Disk(tmp_path, monkeypatch)
    deaths = unknown = ill = mended = 0
    for seed in range((SOAK if soak else HISTORIES) // 2):
        disk.random.seed(seed)
        history = Maker(seed).history(disk.random.randint(5, 20))
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        life = disturbed(history, disk, patient)
        assert all(event.log is None for event in life.unknown)
        expected = undisturbed(history, life.unknown)
        life.settle()
        expected.settle()
        assert life.ill() == expected.ill(), f"seed {seed}"
        assert patient or life.verdicts() == expected.verdicts(), f"seed {seed}"
        ill += len(expected.ill())
        life.mend()
        expected.mend()
        assert life.verdicts() == expected.verdicts(), f"seed {seed}"
        deaths, unknown, mended = deaths + life.deaths, unknown + len(life.unknown), mended + len(expected.ill())
    assert deaths > 2 * HISTORIES / 2
    assert unknown > HISTORIES / 50
    assert min(ill, mended) > HISTORIES / 2
