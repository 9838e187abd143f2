"""The agent: which parts there are, and how they start and stop."""

import asyncio
import signal
from pathlib import Path

from gpuplane.agent.node import Node
from gpuplane.agent.restart import keep
from gpuplane.hardware import Hardware
from gpuplane.hardware.described import Described
from gpuplane.host.files import contents
from gpuplane.kubelet.podresources import allocations
from gpuplane.kubelet.registration import plugins
from gpuplane.model.config import Settings
from gpuplane.model.facts import Configured
from gpuplane.model.snapshot import Snapshot


async def run(machine: Path, kubelet_root: Path) -> None:
    """Run the agent until a signal asks it to stop."""
    node = Node(Snapshot())
    node.tell(Configured(Settings()))
    hardware = Described(contents(machine, every=0.05), machine.name)
    parts = {
        "clock": node.tick,
        "hardware": lambda: watch(node, hardware),
        "allocations": lambda: allocations(node, kubelet_root / "pod-resources/kubelet.sock"),
        "plugins": lambda: plugins(node, kubelet_root / "device-plugins"),
    }
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    running = [asyncio.create_task(keep(node, part, start), name=part) for part, start in parts.items()]
    await stop.wait()
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def watch(node: Node, hardware: Hardware) -> None:
    """The machine becomes facts."""
    async for fact in hardware.facts():
        node.tell(fact)
