"""What an agent that stood by makes of the ledger of the agent before it: that wins, and nothing seen is lost."""

from gpuplane.node.core.advertising import missing_information_reason, offer
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.step import step
from gpuplane.node.model.config import NodeObjectRequests, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    Fact,
    FaultOccurred,
    LedgerLoaded,
    MachineObserved,
    NodeRequestsChanged,
    StatusChanged,
)
from gpuplane.node.model.health import Drain, HealthRecords
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, TurnStatus

GPUS = (Gpu(index=0, uuid="GPU-0", pci="0000:01:00.0"), Gpu(index=1, uuid="GPU-1", pci="0000:02:00.0"))
SEEN = (MachineObserved(Machine(gpus=GPUS)), ConfigLoaded(Settings(), "b"), AllocationsListed((), 1.0))
WAITING = StatusChanged(KUBELET_LOCK_PART, TurnStatus(state="waiting", text="process 1 serves", turn="standby"))
SERVING = StatusChanged(KUBELET_LOCK_PART, TurnStatus(state="ok"))
XID = FaultOccurred(code="xid-79", gpu="GPU-1", message="fell off the bus", at=5.0)


def after(*facts: Fact, of: Snapshot | None = None, now: float = 10.0) -> Snapshot:
    snapshot = of or Snapshot()
    for fact in facts:
        snapshot = step(snapshot, fact, now)
    return snapshot


def states(snapshot: Snapshot) -> dict[str, str]:
    return {each.device: each.state for each in health_without_parents(snapshot) if each.device}


def test_one_that_stands_by_offers_nothing_and_says_for_whom() -> None:
    """Until it takes over, and kubelet was asked again who holds what."""
    standing_by = after(WAITING, *SEEN)
    assert (offer(standing_by).waiting_reason, offer(standing_by).resources) == ("process 1 serves", ())

    taken = after(LedgerLoaded(Ledger()), SERVING, of=standing_by)
    lack = missing_information_reason(taken)
    assert lack is not None
    assert lack.part == "pod-resources"
    assert offer(taken).resources == ()
    assert len(offer(after(AllocationsListed((), 11.0), of=taken, now=11.0)).resources[0].devices) == 2


def test_what_the_agent_before_decided_holds() -> None:
    """Drains and verdicts that this agent has never heard of."""
    before = after(*SEEN, XID, DrainRequested("GPU-0", Drain(reason="fan")))
    taken = after(LedgerLoaded(before.ledger), SERVING, of=after(WAITING, *SEEN))
    assert states(taken) == {"GPU-0": "drained", "GPU-1": "unhealthy"}
    assert taken.ledger.health == before.ledger.health


def test_what_the_agent_before_knew_to_be_over_is_over() -> None:
    """A verdict of one that stands by, though the serving agent has found the device well since."""
    seen = after(WAITING, *SEEN, XID)
    assert states(seen)["GPU-1"] == "unhealthy"
    before = after(*SEEN, XID)
    health = before.ledger.health or HealthRecords()
    record = health.devices["GPU-1"].but(findings=(), last_recovered_at=8.0)
    well = before.ledger.but(health=health.but(devices={**health.devices, "GPU-1": record}))
    assert states(after(LedgerLoaded(well), SERVING, of=seen))["GPU-1"] == "healthy"


def test_what_befell_after_the_last_word_of_the_agent_before_is_not_lost() -> None:
    """An event that only this agent heard, and a fault that only its look shows."""
    before = after(*SEEN)
    ill = Machine(gpus=(GPUS[0].but(faults=(Fault(code="gpu-lost", message="gone"),)), GPUS[1]))
    seen = after(MachineObserved(ill), XID, of=after(WAITING, *SEEN))
    taken = after(LedgerLoaded(before.ledger), SERVING, of=seen)
    assert states(taken) == {"GPU-0": "unhealthy", "GPU-1": "unhealthy"}
    assert (taken.ledger.health or HealthRecords()).devices["GPU-1"].fault_counts == {"xid-79": 1}

    again = after(LedgerLoaded(taken.ledger), of=after(WAITING, of=taken))
    assert (again.ledger.health or HealthRecords()).devices["GPU-1"].fault_counts == {"xid-79": 1}


def test_what_is_told_once_is_not_forgotten() -> None:
    """The configuration in force and the Node's word were told while it stood by, and nobody tells them again."""
    seen = after(WAITING, *SEEN, NodeRequestsChanged(NodeObjectRequests(config_name="b", drain_reasons={"0": "fan"})))
    old = Ledger(config_name="a", node_requests=NodeObjectRequests(config_name="a"))
    taken = after(LedgerLoaded(old), SERVING, of=seen)
    assert (taken.ledger.config_name, taken.ledger.node_requests) == (
        "b",
        NodeObjectRequests(config_name="b", drain_reasons={"0": "fan"}),
    )

    early = after(WAITING, LedgerLoaded(old, previous_agent_ended=False))
    assert (early.ledger.config_name, early.ledger.node_requests) == ("a", NodeObjectRequests(config_name="a"))


def test_a_glance_at_a_serving_agents_ledger_asks_nobody_again() -> None:
    seen = after(WAITING, *SEEN)
    assert after(LedgerLoaded(Ledger(), previous_agent_ended=False), of=seen).allocations == ()
    assert after(LedgerLoaded(Ledger()), of=seen).allocations is None
