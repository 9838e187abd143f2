"""What containers hold, as it is counted: each device id once."""

from gpuplane.core.allocations import distinct_allocations
from gpuplane.core.reports.nodeannotation import node_gpus
from gpuplane.core.step import step
from gpuplane.core.telemetry.holdings import holdings_by_unit
from gpuplane.model.config import Settings
from gpuplane.model.facts import AllocateAnswered, AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.model.machine import Gpu, Machine
from gpuplane.model.pod import PodRef
from gpuplane.model.snapshot import Allocation, Snapshot

GPU = "nvidia.com/gpu"
LISTED = Allocation(GPU, ("GPU-0::0",), holder=PodRef.parse("ml/train/main"))


def with_grant(*ids: str, listed: tuple[Allocation, ...] = (LISTED,)) -> Snapshot:
    """Kubelet is asked for its list at 100, admits a pod at 101, and answers the list at 102."""
    snapshot = step(Snapshot(), MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-0", model="A100"),))), 1.0)
    snapshot = step(snapshot, ConfigLoaded(Settings()), 1.0)
    snapshot = step(snapshot, AllocationsListed((), requested_at=1.0), 1.0)
    snapshot = step(snapshot, AllocateAnswered(GPU, ids), 101.0)
    return step(snapshot, AllocationsListed(listed, requested_at=100.0), 102.0)


def test_a_grant_that_the_list_names_already_is_one_allocation() -> None:
    """A GPU is not shared for a moment by the container and by itself."""
    snapshot = with_grant("GPU-0::0")

    assert len(snapshot.allocations or ()) == 2  # the list may mean the container before
    assert distinct_allocations(snapshot) == (LISTED,)
    assert [each.holder for each in holdings_by_unit(snapshot)["GPU-0"]] == [LISTED.holder]
    told = node_gpus(snapshot)
    assert told is not None
    assert [(each.device, each.ids) for each in told.holdings] == [("0", 1)]


def test_a_grant_of_other_ids_counts() -> None:
    """Also where some of its ids are named, or the list has the ids of another resource."""
    for ids in (("GPU-0::1",), ("GPU-0::0", "GPU-0::1")):
        snapshot = with_grant(*ids)
        assert distinct_allocations(snapshot) == snapshot.allocations
    snapshot = with_grant("GPU-0::0", listed=(LISTED.but(resource="nvidia.com/other"),))
    assert len(distinct_allocations(snapshot) or ()) == 2


def test_two_containers_that_kubelet_lists_stay_two() -> None:
    """As an init container and the one after it, which kubelet gives the same ids."""
    init = LISTED.but(holder=PodRef.parse("ml/train/init"))
    found = distinct_allocations(with_grant("GPU-0::1", listed=(init, LISTED))) or ()
    assert [each.holder for each in found] == [init.holder, LISTED.holder, PodRef()]


def test_what_kubelet_has_not_said_stays_unknown() -> None:
    assert distinct_allocations(Snapshot()) is None
