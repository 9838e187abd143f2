"""A cluster on this machine: a real control plane, and a played node for each machine, with our agent on it.

All that it keeps is in one directory: what its API server has stored, and for each node its machine file and what its
pods and agent have written. Started again there, it goes on from that, as a cluster does whose machines were off.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuplane.base import files
from gpuplane.kubernetes.client import connect
from gpuplane.sandbox.apply import apply_objects, read_objects
from gpuplane.sandbox.controlplane.certificates import Authority
from gpuplane.sandbox.controlplane.controlplane import ControlPlane
from gpuplane.sandbox.controlplane.network import choose_network
from gpuplane.sandbox.kubelet.dra.times import KUBELET_TIMES, DraTimes
from gpuplane.sandbox.node.containers import KUBELET_CONTAINER_TIMES, Times
from gpuplane.sandbox.node.played import NodeSpec, PlayedNode

RECORD_FILE, LOCK_FILE = "cluster.json", "lock"
AGENTS = Path(__file__).parent / "manifests/agents.yaml"
MAX_RECORD_BYTES, MAX_MANIFEST_BYTES = 1 << 20, 1 << 20


class AlreadyRunning(Exception):
    """A cluster runs in this directory."""


class WantedNode(NamedTuple):
    """A node to play: its name, and the content of the machine file that it begins with."""

    name: str
    machine: bytes


CountGpus = Callable[[bytes], int]
"""The content of a machine file → how many GPUs it describes."""


class ClusterRecord(msgspec.Struct, frozen=True):
    """What is known of a cluster that runs: who runs it, and where to find it."""

    pid: int
    version: str
    url: str
    kubeconfig: str
    nodes: tuple[str, ...]
    directory: str


def default_directory(environment: Mapping[str, str]) -> Path:
    """Where a cluster is of which nobody says where (XDG Base Directory Specification)."""
    base = environment.get("XDG_STATE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".local/state") / "gpuplane/sandbox"


def running_process(directory: Path) -> int | None:
    """The process that runs a cluster in a directory, or starts one; None where none does. Raises OSError."""
    try:
        with _locked(directory):
            return None
    except FileNotFoundError:
        return None
    except AlreadyRunning:
        text = files.read(directory / LOCK_FILE, MAX_RECORD_BYTES).decode(errors="replace")
        return int(text) if text.isdecimal() else None


def read_record(directory: Path) -> ClusterRecord | None:
    """The cluster that runs in a directory; None where none does, or is still starting. Raises OSError."""
    if running_process(directory) is None:
        return None
    try:
        return msgspec.json.decode(files.read(directory / RECORD_FILE, MAX_RECORD_BYTES), type=ClusterRecord)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Nobody else runs a cluster there meanwhile. Raises AlreadyRunning."""
    lock = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(lock, 0)
        os.write(lock, b"%d" % os.getpid())
        yield
    except BlockingIOError:
        raise AlreadyRunning(f"a cluster runs in {directory} already: gpuplane sandbox down ends it") from None
    finally:
        os.close(lock)


class Cluster:
    """`async with Cluster(directory, programs, nodes, count_gpus, kept=False).running(tell) as record`.

    `programs`: the directory of the control plane's. `kept`: all stays in the directory for the next time. `tell` is
    given what is being done, and what has ended and is started again.
    """

    def __init__(
        self, directory: Path, programs: Path, wanted: Sequence[WantedNode], count_gpus: CountGpus, *, kept: bool,
        with_agents: bool = True, times: Times = KUBELET_CONTAINER_TIMES, dra_times: DraTimes = KUBELET_TIMES,
    ) -> None:  # fmt: skip
        self.directory, self.programs, self.wanted, self._count_gpus = directory, programs, wanted, count_gpus
        self.kept, self.with_agents, self.is_running = kept, with_agents, False
        self.times, self.dra_times = times, dra_times
        self.nodes: dict[str, PlayedNode] = {}

    @asynccontextmanager
    async def running(self, tell: Callable[[str], None]) -> AsyncIterator[ClusterRecord]:
        """It runs until the block ends. Raises OSError, AlreadyRunning, ApiServerError and what the control plane
        raises."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            stack.enter_context(_locked(self.directory))
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
                    f"v{self.control_plane.version}", times=self.times, dra_times=self.dra_times,
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
