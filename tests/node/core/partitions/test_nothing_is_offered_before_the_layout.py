"""A GPU that no container holds is given out under no name until its requested MIG layout is made."""

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.dra.taints import taint_reasons
from gpuplane.node.core.partitions.plans import MAX_FAILED_TRIES, gpus_awaiting_layout
from gpuplane.node.core.partitions.state_machine import current_change, next_change_at
from gpuplane.node.core.reports.news import news
from gpuplane.node.core.reports.readycondition import ready_condition
from gpuplane.node.core.step import step
from gpuplane.node.model.config import NodeObjectRequests, PartitionSettings, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    Fact,
    LedgerLoaded,
    MachineObserved,
    NodeRequestsChanged,
    PartitionChangeFinished,
    StatusChanged,
    Tick,
)
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus, Status, plugin_part
from tests.node.core.partitions.gpus import an_a100

SMALL, THREE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
SETTINGS = Settings(
    device_list_strategy=("envvar",), mig_strategy="mixed", partitions=PartitionSettings(follow_label=True)
)
ONE = ("1g.10gb", 0, (1,))
FULL = tuple(("1g.10gb", start, (1,)) for start in range(7))


def node(*gpus: Gpu, asked: str = "all-1g.10gb", held: tuple[Allocation, ...] = ()) -> Snapshot:
    """A node with these GPUs, whose label asks for a layout, and whose plugins kubelet reads."""
    names = ("nvidia.com/gpu", SMALL, THREE)
    return after(
        Snapshot(),
        LedgerLoaded(Ledger()),
        ConfigLoaded(SETTINGS),
        NodeRequestsChanged(NodeObjectRequests(mig_config=asked)),
        MachineObserved(Machine(gpus=gpus)),
        StatusChanged(DRIVER_PART, DriverStatus("ok")),
        AllocationsListed(held, requested_at=99.0),
        *(StatusChanged(plugin_part(name), Status("ok")) for name in names),
    )


def after(snapshot: Snapshot, *facts: Fact, now: float = 100.0) -> Snapshot:
    for fact in facts:
        snapshot = step(snapshot, fact, now)
    return snapshot


def free(snapshot: Snapshot) -> set[str]:
    """The names under which something is given out."""
    return {each.name for each in offer(snapshot).resources for device in each.devices if not device.reasons}


def ready(snapshot: Snapshot) -> str:
    said = ready_condition(snapshot)
    assert said is not None
    return f"{said.status} {said.reason}"


def test_a_gpu_is_not_given_out_whole_nor_in_parts_until_all_parts_are_made() -> None:
    """Neither to kubelet nor to claims, and the node is not ready."""
    for gpu in (an_a100(0, enabled=False), an_a100(0), an_a100(0, ONE), an_a100(0, *FULL[:6])):
        snapshot = node(gpu)
        assert free(snapshot) == set()
        assert ready(snapshot) == "False LayoutChanging"
        assert {each.code for each in taint_reasons(snapshot)[gpu.uuid]} >= {"layout-changing"}
    made = node(an_a100(0, *FULL))
    assert free(made) == {SMALL}
    assert ready(made) == "True Serving"


def test_a_gpu_that_has_its_layout_is_given_out_while_another_waits() -> None:
    """Each GPU for itself; the node is ready when none waits any more."""
    snapshot = node(an_a100(0, *FULL), an_a100(1, enabled=False))
    assert free(snapshot) == {SMALL}
    assert gpus_awaiting_layout(snapshot) == {"GPU-1"}
    assert ready(snapshot) == "False LayoutChanging"


def test_a_container_that_holds_a_part_does_not_keep_the_node_out_of_service() -> None:
    """What it leaves free and the layout keeps is given out, and nobody waits for the pod to end."""
    gpu = an_a100(0, ("3g.40gb", 0, (3,)), ("1g.10gb", 4, (1,)))
    assert gpu.mig is not None
    devices = tuple(each.but(gpu_instance=each.gpu_instance + 1) for each in gpu.mig_devices)
    gpu = gpu.but(mig=gpu.mig.but(devices=devices))
    holder = Allocation(resource=THREE, devices=("MIG-0-0",), holder=PodRef("default", "train", container="main"))
    snapshot = node(gpu, held=(holder,))
    assert free(snapshot) == {SMALL}
    assert ready(snapshot) == "True Serving"


def test_a_layout_that_cannot_be_is_not_waited_for() -> None:
    """The condition of the layout tells of it; what the node has is given out."""
    snapshot = node(an_a100(0, ONE), asked="nothing-like-it")
    assert free(snapshot) == {SMALL}
    assert ready(snapshot) == "True Serving"


def test_a_layout_that_fails_is_not_waited_for() -> None:
    """After so many tries the GPU gives out what it has."""
    snapshot, now = node(an_a100(0, ONE)), 100.0
    for _ in range(MAX_FAILED_TRIES):
        assert ready(snapshot) == "False LayoutChanging"
        change = current_change(snapshot)
        assert change is not None
        failed = PartitionChangeFinished(
            gpu=change.gpu, change=change.change, requested_at=change.requested_at, problem="failed", failure="?"
        )
        snapshot = after(snapshot, failed, now=now)
        now = next_change_at(snapshot) or now
        snapshot = after(snapshot, Tick(), now=now) if _ + 1 < MAX_FAILED_TRIES else snapshot
    assert free(snapshot) == {SMALL}
    assert ready(snapshot) == "True Serving"


def test_the_log_says_once_what_came_to_be_offered() -> None:
    """Not a line for each instance, nor one of each GPU that has no MIG devices yet."""
    snapshot, said = node(an_a100(0, enabled=False)), list[str]()
    for count in range(8):
        following = after(snapshot, MachineObserved(Machine(gpus=(an_a100(0, *FULL[:count]),))))
        said += [f"{each.about}: {each.text}" for each in news(snapshot, following)]
        snapshot = following
    assert said == ["nvidia.com/gpu: no longer offered", f"{SMALL}: 7 devices offered"]
