"""What containers and claims hold: each device id once."""

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.allocations import held_allocations
from gpuplane.node.core.reports.nodeannotation import node_gpus
from gpuplane.node.core.step import step
from gpuplane.node.core.telemetry.holdings import holdings_by_unit
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    ConfigLoaded,
    LedgerLoaded,
    MachineObserved,
)
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, Snapshot
from tests.node.core.dra.nodes import after, claim, node

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
    assert held_allocations(snapshot) == (LISTED,)
    assert [each.holder for each in holdings_by_unit(snapshot)["GPU-0"]] == [LISTED.holder]
    told = node_gpus(snapshot)
    assert told is not None
    assert [(each.device, each.ids) for each in told.holdings] == [("0", 1)]


def test_a_grant_of_other_ids_counts() -> None:
    """Also where some of its ids are named, or the list has the ids of another resource."""
    for ids in (("GPU-0::1",), ("GPU-0::0", "GPU-0::1")):
        snapshot = with_grant(*ids)
        assert held_allocations(snapshot) == snapshot.allocations
    snapshot = with_grant("GPU-0::0", listed=(LISTED.but(resource="nvidia.com/other"),))
    assert len(held_allocations(snapshot) or ()) == 2


def test_two_containers_that_kubelet_lists_stay_two() -> None:
    """As an init container and the one after it, which kubelet gives the same ids."""
    init = LISTED.but(holder=PodRef.parse("ml/train/init"))
    found = held_allocations(with_grant("GPU-0::1", listed=(init, LISTED))) or ()
    assert [each.holder for each in found] == [init.holder, LISTED.holder, PodRef()]


def test_what_kubelet_has_not_said_stays_unknown() -> None:
    assert held_allocations(Snapshot()) is None


def test_a_claim_holds_its_devices_from_the_promise_on() -> None:
    """Each once, though kubelet lists some of them already; what kubelet said is left as it said it."""
    pod = PodRef.parse("default/train/main")
    listed = Allocation("gpu.nvidia.com", ("GPU-0",), holder=pod, claim="default/a")
    promised = after(node(), ClaimPrepareRequested(claim("a", 0, 2)))
    assert promised.allocations == ()
    assert held_allocations(promised) == (Allocation("gpu.nvidia.com", ("GPU-0", "GPU-2"), claim="default/a"),)

    shown = after(promised, AllocationsListed((listed,), 200.0))
    assert held_allocations(shown) == (listed, Allocation("gpu.nvidia.com", ("GPU-2",), claim="default/a"))
    ended = after(shown, ClaimUnprepareRequested(claim("a").claim))
    assert held_allocations(ended) == (listed,)


def test_admin_access_holds_nothing() -> None:
    """It is beside others."""
    assert held_allocations(after(node(), ClaimPrepareRequested(claim("watch", 0, admin=True)))) == ()


def test_a_promise_alone_does_not_say_what_is_held() -> None:
    """After a restart nothing is given out until kubelet has listed."""
    ledger = after(node(), ClaimPrepareRequested(claim("a", 3))).ledger
    assert held_allocations(after(Snapshot(), LedgerLoaded(ledger))) is None
