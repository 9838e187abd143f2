"""What Kubernetes is told of health: the condition GPUProblem as a function of the snapshot, Events of two."""

import pytest

from gpuplane.node.core.containers.cdi.desiredspecs import desired_specs
from gpuplane.node.core.containers.cdi.specstatus import spec_fingerprints
from gpuplane.node.core.health.records import apply_reboot
from gpuplane.node.core.ledger import adapt_to_new_boot
from gpuplane.node.core.reports.nodecondition import (
    MAX_MESSAGE_CHARACTERS,
    is_machine_and_config_settled,
    node_condition,
)
from gpuplane.node.core.reports.nodeevents import (
    event_states,
    event_states_before_restart,
    keep_last_state_while_waiting,
    node_events,
)
from gpuplane.node.core.step import step
from gpuplane.node.model.config import NodeObjectRequests, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    Fact,
    FaultOccurred,
    MachineObserved,
    NodeRequestsChanged,
    ProbeFinished,
    StatusChanged,
)
from gpuplane.node.model.health import Drain, FaultOverride, HealthRecords
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import DriverRelease, Ledger, Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, CONFIG_PART, DRIVER_PART, CdiFilesStatus, DriverStatus, Status
from tests.golden import Golden
from tests.node.core.containers.documents import MACHINE
from tests.texts import as_shown

PARTS = tuple(
    MigDevice(uuid=f"MIG-{slot}", profile="1g.10gb", gpu_instance=7 + slot, compute_instance=0, mig_index=slot)
    for slot in (0, 1)
)
GPUS = (Gpu(index=0, uuid="GPU-0"), Gpu(index=1, uuid="GPU-1", mig=Mig(enabled=True, devices=PARTS)))
WELL = Machine(gpus=GPUS)
SETTINGS = Settings(mig_strategy="mixed", device_list_strategy=("envvar",))
LOST = FaultOccurred(code="xid-79", gpu="GPU-0", message="it has fallen off the bus", at=2.0)
HOT = Machine(gpus=(GPUS[0].but(faults=(Fault("remap-pending", "2 rows"),)), GPUS[1]))
MISSING = Machine(gpus=None, faults=(Fault("driver-missing", "no libnvidia-ml.so.1"),))


def run(snapshot: Snapshot, *facts: Fact, now: float = 2.0) -> Snapshot:
    """The node after these facts, one a second."""
    for at, fact in enumerate(facts):
        snapshot = step(snapshot, fact, now + at)
    return snapshot


def after(*facts: Fact) -> Snapshot:
    """A node that was looked at, after these facts."""
    return run(
        run(Snapshot(), ConfigLoaded(SETTINGS), MachineObserved(WELL), AllocationsListed((), 0.0), now=0.0), *facts
    )


def told(before: Snapshot, now: Snapshot) -> list[str]:
    """The Events between two snapshots: type, reason and devices."""
    return [" ".join((e.type, e.reason, *e.devices)) for e in node_events(event_states(before), event_states(now))]


def messages(before: Snapshot, now: Snapshot) -> list[str]:
    """What the Events between two snapshots say."""
    return [as_shown(event.message) for event in node_events(event_states(before), event_states(now))]


RELEASED = StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True))
NODES: dict[str, tuple[str, tuple[Fact, ...]]] = {
    "nothing": ("False NoProblem", ()),
    "a GPU is lost": ("True GPUUnhealthy", (LOST,)),
    "a GPU is degraded": ("True GPUDegraded", (MachineObserved(HOT),)),
    "a GPU is degraded, a MIG device unhealthy": (
        "True GPUUnhealthy",
        (MachineObserved(HOT), FaultOccurred(code="xid-94", gpu="GPU-1", message="contained", at=3.0, gpu_instance=8)),
    ),
    "no driver": ("True DriverFailing", (MachineObserved(MISSING),)),
    "no driver, a GPU is lost": ("True DriverFailing", (LOST, MachineObserved(MISSING))),
    "a GPU is drained": ("False NoProblem", (DrainRequested("GPU-0", Drain("fans")),)),
    "the Node drains devices, some absent": (
        "False NoProblem",
        (NodeRequestsChanged(NodeObjectRequests(drain_reasons={"1:0": "RMA", "9": "typo", "GPU-77": "gone"})),),
    ),
    "the Node drains all": ("False NoProblem", (NodeRequestsChanged(NodeObjectRequests(drain_reasons={"all": "x"})),)),
    "no GPU": ("False NoProblem", (MachineObserved(Machine(gpus=())),)),
    "the driver is released": (
        "Unknown DriverReleased",
        (DriverReleaseRequested(DriverRelease(until=900.0, reason="upgrade")), RELEASED),
    ),
    "the driver is released, a GPU is lost": (
        "True GPUUnhealthy",
        (LOST, DriverReleaseRequested(DriverRelease(until=900.0, reason="reset")), RELEASED),
    ),
}


@pytest.mark.parametrize("node", NODES)
def test_the_condition(node: str, golden: Golden) -> None:
    """ "True" is a problem; the worst one is the reason, all are named; what people want is none."""
    expected, facts = NODES[node]
    found = node_condition(after(*facts))

    assert found is not None
    assert f"{found.status} {found.reason}" == expected
    golden(found.message)


def test_a_suspect_is_no_problem() -> None:
    """Nor is a note."""
    suspect = MachineObserved(Machine(gpus=(GPUS[0].but(faults=(Fault("query-failed", "once"),)), GPUS[1])))
    noted = FaultOccurred(code="xid-13", gpu="GPU-1", message="a program's", at=3.0)
    found = node_condition(after(suspect, noted))

    assert found is not None
    assert found.status == "False"


def test_nothing_is_said_before_anything_is_known() -> None:
    """What stood there before our start stays: before the first look, before the configuration, and while the driver
    that was let go of has not been looked at again."""
    looked = run(Snapshot(), MachineObserved(WELL))
    let_go = StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True))

    assert [node_condition(Snapshot()), node_condition(looked), node_condition(after(let_go))] == [None, None, None]
    assert [
        is_machine_and_config_settled(Snapshot()),
        is_machine_and_config_settled(looked),
        is_machine_and_config_settled(after()),
    ] == [
        False,
        False,
        True,
    ]
    assert node_condition(run(looked, StatusChanged(CONFIG_PART, Status("failing", "config.yaml:2: no such key"))))


def test_a_driver_that_never_came_is_a_problem() -> None:
    """Also where there is no look to tell of it."""
    found = node_condition(
        run(Snapshot(), StatusChanged(DRIVER_PART, DriverStatus("failing", "processes 7, 9 are stuck")))
    )

    assert found is not None
    assert (found.status, found.reason) == ("True", "DriverFailing")
    assert "processes 7, 9 are stuck" in as_shown(found.message)


def test_what_the_driver_says_is_one_line_of_a_safe_size() -> None:
    """No escape reaches a terminal, and no message the API server's limits."""
    found = node_condition(after(LOST.but(message="\x1b[31mred\n\n\ud800" + "x" * 5000)))

    assert found is not None
    assert len(found.message) == MAX_MESSAGE_CHARACTERS
    assert found.message.isprintable()
    assert "\ufffd[31mred \ufffdxx" in as_shown(found.message)


def test_events_of_a_device(golden: Golden) -> None:
    """Each change of kind once, with what to do; a change of words is none."""
    well = after()
    ill = run(well, LOST)
    worse = run(ill, FaultOccurred(code="xid-95", gpu="GPU-0", message="not contained", at=4.0), now=4.0)
    renewed = run(
        worse, MachineObserved(Machine(gpus=(GPUS[0].but(faults=(Fault("gpu-lost", "gone"),)), GPUS[1]))), now=5.0
    )
    mended = run(renewed, MachineObserved(WELL), MachineObserved(WELL), now=6.0)
    asked = run(mended, MachineObserved(WELL), now=60.0)
    record = (asked.ledger.health or HealthRecords()).devices["GPU-0"]
    assert record.probe is not None
    assert record.probe.requested_at is not None
    again = run(asked, ProbeFinished(requested_at=record.probe.requested_at, gpu=GPUS[0]), now=61.0)

    assert told(well, ill) == ["Warning GPUUnhealthy GPU-0"]
    assert [told(ill, worse), told(worse, renewed), told(mended, asked)] == [[], [], []]
    assert told(asked, again) == ["Normal GPURecovered GPU-0"]
    assert told(again, well) == []
    golden(messages(well, ill), "unhealthy")
    golden(messages(asked, again), "recovered")


def test_events_of_degradation(golden: Golden) -> None:
    assert told(after(), after(MachineObserved(HOT))) == ["Warning GPUDegraded GPU-0"]
    assert told(after(MachineObserved(HOT)), after(LOST))[0] == "Warning GPUUnhealthy GPU-0"
    assert told(after(MachineObserved(HOT)), after()) == ["Normal GPURecovered GPU-0"]
    golden(messages(after(), after(MachineObserved(HOT))), "degraded")
    golden(messages(after(MachineObserved(HOT)), after()), "recovered")


def test_events_of_the_driver(golden: Golden) -> None:
    """It is one Event, not one for each GPU; letting go of the driver is none."""
    assert told(after(), after(MachineObserved(MISSING))) == ["Warning DriverFailing "]
    assert told(after(MachineObserved(MISSING)), after()) == ["Normal DriverRecovered "]
    assert told(after(), after(RELEASED)) == []
    golden(messages(after(), after(MachineObserved(MISSING))), "failing")
    golden(messages(after(MachineObserved(MISSING)), after()), "recovered")


def test_events_of_drains(golden: Golden) -> None:
    """By the command line or by the Node object; a GPU's MIG devices are not told apart."""
    drained = after(NodeRequestsChanged(NodeObjectRequests(drain_reasons={"1": "fan noise"})))

    assert told(after(), drained) == ["Normal GPUDrained GPU-1"]
    assert told(drained, after()) == ["Normal GPUUndrained GPU-1"]
    assert told(drained, after(DrainRequested("GPU-1", Drain("fan noise")))) == []
    golden(messages(after(), drained), "drained")
    golden(messages(drained, after()), "restored")


def test_a_device_that_is_no_longer_there_has_not_recovered(golden: Golden) -> None:
    other = Machine(gpus=(GPUS[0].but(uuid="GPU-new"), GPUS[1]))
    ill = after(LOST)
    gone = ill.but(machine=other, ledger=ill.ledger.but(health=None))

    assert told(ill, gone) == ["Normal GPURemoved GPU-0"]
    golden(messages(ill, gone))


@pytest.mark.parametrize(
    "facts",
    [
        (LOST,),
        (MachineObserved(HOT),),
        (DrainRequested("GPU-0", Drain("fans")),),
        (NodeRequestsChanged(NodeObjectRequests(drain_reasons={"all": "moving"})),),
        (ConfigLoaded(Settings(faults={"xid-79": FaultOverride(severity="note")})), LOST),
    ],
    ids=["unhealthy", "degraded", "drained", "annotation", "ruling"],
)
def test_nothing_is_told_again_after_a_restart(facts: tuple[Fact, ...]) -> None:
    """What the ledger remembers was told, as it is judged with today's configuration."""
    before = after(*facts)
    start = Snapshot(ledger=before.ledger)
    settings = before.config.settings
    assert settings is not None
    machine = before.machine
    assert machine is not None
    now = run(start, ConfigLoaded(settings), MachineObserved(machine), AllocationsListed((), 9.0), now=9.0)

    assert list(node_events(event_states_before_restart(start, now), event_states(now))) == []
    assert [node_condition(now)] == [node_condition(before)]


def test_a_drain_by_annotation_is_not_told_again_after_a_reboot() -> None:
    """It holds also before the API server's first word."""
    before = after(NodeRequestsChanged(NodeObjectRequests(drain_reasons={"0": "RMA"})))
    start = Snapshot(ledger=adapt_to_new_boot(before.ledger, "another boot", wall=0.0, now=0.0))
    now = run(start, ConfigLoaded(Settings()), MachineObserved(WELL), AllocationsListed((), 1.0), now=1.0)

    assert event_states(now)["GPU-0"].state == "drained"
    assert list(node_events(event_states_before_restart(start, now), event_states(now))) == []


def test_what_came_and_went_while_we_were_away_is_told() -> None:
    """What a look shows that the ledger does not know; and what a reboot has cured."""
    start = Snapshot(ledger=after().ledger)
    now = run(start, ConfigLoaded(Settings()), MachineObserved(HOT), AllocationsListed((), 9.0), now=9.0)

    assert [e.reason for e in node_events(event_states_before_restart(start, now), event_states(now))] == [
        "GPUDegraded"
    ]

    health = apply_reboot(after(LOST).ledger.health or HealthRecords(), wall_clock=0.0, now=0.0)
    start = Snapshot(ledger=Ledger(health=health))
    now = run(start, ConfigLoaded(Settings()), MachineObserved(WELL), AllocationsListed((), 1.0), now=1.0)

    assert [e.reason for e in node_events(event_states_before_restart(start, now), event_states(now))] == [
        "GPURecovered"
    ]


MANY = tuple(Gpu(index=n, uuid=f"GPU-{n}") for n in range(8))
SERVING = run(
    Snapshot(), ConfigLoaded(SETTINGS), MachineObserved(Machine(gpus=MANY)), AllocationsListed((), 0.0), now=0.0
)


def failing(call: str, gpus: int = 8) -> MachineObserved:
    """A look at which a call of the driver fails, of so many GPUs."""
    fault = Fault("fabric-failed", f"{call} failed")
    return MachineObserved(Machine(gpus=tuple(gpu.but(faults=(fault,)) if gpu.index < gpus else gpu for gpu in MANY)))


def test_one_cause_of_eight_devices_is_one_event(golden: Golden) -> None:
    """Another call that fails is none, and the condition says the same in other words; a device that joins is one."""
    ill = run(SERVING, failing("nvmlA", 7))
    again = run(ill, failing("nvmlB", 7), now=3.0)
    [event] = node_events(event_states(SERVING), event_states(ill))

    assert event.devices == tuple(f"GPU-{n}" for n in range(7))
    assert event.reason == "GPUUnhealthy"
    golden(event.message, "seven GPUs fail")
    assert told(ill, again) == []
    before, now = node_condition(ill), node_condition(again)
    assert before is not None
    assert now is not None
    assert now.same_as(before)
    assert before.message != now.message
    golden(now.message, "the condition by then")

    joined = run(again, failing("nvmlB"), now=4.0)
    [event] = node_events(event_states(again), event_states(joined))
    assert event.devices == ("GPU-7",)
    assert node_condition(joined) != now
    assert told(joined, SERVING) == [f"Normal GPURecovered {' '.join(f'GPU-{n}' for n in range(8))}"]
    golden(messages(joined, SERVING), "all recover")


def test_a_configuration_that_is_no_good_is_a_problem_of_all_devices(golden: Golden) -> None:
    """None is given out. The message says why, and how many; so does an Event."""
    start = run(Snapshot(), MachineObserved(Machine(gpus=MANY)), AllocationsListed((), 0.0), now=0.0)
    broken = run(start, StatusChanged(CONFIG_PART, Status("failing", "config.yaml:2: no such key")))
    found = node_condition(broken)

    assert found is not None
    assert (found.status, found.reason) == ("True", "GPUUnavailable")
    assert told(start, broken) == [f"Warning GPUUnavailable {' '.join(f'GPU-{n}' for n in range(8))}"]
    golden(found.message, "condition")
    golden(messages(start, broken), "event")


def test_a_gpu_without_a_uuid_is_a_problem(golden: Golden) -> None:
    """No record is kept of it, and no name offers it."""
    bare = Machine(gpus=(MANY[0].but(uuid="", faults=(Fault("query-failed", "nvmlDeviceGetUUID failed"),)), MANY[1]))
    found = node_condition(run(Snapshot(), ConfigLoaded(SETTINGS), MachineObserved(bare), AllocationsListed((), 0.0)))

    assert found is not None
    assert (found.status, found.reason) == ("True", "GPUUnhealthy")
    golden(found.message)


def test_what_is_over_in_a_moment_is_no_change() -> None:
    """A device whose specification is being written stands, for those who are told, as it did before."""
    by_cdi = ConfigLoaded(SETTINGS.but(device_list_strategy=("cdi-cri",)))
    full, empty = CdiFilesStatus("failing", "disk full"), CdiFilesStatus("ok", "no file")
    refused = run(
        Snapshot(), StatusChanged(CDI_FILES_PART, full), by_cdi, MachineObserved(MACHINE), AllocationsListed((), 0.0)
    )
    writing = run(refused, StatusChanged(CDI_FILES_PART, empty))
    written = run(
        writing,
        StatusChanged(
            CDI_FILES_PART,
            empty.but(
                fingerprints=spec_fingerprints(each.spec for each in desired_specs(writing).values() if each.spec)
            ),
        ),
    )

    assert [event_states(each)["GPU-a"].state for each in (refused, writing, written)] == [
        "unavailable",
        "waiting",
        "well",
    ]
    assert told(refused, writing) == []
    last = keep_last_state_while_waiting(event_states(refused), event_states(writing))
    [event] = node_events(last, event_states(written))
    assert (event.reason, event.devices) == ("GPURecovered", ("GPU-a",))
    assert "disk full" in as_shown(event.message)
