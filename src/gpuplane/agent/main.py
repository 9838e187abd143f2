"""The agent: which parts there are, and how they start and stop.

Three kinds of parts and no fourth: those that watch the world and tell facts, those that serve requests from the
snapshot, and those that reconcile a part of the world with a view. Each is restarted alone when it raises.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from gpuplane.agent.configure import Source, configure
from gpuplane.agent.control import control
from gpuplane.agent.node import Node
from gpuplane.agent.restart import keep
from gpuplane.agent.tables import keep_tables
from gpuplane.apiserver.events import tell_events
from gpuplane.apiserver.node import CONFIG, watch_node
from gpuplane.apiserver.report import report_problems
from gpuplane.core.health.diagnose import probes, released
from gpuplane.core.ledger import stored
from gpuplane.hardware import Hardware
from gpuplane.hardware.devicenodes import keep_device_nodes
from gpuplane.hardware.timeslices import keep_time_slices
from gpuplane.host.cdi.hook import INSTALLED
from gpuplane.host.cdi.keeper import keep_specifications
from gpuplane.host.kernellog import watch_kernel_log
from gpuplane.host.mps.meeting import meet
from gpuplane.host.state import boot_id, keep_stored, load, locked
from gpuplane.kubelet.podresources import allocations
from gpuplane.kubelet.registration import plugins
from gpuplane.model.facts import Look, Probe, Remembered, Stood
from gpuplane.model.snapshot import Condition, Ledger, Snapshot
from gpuplane.model.value import Value

log = logging.getLogger("gpuplane")

FIRST_WORD, FIRST_EVER = 2.0, 10.0
"""Seconds that the first look waits for the API server's first word about our Node; and where nothing is remembered of
it: then a container could be told of its devices in a way that the runtime, which is not known, does not read."""

LAST_WORD = 2.0
"""Seconds that an agent which is asked to stop waits until the disk holds what it knows."""

Parts = dict[str, Callable[[], Awaitable[None]]]


class Options(Value):
    """How one agent is set up. Paths are as this process sees them."""

    kubelet_root: Path
    state_dir: Path
    config: Source = Source()
    node_name: str = ""  # "" for no API server
    node_label: str = CONFIG  # which names a configuration
    kubeconfig: Path | None = None
    metrics: tuple[str, int] | None = None  # host and port; None: no listening
    kernel_log: Path | None = None  # as /dev/kmsg; None: not read
    kernel_pids: bool = True  # whether its process ids are those that the hardware tells
    cdi_dir: Path | None = None  # None: no specifications are kept
    device_nodes: Path | None = None  # the root in whose /dev nodes and links are made; None: nowhere
    hook: Path = INSTALLED  # on the host, and here
    driver_root: Path | None = None  # where the driver's root is seen; None: it is not


async def run(options: Options, hardware: Hardware) -> None:
    """Run the agent until a signal asks it to stop."""
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    node = Node(Snapshot(ledger=Ledger(boot_id=boot_id())))
    running = _start(node, _watched_from_the_start(node, options))
    async with AsyncExitStack() as stack:
        stopped = asyncio.create_task(stop.wait())
        remembering = asyncio.create_task(_remember(node, options.state_dir, stack))
        await asyncio.wait((stopped, remembering), return_when=asyncio.FIRST_COMPLETED)
        if released(node.snapshot):  # a remembered wish holds from the first moment: no device node is opened
            await hardware.release()
        if not stop.is_set():
            running += _start(node, _parts(node, options, hardware, remembers=remembering.result()))
            await stop.wait()
        log.info("stopping")
        if remembering.done() and remembering.result():
            await node.until(stored, LAST_WORD)
        for task in (remembering, stopped, *running):
            task.cancel()
        await asyncio.gather(remembering, stopped, *running, return_exceptions=True)
        await hardware.release()


def _watched_from_the_start(node: Node, options: Options) -> Parts:
    if options.metrics is None:
        return {}
    host, port = options.metrics

    async def serve_status() -> None:
        from gpuplane.agent.status import status  # 50 ms of imports that registering need not wait for

        await status(node, host, port)

    return {"status": serve_status}


def _parts(node: Node, options: Options, hardware: Hardware, remembers: bool) -> Parts:
    kubelet = options.kubelet_root
    parts: Parts = {
        # watch
        "clock": node.tick,
        "hardware": lambda: _watch(node, hardware, bool(options.node_name)),
        "configuration": lambda: configure(node, options.config),
        "allocations": lambda: allocations(node, kubelet),
        # serve
        "control": lambda: control(node, options.state_dir / "control.sock"),
        # watch and reconcile
        "mps": lambda: meet(node),
        # serve and reconcile
        "plugins": lambda: plugins(node, kubelet / "device-plugins"),
        # reconcile
        "release": lambda: _let_go(node, hardware),
        "probes": lambda: _probe(node, hardware),
        "time slice lengths": lambda: keep_time_slices(node, hardware),
        "choice": lambda: keep_tables(node),
    }
    if (kernel_log := options.kernel_log) is not None:
        parts["xids"] = lambda: watch_kernel_log(node, kernel_log, pids=options.kernel_pids)
    if (root := options.device_nodes) is not None:
        parts["nodes in /dev"] = lambda: keep_device_nodes(node, root)
    if (cdi_dir := options.cdi_dir) is not None:
        parts["cdi files"] = lambda: keep_specifications(node, cdi_dir, options.hook, options.driver_root)
    if remembers:
        parts["store"] = lambda: keep_stored(node, options.state_dir)
    if options.node_name:
        parts["node object"] = lambda: watch_node(node, options.node_name, options.kubeconfig, options.node_label)
        parts["condition writer"] = lambda: report_problems(node, options.node_name, options.kubeconfig)
        parts["event writer"] = lambda: tell_events(node, options.node_name, options.kubeconfig)
    return parts


def _start(node: Node, parts: Parts) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(keep(node, part, start), name=part) for part, start in parts.items()]


async def _remember(node: Node, state_dir: Path, stack: AsyncExitStack) -> bool:
    """Take the state directory, waiting for whoever has it, and what it remembers; whether it is ours.

    A directory that cannot be used costs the memory, not the node's GPUs.
    """
    try:
        async for owner in await stack.enter_async_context(locked(state_dir)):
            reason = f"{state_dir} belongs to another agent, {owner}: waiting until it ends"
            node.tell(Stood("state", Condition(standing="waiting", reason=reason)))
        ledger, problems = load(state_dir, node.snapshot.ledger.boot_id)
        node.tell(Remembered(ledger))
        for problem in problems:
            log.error("%s", problem)
        return True
    except OSError as error:
        reason = f"{error.filename or state_dir}: {error.strerror}: what this agent promises is forgotten when it ends"
        node.tell(Stood("state", Condition(standing="failing", reason=reason)))
        return False


async def _watch(node: Node, hardware: Hardware, asks: bool) -> None:
    """The machine becomes facts. Our Node may ask to leave the driver alone: its word is waited for, for a moment."""
    if asks:
        patience = FIRST_EVER if node.snapshot.ledger.asked is None else FIRST_WORD
        await node.until(lambda snapshot: snapshot.config.asked is not None, patience)
    async for fact in hardware.facts():
        node.tell(fact)


async def _let_go(node: Node, hardware: Hardware) -> None:
    """Hands off the driver while somebody wishes so."""
    away = False
    async for snapshot in node.changes():
        if bool(released(snapshot)) != away:
            away = not away
            await (hardware.release() if away else hardware.do(Look()))


async def _probe(node: Node, hardware: Hardware) -> None:
    """The recovery probes that are wished for, each once; what they find comes back as facts."""
    done: Mapping[str, float] = {}
    async for snapshot in node.changes():
        wanted = probes(snapshot)
        for gpu, asked in wanted.items():
            if done.get(gpu) != asked:
                await hardware.do(Probe(gpu=gpu, asked=asked))
        done = wanted
