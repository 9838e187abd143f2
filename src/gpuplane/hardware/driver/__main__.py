"""Load the driver, look at the machine, say what is new: see the package."""

import ctypes
import select
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from gpuplane.hardware.driver import library
from gpuplane.hardware.driver.channel import Frames, Options, Order, Skip, Skipped, Told, frame
from gpuplane.hardware.driver.errors import Failed, driver_fault
from gpuplane.hardware.driver.files import Files
from gpuplane.hardware.driver.look import Looker
from gpuplane.hardware.driver.nvml import Nvml
from gpuplane.hardware.driver.page import Page
from gpuplane.model.facts import Looked, Stood
from gpuplane.model.machine import Driver, Machine
from gpuplane.model.snapshot import Condition

SLICE = 0.25
"""Seconds that one wait for events lasts: the longest that an order has to wait."""
BREATH = 0.05
"""Seconds between looks, at the least: events may come in storms."""
PR_SET_PDEATHSIG = 1


class Agent:
    """The agent's end: what it is told, and what it orders. It is told nothing twice."""

    def __init__(self, options: Options) -> None:
        self._socket = socket.socket(fileno=options.channel)
        self._orders: Frames[Order] = Frames(Order)
        self._told: dict[str, Told] = {}
        self.skipped: tuple[Skipped, ...] = options.skip

    def tell(self, fact: Told) -> None:
        """Say how something is now, if that is new."""
        kind = type(fact).__name__
        if self._told.get(kind) != fact:
            self._told[kind] = fact
            try:
                self._socket.sendall(frame(fact))
            except OSError:
                sys.exit()

    def ordered(self, seconds: float) -> bool:
        """Whether an order came within the time, after doing all of it but the look. Ends with the agent."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return False
        data = self._socket.recv(65536)
        if not data:
            sys.exit()
        for order in self._orders.feed(data):
            if isinstance(order, Skip):
                self.skipped = order.gpus
        return True


def main() -> None:
    """Run until the agent goes, or until a new process is wanted: then the status is 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the agent's
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # an agent that dies cannot kill us
    options = msgspec.json.decode(sys.argv[1], type=Options)
    agent, page, files = Agent(options), Page(options.page), Files(options.root)
    before = library.state(options, files)
    try:
        nvml = Nvml(page)
        driver = library.start(nvml, options, files)
        _follow(agent, Looker(nvml, files, driver), files, driver, options.poll)
    except library.Unusable as unusable:
        fault = unusable.fault
    except Failed as failed:
        fault = driver_fault(failed.function, failed.error)
    else:
        return
    agent.tell(Looked(Machine(switches=files.switches(), nodes=files.control_nodes(), faults=(fault,))))
    agent.tell(Stood("driver", Condition(standing="failing", reason=fault.message)))
    _rest(agent, page, lambda: library.state(options, files) != before, options)


def _follow(agent: Agent, looker: Looker, files: Files, driver: Driver, poll: float) -> None:
    """Look at the machine until the kernel's driver is another one. Raises Failed where a look is not possible."""
    reason = f"driver {driver.version}, CUDA {driver.cuda}"
    kernel = library.kernel_state(files)
    while True:
        agent.tell(Looked(looker.look(agent.skipped)))
        agent.tell(Stood("driver", Condition(standing="ok", reason=reason)))
        _wait(agent, looker, poll)
        if library.kernel_state(files) != kernel:
            return


def _wait(agent: Agent, looker: Looker, poll: float) -> None:
    """Until the next look is due, or wanted at once."""
    began = time.monotonic()
    until = began + poll
    while (left := until - time.monotonic()) > 0 and not agent.ordered(0):
        if looker.events.wait(min(left, SLICE)):
            until = min(until, began + BREATH)


def _rest(agent: Agent, page: Page, changed: Callable[[], bool], options: Options) -> None:
    """Until it may be worth while to try again, in a new process."""
    until = time.monotonic() + options.rest
    while time.monotonic() < until and not changed():
        page.end()
        if agent.ordered(min(options.poll, options.rest, 1.0)):
            return


if __name__ == "__main__":
    main()
