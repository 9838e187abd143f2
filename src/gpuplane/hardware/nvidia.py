"""The machine as NVIDIA's driver shows it: a process of its own looks (`driver`), and this keeps one such process up.

The driver's library may hang, crash, be absent or be replaced. Whatever it does, the agent goes on answering, and what
it did is told as a fact:
- A hang or a crash in a call about one GPU is charged to that GPU: the next process serves the others, and the GPU is
  tried again later. In a call about none it is the driver that is silent; its last look stays in force.
- A process is killed, never waited for: one that is stuck in the kernel survives even that. One such process is left
  behind; with two there is no third.
- Every end that was not wanted costs a rest before the next start, twice as long each time, until a process has done
  well for a while. Silence of the driver as a whole also doubles the next one's deadline: GPUs without persistence
  take long to wake.
- Letting go is killing too, because the end of a process is the one proof that no device node is open.
"""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuplane.hardware.charges import Charges, charge, in_force
from gpuplane.hardware.child import Child
from gpuplane.hardware.driver.channel import Options, Skip, Skipped
from gpuplane.hardware.driver.errors import breakdown, crash, hang, silence
from gpuplane.model.facts import Action, Fact, Looked, Probe, Stood
from gpuplane.model.machine import Fault, Machine
from gpuplane.model.snapshot import LET_GO, Condition

Tell = Callable[[Fact], None]

STUCK = 1
"""Processes that survive being killed which are left behind while another one is started."""
KILLING = 1.0
"""Seconds that a killed process is given before it counts as stuck in the kernel."""
LONGEST = 60.0
"""Seconds that a call may take at the most, however often it was too slow."""


class Nvidia:
    """Hardware through NVML. All times are in seconds."""

    def __init__(
        self,
        *,
        library: Path | None = None,
        driver_root: Path = Path("/"),
        root: Path = Path("/"),
        poll: float = 1.0,
        deadline: float = 10.0,
        retry: tuple[float, float] = (60.0, 3600.0),
        rest: tuple[float, float] = (0.5, 30.0),
        well: float = 60.0,
    ) -> None:
        """`library` is libnvidia-ml's file; without it, it is searched for below `driver_root`. `root` has /sys, /proc
        and /dev in it. A look is taken every `poll`, and a call that takes longer than `deadline` hangs. A GPU that a
        hang or a crash was charged to is skipped for the first of `retry`, doubling up to the second; so is `rest`
        before a start that follows an end that was not wanted, until a process has done well for `well`.
        """
        self._options = Options(
            channel=-1,
            page=-1,
            library=str(library or ""),
            driver_root=str(driver_root),
            root=str(root),
            poll=poll,
            rest=rest[1],
        )
        self._deadline, self._retry, self._rest, self._well = deadline, retry, rest, well
        self._wanted, self._changed = True, asyncio.Event()
        self._children: list[Child] = []  # all that are not known to have ended; the last may be at work
        self._charges: Charges = ()
        self._look = Machine()
        self._failures = self._silences = 0
        self._resting = 0.0  # until when

    async def facts(self) -> AsyncGenerator[Fact, None]:
        """Looks and how the driver stands, for ever."""
        told = asyncio.Queue[Fact | None]()
        task = asyncio.create_task(self._keep(told.put_nowait))
        task.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (fact := await told.get()) is not None:
                yield fact
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def do(self, action: Action) -> None:
        """Look now. Where the driver was let go of it is taken up, and no charge holds: a GPU may have been reset."""
        if isinstance(action, Probe):
            raise NotImplementedError
        if not self._wanted:
            self._wanted, self._resting, self._charges = True, 0.0, ()
            self._changed.set()
        elif self._children and not self._children[-1].ended:
            self._children[-1].order(action)

    async def release(self) -> None:
        """End the driver's process. Returns when no device node is open, or when it is known that one stays."""
        self._wanted = False
        self._changed.set()
        for child in self._children:
            child.dismissed = True
            child.kill()
        for child in self._children:
            await child.gone(KILLING)

    async def _keep(self, tell: Tell) -> None:
        """One process after another."""
        while True:
            await self._may_start(tell)
            began = time.monotonic()
            try:
                child = Child(self._set_up)
            except OSError as error:
                message = f"the driver's process cannot be started: {error.strerror}"
                self._fail(Fault(code="driver-start", message=message), tell)
                self._back_off(began)
                continue
            self._children.append(child)
            self._resting = began + self._rest[0]
            try:
                life = await self._follow(child, tell)
                if not life.silent:
                    await child.gone(KILLING)  # with a status of its own, if it has ended by itself
            finally:
                child.kill()
            await child.gone(KILLING)
            if not child.dismissed and not (child.status() == 0 and life.heard):
                self._judge(child, life, tell)
                self._back_off(began)

    async def _may_start(self, tell: Tell) -> None:
        let_go = False
        while True:
            self._children = [child for child in self._children if not child.is_gone()]
            now = time.monotonic()
            if (standing := self._held_back()) is not None:
                let_go = standing.standing == "waiting"
                tell(Stood("driver", standing))
            elif now >= self._resting:
                if let_go:
                    tell(Stood("driver", Condition(standing="waiting", reason="being taken up again")))
                return
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._resting - now if standing is None else KILLING):
                    await self._changed.wait()

    def _held_back(self) -> Condition | None:
        """How the driver stands while no process may be started; None while one may."""
        stuck = ", ".join(str(child.pid) for child in self._children)
        if not self._wanted and stuck:
            reason = f"it shall be let go of, but process {stuck} is stuck in the kernel and may hold it open"
            return Condition(standing="failing", reason=reason)
        if not self._wanted:
            return Condition(standing="waiting", reason=LET_GO)
        if len(self._children) > STUCK:
            reason = f"the driver's processes {stuck} are stuck in the kernel; when one ends, another is started"
            return Condition(standing="failing", reason=reason)
        return None

    def _set_up(self, channel: int, page: int) -> Options:
        return self._options.but(channel=channel, page=page, skip=in_force(self._charges, time.monotonic()))

    async def _follow(self, child: Child, tell: Tell) -> "_Life":
        """Pass on what the process tells, until it ends or is silent."""
        heard = saw = False
        skipped = in_force(self._charges, time.monotonic())
        while True:
            tick, asked = min(1.0, self._patience() / 4), time.monotonic()
            fact = await child.receive(tick)
            now = time.monotonic()
            if fact is not None:
                heard = True
                tell(fact)
            elif child.ended:
                return _Life(heard, saw)
            elif now - asked < 2 * tick and now - child.announced().since > self._patience():  # we were awake ourselves
                return _Life(heard, saw, silent=True)
            if isinstance(fact, Looked) and fact.machine.gpus is not None:
                self._look, self._silences, saw = fact.machine, 0, True
            if (force := in_force(self._charges, now)) != skipped:
                skipped = force
                child.order(Skip(force))

    def _patience(self) -> float:
        """How long a call may take now."""
        return min(self._deadline * (1 << min(self._silences, 8)), max(LONGEST, self._deadline))

    def _judge(self, child: Child, life: "_Life", tell: Tell) -> None:
        """Say what an end that was not wanted was about."""
        announced = child.announced()
        function = announced.function or "its own work"
        if announced.gpu is not None:
            self._charge(announced.gpu, (hang if life.silent else crash)(function), tell)
        elif life.silent:
            self._fail(silence(function), tell)
            self._silences += 1
        else:
            reason = f"its process ended by {_cause(child.status())} in {function}"
            self._fail(breakdown(function).but(message=reason), tell)

    def _fail(self, fault: Fault, tell: Tell) -> None:
        """The driver as a whole fails: the last look stays, for as long as the catalogue has patience."""
        tell(Looked(self._look.but(gpus=None, faults=(fault,))))
        tell(Stood("driver", Condition(standing="failing", reason=fault.message)))

    def _charge(self, index: int, fault: Fault, tell: Tell) -> None:
        """Skip a GPU for a while, and say so at once: its next process may take its time."""
        gpus = self._look.gpus or ()
        pci = next((gpu.pci for gpu in gpus if gpu.index == index), "")
        skipped = Skipped(index=index, pci=pci, fault=fault)
        self._charges = charge(self._charges, skipped, time.monotonic(), *self._retry)
        if gpus:
            tell(Looked(self._look.but(gpus=tuple(g.but(faults=(fault,)) if g.index == index else g for g in gpus))))

    def _back_off(self, began: float) -> None:
        now = time.monotonic()
        if now - began > self._well:
            self._failures = 0
        self._resting = now + min(self._rest[0] * (1 << min(self._failures, 16)), self._rest[1])
        self._failures += 1


@dataclass(frozen=True)
class _Life:
    """What one process did: whether it told anything, whether it saw the GPUs, whether it fell silent."""

    heard: bool
    saw: bool
    silent: bool = False


def _cause(status: int | None) -> str:
    if status is None:
        return "an exit that it does not finish"
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
