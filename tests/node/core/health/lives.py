"""A world that lives through random histories: with a kernel log, a driver that is let go of, and people's words."""

from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.model.facts import (
    AllocationsListed,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    StatusChanged,
)
from gpuplane.node.model.snapshot import Ledger
from gpuplane.node.model.status import DRIVER_PART, KERNEL_LOG_PART, DriverStatus
from tests.node.core.health.histories import RELEASE, WHOLE, Moment
from tests.node.core.health.world import World

SETTLING = 1100.0
"""Seconds after which nothing changes any more: the longest calm and pause, and the longest time that ends a fault."""


class Life(World):
    """An agent that is told of a history as the rooms around it would tell it."""

    listens = False

    def __init__(self) -> None:
        self.kernel_log: list[FaultOccurred] = []
        self.read = 0  # how much of it
        self.held: AllocationsListed | None = None
        self.shown = WHOLE  # the machine at the last look
        super().__init__(WHOLE)

    def apply(self, fact: Fact) -> None:
        """A fact, and what follows from it."""
        before = self.snapshot.ledger
        super().apply(fact)
        self.follow(before)

    def follow(self, before: Ledger) -> None:
        """The driver is let go of or taken up, and the kernel log is read once it can be judged."""
        was, now = (
            bool(driver_release_reason(self.snapshot.but(ledger=before))),
            bool(driver_release_reason(self.snapshot)),
        )
        if now and not was:
            self.apply(StatusChanged(DRIVER_PART, DriverStatus(state="waiting", text="released", released=True)))
        elif was and not now:
            self.look()
        if self.snapshot.machine is not None and self.snapshot.machine.gpus is not None:
            while self.read < len(self.kernel_log):
                self.read += 1
                self.apply(self.kernel_log[self.read - 1])

    def look(self) -> None:
        """A look, where the driver has not been let go of."""
        if not driver_release_reason(self.snapshot):
            super().look()
            self.shown = self.machine

    def live(self, moment: Moment) -> None:
        """What happens at a moment."""
        fact = moment.fact
        if moment.kind == "change":
            self.machine, self.processes = moment.machine, dict(moment.processes)
            self.look()
        elif isinstance(fact, FaultOccurred):
            self.befall(fact)
        elif isinstance(fact, AllocationsListed):
            self.held = AllocationsListed(fact.allocations, self.now)
            self.apply(self.held)
        elif fact is not None:
            self.apply(self.worded(fact))

    def worded(self, fact: DrainRequested | DriverReleaseRequested) -> Fact:
        """A person's word, with times that count from now."""
        if isinstance(fact, DrainRequested) and fact.drain is not None:
            return fact if fact.drain.until is None else fact.but(drain=fact.drain.but(until=self.now + 300))
        if isinstance(fact, DriverReleaseRequested) and fact.release is not None:
            return fact.but(release=fact.release.but(until=self.now + RELEASE))
        return fact

    def befall(self, event: FaultOccurred) -> None:
        """The kernel log tells of it, or the driver alone does, where it works and nobody has let go of it."""
        event = event.but(at=self.now)
        if event.kernel_log_number is not None:
            self.kernel_log.append(event)
            self.apply(StatusChanged(KERNEL_LOG_PART, None))  # that there is more of it to read
        elif self.machine.gpus is not None and not driver_release_reason(self.snapshot):
            self.apply(event)

    def settle(self) -> None:
        """Nothing happens any more."""
        self.wait(SETTLING, answer=True)

    def mend(self) -> None:
        """Looks come to show nothing."""
        self.machine, self.processes = WHOLE, {}
        self.look()
        self.settle()
