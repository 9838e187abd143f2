"""Load the driver, look at the machine, say what is new: see the package."""

import ctypes
import fcntl
import functools
import select
import signal
import socket
import sys
import termios
import time
from collections.abc import Callable, Sequence

import msgspec

from gpuplane.node.hardware.nvidia.driver import library
from gpuplane.node.hardware.nvidia.driver.callpage import CallPage
from gpuplane.node.hardware.nvidia.driver.channel import (
    MAX_MESSAGE_SIZE,
    DriverMessage,
    DriverOptions,
    DriverStatusChanged,
    FrameDecoder,
    Order,
    SetSampling,
    SkipGpus,
    SkippedGpu,
    encode_frame,
)
from gpuplane.node.hardware.nvidia.driver.driverfiles import DriverFilesSearch
from gpuplane.node.hardware.nvidia.driver.errors import CallFailed, driver_fault
from gpuplane.node.hardware.nvidia.driver.events import MAX_EVENTS_AT_ONCE, DriverBindings
from gpuplane.node.hardware.nvidia.driver.gpuprocesses import ProcessIdentities
from gpuplane.node.hardware.nvidia.driver.kernelfiles import KernelFiles
from gpuplane.node.hardware.nvidia.driver.migchanges import MigChanger
from gpuplane.node.hardware.nvidia.driver.nvml import Nvml
from gpuplane.node.hardware.nvidia.driver.observation import Observer
from gpuplane.node.hardware.nvidia.driver.openers import find_openers
from gpuplane.node.hardware.nvidia.driver.sampler import EARLY_SAMPLE_TOLERANCE, Sampler
from gpuplane.node.model.facts import (
    ChangePartition,
    FaultOccurred,
    MachineObserved,
    PartitionChangeFinished,
    ProbeFinished,
    ProbeGpu,
)
from gpuplane.node.model.machine import Driver, Gpu, Machine
from gpuplane.node.model.status import DriverStatus
from gpuplane.node.model.telemetry import Sample

MIN_OBSERVATION_INTERVAL = 0.05
"""Seconds between looks, at the least: events may come in storms."""
CHANGE_FOLLOW_UP_PERIOD = 5.0
"""Seconds after a change of partitions in which orders are looked for often: changes come one after another."""
PR_SET_PDEATHSIG = 1


class AgentConnection:
    """The agent's end: what it is told, and what it orders. What stands is told once, what happens each time."""

    def __init__(self, options: DriverOptions) -> None:
        self._socket = socket.socket(fileno=options.channel)
        self._orders: FrameDecoder[Order] = FrameDecoder(Order)
        self._told: dict[str, DriverMessage] = {}
        self._unsent = b""  # the rest of a sample
        self.skipped: tuple[SkippedGpu, ...] = options.skip
        self.sampling = options.sampling
        self.changes: list[ChangePartition] = []
        """Of partitions, that are still to be made."""

    def tell(self, fact: DriverMessage) -> None:
        """Say what happened, or how something is now, if that is new."""
        kind = type(fact).__name__
        if isinstance(fact, FaultOccurred | PartitionChangeFinished) or self._told.get(kind) != fact:
            self._told[kind] = fact
            try:
                self._socket.sendall(self._unsent + encode_frame(fact))
            except OSError:
                sys.exit()
            self._unsent = b""

    @property
    def owes(self) -> bool:
        """Whether a part of a sample is still to be sent."""
        return bool(self._unsent)

    def offer(self, take: Callable[[], Sample] | None) -> None:
        """Send what is left of a sample; without that, take one and send it. It never waits. While the agent has not
        read what was sent before, none is taken: it wants the newest, and there has to be room for facts."""
        if not self._unsent and take is not None and not self._unread():
            self._unsent = encode_frame(take())
        if self._unsent:
            try:
                self._unsent = self._unsent[self._socket.send(self._unsent, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                pass
            except OSError:
                sys.exit()

    def _unread(self) -> bool:
        """Whether the agent has still to read anything (unix(7), SIOCOUTQ)."""
        return int.from_bytes(fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder) > 0

    def ordered(self, seconds: float) -> bool:
        """Whether an order came within the time, after doing all of it but the look. Ends with the agent."""
        if not select.select([self._socket], [], [], seconds)[0]:
            return False
        data = self._socket.recv(65536)
        if not data:
            sys.exit()
        for order in self._orders.feed(data):
            if isinstance(order, SkipGpus):
                self.skipped = order.gpus
            elif isinstance(order, SetSampling):
                self.sampling = order.request
            elif isinstance(order, ChangePartition):
                self.changes.append(order)
        return True


def main() -> None:
    """Run until the agent goes, or until a new process is wanted: then the status is 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the agent's
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # an agent that dies cannot kill us
    options = _options()
    agent, page, files = AgentConnection(options), CallPage(options.page), KernelFiles(options.root, options.dev_root)
    before, kernel = library.library_state(options, files), library.kernel_driver_state(files)
    try:
        nvml = Nvml(page)
        driver = library.load_library(nvml, options, files)
        installed = DriverFilesSearch(options.driver_root, files, options.root_chosen, options.library_folders)
        observer = Observer(nvml, files, driver, installed)
        if options.probe is not None:
            agent.tell(_probe(options.probe, observer, agent.skipped))
        else:
            sampler = Sampler(nvml, observer, ProcessIdentities(options.root, options.host_pids), driver.version)
            changer = MigChanger(nvml, functools.partial(find_openers, options.root, host_pids=options.host_pids))
            watch = ObservationLoop(agent, observer, DriverBindings(nvml), sampler, changer, options.event_wait)
            watch.follow(driver, options.poll, lambda: library.kernel_driver_state(files) != kernel)
    except library.DriverUnusable as unusable:
        fault = unusable.fault
    except CallFailed as failed:
        fault = driver_fault(failed.function, failed.error)
    else:
        return None
    if options.probe is not None:
        gpu = Gpu(index=-1, uuid=options.probe.gpu, faults=(fault,))
        return agent.tell(ProbeFinished(requested_at=options.probe.requested_at, gpu=gpu))
    nodes = files.nodes.shared()
    numbers = files.nodes.numbers(nodes, files.majors())
    agent.tell(
        MachineObserved(
            Machine(
                switches=files.switches(),
                shared_nodes=nodes,
                device_node_stats=numbers,
                product=files.product(),
                vgpu=files.vgpu(),
                faults=(fault,),
            )
        )
    )
    agent.tell(DriverStatusChanged(DriverStatus("failing", fault.message, fault.code)))
    _rest(agent, page, lambda: library.library_state(options, files) != before, options)


def _options() -> DriverOptions:
    """From the argument; without one, from whoever started us, at the socket that is our standard input."""
    if len(sys.argv) > 1:
        return msgspec.json.decode(sys.argv[1], type=DriverOptions)
    line = socket.socket(fileno=0)
    written, descriptors, _, _ = socket.recv_fds(line, MAX_MESSAGE_SIZE, 2)
    line.detach()  # it stays the standard input: no file shall get its number
    if len(descriptors) != 2:  # nobody wants us
        sys.exit()
    return msgspec.json.decode(written, type=DriverOptions).but(channel=descriptors[0], page=descriptors[1])


def _probe(probe: ProbeGpu, observer: Observer, skipped: Sequence[SkippedGpu]) -> ProbeFinished:
    gpu, pids = observer.probe(probe.gpu, skipped)
    return ProbeFinished(requested_at=probe.requested_at, gpu=gpu, pids=pids)


class ObservationLoop:
    """Looks at the machine, one after another. In between it takes samples, and tells what happens."""

    def __init__(
        self,
        agent: AgentConnection,
        observer: Observer,
        bindings: DriverBindings,
        sampler: Sampler,
        changer: MigChanger,
        event_wait: float,
    ) -> None:
        self._agent, self._observer, self._bindings, self._event_wait = agent, observer, bindings, event_wait
        self._sampler, self._changer = sampler, changer
        self._attentive_until = 0.0

    def follow(self, driver: Driver, poll: float, changed: Callable[[], bool]) -> None:
        """Look until the kernel's driver is another one. Raises CallFailed where a look is not possible."""
        reason = f"driver {driver.version}, CUDA {driver.cuda}"
        made: PartitionChangeFinished | None = None
        while True:
            self._agent.tell(MachineObserved(self._observer.observe(self._agent.skipped)))
            self._agent.tell(DriverStatusChanged(DriverStatus("ok", reason)))
            if made is not None:
                self._agent.tell(made)
            for binding in self._bindings.take():
                self._agent.tell(binding)
            if not self._agent.changes:
                self._wait(poll)
            if changed():
                return
            made = self._change()

    def _change(self) -> PartitionChangeFinished | None:
        """Make the next change of partitions, if there is one; what became of it is told after a look that shows it."""
        if not self._agent.changes:
            return None
        action = self._agent.changes.pop(0)
        subject = next((each for each in self._observer.subjects if each.gpu.uuid == action.gpu), None)
        told = self._changer.make(action, subject)
        self._observer.forget_instances(action.gpu)
        self._attentive_until = time.monotonic() + CHANGE_FOLLOW_UP_PERIOD
        return told

    def _wait(self, poll: float) -> None:
        """Until the next look is due, or wanted at once: samples are taken, what happens is told, and looked at soon.

        In a storm of events one wait takes few of them, so that looks go on; the others wait with the driver.
        """
        began = time.monotonic()
        until = began + poll
        while (left := until - time.monotonic()) > 0 and not self._agent.ordered(0):
            happened = 0
            at_most = MIN_OBSERVATION_INTERVAL if time.monotonic() < self._attentive_until else self._event_wait
            for event in self._observer.events.wait(max(0.0, min(left, at_most, self._sample()))):
                self._agent.tell(event)
                happened += 1
            if happened:
                until = min(until, began + MIN_OBSERVATION_INTERVAL)
            if happened >= MAX_EVENTS_AT_ONCE:
                time.sleep(max(0.0, until - time.monotonic()))

    def _sample(self) -> float:
        """Take the sample that is due; seconds until the next one is."""
        self._sampler.request(self._agent.sampling)
        if time.monotonic() >= self._sampler.due - EARLY_SAMPLE_TOLERANCE:
            self._sampler.put_off()
            self._agent.offer(self._sampler.take)
        elif self._agent.owes:
            self._agent.offer(None)
        return MIN_OBSERVATION_INTERVAL if self._agent.owes else self._sampler.due - time.monotonic()


def _rest(agent: AgentConnection, page: CallPage, changed: Callable[[], bool], options: DriverOptions) -> None:
    """Until it may be worth while to try again, in a new process."""
    until = time.monotonic() + options.rest
    while time.monotonic() < until and not changed():
        page.end()
        if agent.ordered(min(options.poll, options.rest, 1.0)):
            return


if __name__ == "__main__":
    main()
