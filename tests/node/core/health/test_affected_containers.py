"""Whose end a device waits for: those whom its illness befell."""

import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.health.findings import MAX_AFFECTED_PIDS_OR_HOLDERS
from gpuplane.node.core.health.recovery import MAX_RELAPSES
from gpuplane.node.model.facts import LedgerLoaded
from tests.node.core.health.world import World, machine


def test_a_program_that_was_only_noted_holds_up_no_recovery() -> None:
    """An XID that speaks of a program says nothing about the GPU: another fault may end while it runs."""
    world = World(machine(1))
    world.processes[0] = (7,)
    world.happen(0, "xid-13", pids=(7,))
    world.happen(0, "xid-94", pids=(8,))
    assert world.ill() == {"GPU-0"}

    world.wait(20, answer=True)

    assert world.ill() == set()


def test_a_program_that_an_illness_befell_does() -> None:
    """It may go on with what it got from bad memory."""
    world = World(machine(1))
    world.processes[0] = (7,)
    world.happen(0, "xid-94", pids=(7,))
    world.wait(20, answer=True)
    assert world.ill() == {"GPU-0"}

    world.processes[0] = ()
    world.wait(60, answer=True)

    assert world.ill() == set()


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (PodRef(uid="1b2c", container="c"), PodRef("ns", "pod", container="c")),
        (PodRef("ns", "pod", container="c"), PodRef(uid="1b2c", container="c")),
    ],
    ids=["by the checkpoint first", "by the checkpoint later"],
)
def test_a_container_that_kubelet_comes_to_name_otherwise_is_still_there(then: PodRef, now: PodRef) -> None:
    """The checkpoint tells a UID, the list a name. An agent that starts before kubelet reads the checkpoint first."""
    world = World(machine(2))
    world.hold_by({then: "GPU-0", PodRef("ns", "other", container="c"): "GPU-1"})
    world.happen(0, "xid-69")

    world.hold_by({now: "GPU-0", PodRef("ns", "another", container="c"): "GPU-1"})
    world.wait(60, answer=True)
    assert world.ill() == {"GPU-0"}

    world.hold_by({PodRef("ns", "another", container="c"): "GPU-1"})
    world.wait(60, answer=True)
    assert world.ill() == set()


def test_a_container_of_another_name_is_another() -> None:
    """It holds the device, and the container that the fault befell is known not to."""
    world = World(machine(1))
    world.hold_by({PodRef(uid="1b2c", container="c"): "GPU-0"})
    world.happen(0, "xid-69")

    world.hold_by({PodRef("ns", "pod", container="sidecar"): "GPU-0"})
    world.wait(60, answer=True)

    assert world.ill() == set()


def test_a_reset_ends_what_waits_for_the_end_of_a_container() -> None:
    """No process that ran before goes on after it. So nothing depends on who is taken to have held the GPU."""
    world = World(machine(1))
    world.hold(pod="GPU-0")
    world.happen(0, "xid-69")
    world.wait(20, answer=True)
    assert world.ill() == {"GPU-0"}

    world.show("0", "gpu-lost")
    world.show("0")
    world.wait(20, answer=True)

    assert world.ill() == set()


def test_what_is_heard_after_a_reset_and_happened_before_it_is_over() -> None:
    """As an agent finds that hears of it in time, while the GPU is away and nobody is known to hold it."""
    world = World(machine(1))
    world.hold(pod="GPU-0")
    world.show("0", "gpu-lost")
    world.wait(20, answer=True)
    world.show("0")
    world.happen(0, "xid-69", ago=10)
    world.wait(20, answer=True)

    assert world.ill() == set()


def test_a_number_that_another_process_has_since_a_reset_holds_up_no_recovery() -> None:
    """An agent that hears of a fault late is told a process number from before: whoever has it now is somebody else."""
    world = World(machine(1))
    world.show("0", "gpu-lost")
    world.wait(20, answer=True)
    world.show("0")
    world.processes[0] = (7,)
    world.happen(0, "xid-94", ago=10, pids=(7,))
    world.wait(20, answer=True)

    assert world.ill() == set()


def test_a_storm_within_a_second_is_remembered_of_so_many_processes_only() -> None:
    """It counts as one event, and what is remembered of it goes to disk with each change."""
    world = World(machine(1))
    for pid in range(1000):
        world.happen(0, "xid-94", pids=(pid + 1,))

    assert world.snapshot.ledger.health is not None
    (finding,) = world.snapshot.ledger.health.devices["GPU-0"].findings
    assert finding.pids == tuple(range(1000 - MAX_AFFECTED_PIDS_OR_HOLDERS + 1, 1001))


def test_relapses_that_nobody_can_have_had_cost_no_more_than_the_most() -> None:
    """A state file that a person edited says what it likes."""
    world = World(machine(1))
    world.happen(0, "xid-94")
    health = world.snapshot.ledger.health
    assert health is not None
    records = {key: record.but(relapses=1 << 20) for key, record in health.devices.items()}
    world.apply(LedgerLoaded(world.snapshot.ledger.but(health=health.but(devices=records))))

    world.wait(5 * (1 << MAX_RELAPSES), answer=True)

    assert world.ill() == set()


def test_what_happens_while_a_probe_runs_counts_also_when_it_is_heard_after_its_answer() -> None:
    """The probe may have looked before. What happened before the probe was begun does not count: it was seen then."""
    world = World(machine(1))
    world.happen(0, "xid-94")
    world.wait(20)
    [(uuid, asked)] = world.wished().items()
    world.probe(uuid, asked)
    assert world.ill() == set()

    world.happen(0, "xid-95", ago=world.now - asked + 1)
    assert world.ill() == set()
    world.happen(0, "xid-95", ago=world.now - asked - 1)
    assert world.ill() == {"GPU-0"}


def test_a_gpu_that_comes_back_had_a_reset_also_where_the_first_look_at_it_fails() -> None:
    """That it was away is seen once, at its return: what only a reset ends would stand for ever."""
    world = World(machine(2))
    world.happen(0, "xid-79")
    whole = world.machine
    world.machine = whole.but(gpus=(whole.gpus or ())[1:])
    world.look()
    world.machine = whole
    world.show("0", "query-failed")
    world.wait(20, answer=True)
    assert world.ill() == {"GPU-0"}

    world.show("0")
    world.wait(60, answer=True)

    assert world.ill() == set()
