"""A cluster on this machine: a real control plane, and a played node for each machine, with our agent on it.

All that it keeps is in one directory: what its API server has stored, and for each node its machine file and what its
pods and agent have written. Started again there, it goes on from that, as a cluster does whose machines were off.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from gpuplane.base import files
from gpuplane.kubernetes.client import connect
from gpuplane.sandbox.apply import apply_objects, read_objects
from gpuplane.sandbox.controlplane.certificates import Authority
from gpuplane.sandbox.controlplane.controlplane import ControlPlane
from gpuplane.sandbox.controlplane.network import choose_network
from gpuplane.sandbox.kubelet.dra.times import KUBELET_TIMES, DraTimes
from gpuplane.sandbox.node.containers import CRASH_BACKOFF
from gpuplane.sandbox.node.played import NodeSpec, PlayedNode
from gpuplane.sandbox.record import RECORD_FILE, ClusterRecord, WantedNode, locked

AGENTS = Path(__file__).parent / "manifests/agents.yaml"
MAX_MANIFEST_BYTES = 1 << 20


CountGpus = Callable[[bytes], int]
"""The content of a machine file → how many GPUs it describes."""


class Cluster:
    """`async with Cluster(directory, programs, nodes, count_gpus, kept=False).running(tell) as record`.

    `programs`: the directory of the control plane's. `kept`: all stays in the directory for the next time. `tell` is
    given what is being done, and what has ended and is started again.
    """

    def __init__(
        self, directory: Path, programs: Path, wanted: Sequence[WantedNode], count_gpus: CountGpus, *, kept: bool,
        with_agents: bool = True, crash_backoff: tuple[float, float] = CRASH_BACKOFF,
        dra_times: DraTimes = KUBELET_TIMES,
    ) -> None:  # fmt: skip
        self.directory, self.programs, self.wanted, self._count_gpus = directory, programs, wanted, count_gpus
        self.kept, self.with_agents, self.is_running = kept, with_agents, False
        self.crash_backoff, self.dra_times = crash_backoff, dra_times
        self.nodes: dict[str, PlayedNode] = {}

    @asynccontextmanager
    async def running(self, tell: Callable[[str], None]) -> AsyncIterator[ClusterRecord]:
        """It runs until the block ends. Raises OSError, AlreadyRunning, ApiServerError and what the control plane
        raises."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            stack.enter_context(locked(self.directory))
            if not self.kept:
                self._remove_nodes()
                stack.callback(self._remove_nodes)
            links = Path(tempfile.mkdtemp(prefix="gp"))
            stack.callback(shutil.rmtree, links, ignore_errors=True)
            network = choose_network()
            stack.callback(network.close)
            self.authority = Authority.load_or_make(self.directory / "pki")
            self.control_plane = ControlPlane(
                self.directory, self.programs, self.authority, network, kept=self.kept, report=tell
            )
            tell("starting the control plane")
            await stack.enter_async_context(self.control_plane)
            tell(f"starting {len(self.wanted)} nodes")
            self.nodes = {
                each.name: PlayedNode(
                    self._spec(each, links / f"{number}"), network, self.control_plane.url, self.authority,
                    f"v{self.control_plane.version}", crash_backoff=self.crash_backoff, dra_times=self.dra_times,
                )
                for number, each in enumerate(self.wanted)
            }  # fmt: skip
            for each in self.nodes.values():
                await stack.enter_async_context(each.running())
            if self.with_agents:
                tell("applying the agents' DaemonSet")
                async with connect(self.control_plane.kubeconfig) as client:
                    await apply_objects(client, read_objects(files.read(AGENTS, MAX_MANIFEST_BYTES)))
            record = ClusterRecord(
                os.getpid(), self.control_plane.version, self.control_plane.url, str(self.control_plane.kubeconfig),
                tuple(self.nodes), str(self.directory),
            )  # fmt: skip
            files.replace(self.directory / RECORD_FILE, msgspec.json.encode(record))
            stack.callback((self.directory / RECORD_FILE).unlink, missing_ok=True)
            self.is_running = True
            yield record

    def _remove_nodes(self) -> None:
        shutil.rmtree(self.directory / "nodes", ignore_errors=True)

    def _spec(self, wanted: WantedNode, link: Path) -> NodeSpec:
        """A machine file that is there stays as it is: people edit it."""
        directory = self.directory / "nodes" / wanted.name
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        machine = directory / "machine.yaml"
        if not machine.exists():
            files.replace(machine, wanted.machine)
        kubeconfig = directory / "kubelet.kubeconfig"
        files.replace(kubeconfig, self.control_plane.kubeconfig_for(f"system:node:{wanted.name}", ["system:nodes"]))
        return NodeSpec(wanted.name, self._count_gpus(files.read(machine)), directory, link, kubeconfig)
