"""Pictures of nodes, as agents would answer them, and how they are read."""

from rich.console import Console

from gpuplane.cli.commands.inspect.page import Page, Write, page
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.reports.inspection.report import build_inspection
from gpuplane.node.core.step import step
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import find_machine_file
from gpuplane.node.model.config import ReplicatedResource, Settings, Sharing
from gpuplane.node.model.control import AgentInfo, NodeState
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    Fact,
    FaultOccurred,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.inspection import Inspection
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig
from gpuplane.node.model.sharelayout import TIME_SLICES
from gpuplane.node.model.snapshot import Allocation, Snapshot, StoredLedger
from gpuplane.node.model.status import Part, Status

WALL = 1_800_000_000.0
"""When pictures are asked for: 2027-01-15T08:00:00Z."""

ABOUT = AgentInfo(version="1.2.3", node="gpu-17", started_at=40.0)
GPU = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16"
NAME = "nvidia.com/gpu.shared"
MARKED = "see [/x] and [red]this[/red] at https://[fd00::1]:6443"
MISSING = Machine(gpus=None, faults=(Fault("driver-missing", "no libnvidia-ml.so.1"),))


def profile(name: str) -> Machine:
    """A machine of those that ship."""
    described = read_machine(find_machine_file(name).read_bytes(), name)
    return Machine(**{field: getattr(described, field) for field in Machine.__struct_fields__})


def picture(*facts: Fact, now: float = 100.0) -> NodeState:
    """After these facts, which come one a second from 8 s on; all that is remembered is on disk."""
    snapshot = Snapshot()
    for number, fact in enumerate(facts):
        snapshot = step(snapshot, fact, 8.0 + number)
    snapshot = snapshot.but(
        stored_ledger=StoredLedger(
            ledger=snapshot.ledger, possible_share_layouts=(snapshot.ledger.share_layouts or {},)
        )
    )
    return NodeState(snapshot, offer(snapshot), now)


def inspected(of: NodeState, about: AgentInfo = ABOUT) -> Inspection:
    """What is shown of a picture."""
    return build_inspection(of, about, WALL)


def drawn(whole: Inspection, width: int, write: Write = page) -> list[str]:
    """The lines that a terminal of some width shows."""
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        console.print(Page(write, whole), crop=False)
    return capture.get().splitlines()


def shares(why: str = MARKED, *facts: Fact) -> NodeState:
    """Two shares whose ids differ at their ends, of a GPU that is drained; one is held. A GPU that is not offered."""
    machine = Machine(
        gpus=(Gpu(index=0, uuid=f"{GPU}0", model="A"), Gpu(index=1, uuid=f"{GPU}1", mig=Mig(enabled=True)))
    )
    sharing = Sharing(replicated_resources=(ReplicatedResource("nvidia.com/gpu", 2, rename=NAME),))
    held = Allocation(
        resource=NAME, devices=(f"{GPU}0::0",), holder=PodRef("ml", "train"), share_layout=TIME_SLICES.encoded
    )
    return picture(
        ConfigLoaded(Settings(sharing=sharing)),
        AllocationsListed((held,), 0.0),
        MachineObserved(machine),
        DrainRequested(f"{GPU}0", Drain(reason=why)),
        StatusChanged(Part("clock"), Status("failing", why)),
        *facts,
    )


def ward(*facts: Fact) -> NodeState:
    """Five GPUs, of which one is well; at 100 s. The facts come one a second, from 12 s on."""
    faults = {2: Fault("fabric-pending", MARKED), 3: Fault("remap-pending", "a row waits")}
    plain = tuple(Gpu(index=i, uuid=f"{GPU}{i}") for i in range(5))
    ill = tuple(gpu.but(faults=(faults[gpu.index],)) if gpu.index in faults else gpu for gpu in plain)
    seen = (
        ConfigLoaded(Settings()),
        AllocationsListed((), 0.0),
        MachineObserved(Machine(gpus=plain)),
        MachineObserved(Machine(gpus=ill)),
    )
    drained = DrainRequested(f"{GPU}4", Drain(reason="fan", since=10.0, until=7300.0, until_wall_clock=1.0))
    return picture(*seen, FaultOccurred(code="xid-79", gpu=f"{GPU}1", message=MARKED, at=12.0), drained, *facts)
