"""How a node changes: what each fact does, what time does, what is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.logsubject import LogSubject
from gpuplane.base.text import MAX_CHARACTERS, clip
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import missing_information_reason, offer
from gpuplane.node.core.reports.news import news
from gpuplane.node.core.reports.readiness import not_ready_reason
from gpuplane.node.core.step import ALLOCATION_LISTING_DELAY, next_due_time, step
from gpuplane.node.model.config import NodeObjectRequests, Settings
from gpuplane.node.model.encoding import decode, encode
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ConfigLoaded,
    DriverReleaseRequested,
    Fact,
    LedgerLoaded,
    MachineObserved,
    NodeRequestsChanged,
    ProbeFinished,
    StatusChanged,
    Tick,
)
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, DriverRelease, Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus, Part, Status, Statuses
from tests.golden import Golden
from tests.texts import as_shown

A, B = Gpu(index=0, uuid="GPU-a", pci="0000:01:00.0"), Gpu(index=1, uuid="GPU-b", pci="0000:02:00.0")
LOST = Fault("gpu-lost", "fell off the bus")
NO_DRIVER = Fault("no-driver", "not loaded")


NOTHING = Snapshot()


def after(*facts: Fact, now: float = 100.0, start: Snapshot = NOTHING) -> Snapshot:
    """The snapshot after some facts, all at one time."""
    for fact in facts:
        start = step(start, fact, now)
    return start


READY = after(
    MachineObserved(Machine(gpus=(A, B))), ConfigLoaded(Settings()), AllocationsListed((), requested_at=100.0)
)


def troubles(snapshot: Snapshot) -> dict[str, str]:
    """Device id → why it is not available: codes of faults, else kinds of reasons; of all resources."""
    devices = (device for resource in offer(snapshot).resources for device in resource.devices)
    return {device.id: " ".join(each.code or each.kind for each in device.reasons) for device in devices}


def test_a_fact_that_changes_nothing_gives_the_same_object() -> None:
    """Whoever follows the snapshots is not woken by a look that shows what the last one showed."""
    assert step(READY, MachineObserved(Machine(gpus=(A, B))), 200.0) is READY
    assert step(READY, Tick(), 200.0) is READY


def test_each_change_is_a_generation() -> None:
    """Generations count the changes, one each."""
    assert READY.generation == 3


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        ((ConfigLoaded(Settings()), AllocationsListed((), 0.0)), ("driver", "machine-not-observed")),
        ((MachineObserved(Machine(gpus=(A,))), AllocationsListed((), 0.0)), ("config", "config-missing")),
        ((MachineObserved(Machine(gpus=(A,))), ConfigLoaded(Settings())), ("pod-resources", "allocations-unknown")),
        (
            (MachineObserved(Machine(faults=(Fault("no-driver", "not loaded"),))), ConfigLoaded(Settings())),
            ("driver", "no-driver"),
        ),
    ],
    ids=["no look", "no configuration", "no allocations", "no driver"],
)
def test_nothing_is_offered_before_everything_is_known(
    known: tuple[Fact, ...], missing: tuple[str, str], golden: Golden
) -> None:
    """Before the first look, configuration and list of allocations the answer is "not yet, because …"."""
    offered, lack = offer(after(*known)), missing_information_reason(after(*known))

    assert offered.resources == ()
    assert lack is not None
    assert (lack.part, lack.code) == missing
    golden(offered.waiting_reason)


def test_a_look_that_cannot_count_keeps_the_gpus_with_the_fault() -> None:
    """Not seen is not gone: the driver went away, and its GPUs stay listed, unhealthy, with that reason."""
    away = after(MachineObserved(Machine(gpus=None, faults=(Fault("no-driver", "not loaded"),))), start=READY)

    assert troubles(away) == {"GPU-a": "no-driver", "GPU-b": "no-driver"}
    assert troubles(after(MachineObserved(Machine(gpus=(A, B))), start=away)) == {"GPU-a": "", "GPU-b": ""}


def test_a_gpu_that_cannot_be_described_keeps_its_name() -> None:
    """The driver knows a lost GPU by its index only: it is the one that stood there, and only it is in trouble."""
    lost = after(MachineObserved(Machine(gpus=(A, Gpu(index=1, faults=(LOST,))))), start=READY)

    assert troubles(lost) == {"GPU-a": "", "GPU-b": "gpu-lost"}


def test_a_gpu_that_was_never_described_is_left_with_the_reason() -> None:
    """A GPU without a UUID cannot be offered; the others are."""
    offered = offer(
        after(MachineObserved(Machine(gpus=(A, Gpu(index=1, faults=(LOST,))))), start=READY.but(machine=None))
    )

    assert [device.id for resource in offered.resources for device in resource.devices] == ["GPU-a"]
    assert [(left.index, left.kind) for left in offered.not_offered] == [("1", "problem")]
    assert as_shown(LOST.message) in as_shown(offered.not_offered[0].reason)


def test_a_gpu_that_is_counted_no_more_is_gone() -> None:
    """Hot-unplug: a look that counts one GPU less makes the list shorter."""
    assert troubles(after(MachineObserved(Machine(gpus=(A,))), start=READY)) == {"GPU-a": ""}


def test_a_silent_driver_is_served_for_a_while_and_then_lost() -> None:
    """The last look stays in force until the driver has been silent for too long; its word heals everything."""
    hang = Machine(faults=(Fault("driver-hang", "silent in nvmlInit"),))
    silent = step(READY, MachineObserved(hang), 100.0)
    at = next_due_time(silent)

    assert at is not None
    assert not any(troubles(step(silent, Tick(), at - 0.1)).values())
    lost = step(silent, Tick(), at)
    assert troubles(lost) == {"GPU-a": "driver-hang", "GPU-b": "driver-hang"}
    assert next_due_time(lost) is None
    assert not any(troubles(step(lost, MachineObserved(Machine(gpus=(A, B))), at + 1)).values())


def test_the_since_of_a_condition_is_when_its_standing_began() -> None:
    """A new reason for the same standing is told, but does not restart the clock."""
    one = step(Snapshot(), StatusChanged(Part("other", "x"), Status("failing", "a")), 10.0)
    two = step(one, StatusChanged(Part("other", "x"), Status("failing", "b")), 20.0)
    three = step(two, StatusChanged(Part("other", "x"), Status("ok")), 30.0)

    assert [s.statuses[Part("other", "x")].since for s in (one, two, three)] == [10.0, 10.0, 30.0]
    assert step(three, StatusChanged(Part("other", "x"), None), 40.0).statuses == Statuses()


def test_a_reason_is_one_line_that_can_be_printed() -> None:
    """It may quote a driver, a file or a peer; it goes to logs, Events and terminals."""
    said = step(Snapshot(), StatusChanged(Part("other", "x"), Status("failing", "no\n memory\x1b[2J é")), 10.0)
    assert said.statuses[Part("other", "x")].text == r"no memory\x1b[2J é"


def test_a_release_withholds_everything_until_its_time() -> None:
    """An operator's wish is state: all devices are withheld with the reason, and time ends it."""
    away = after(DriverReleaseRequested(DriverRelease(until=160.0, reason="firmware")), start=READY)

    assert set(troubles(away).values()) == {"driver-released"}
    assert next_due_time(away) == 160.0
    back = step(away, Tick(), 160.0)
    assert back.ledger.release is None
    assert set(troubles(back).values()) == {""}


def test_the_nodes_label_releases_too() -> None:
    """What our Node object asks for withholds as an operator's command does."""
    assert set(
        troubles(after(NodeRequestsChanged(NodeObjectRequests(driver_release_reason="label x")), start=READY)).values()
    ) == {"driver-released"}


def test_what_was_let_go_of_is_not_believed_before_it_has_been_looked_at() -> None:
    """The GPUs may have been reset or repartitioned meanwhile: the last look counts again only after a new one."""
    away = after(
        DriverReleaseRequested(DriverRelease(until=160.0, reason="reset")),
        StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True)),
        start=READY,
    )
    over = step(step(away, Tick(), 160.0), StatusChanged(DRIVER_PART, DriverStatus("ok")), 161.0)

    assert over.ledger.release is None
    assert set(troubles(over).values()) == {"not-looked"}
    assert set(troubles(step(over, MachineObserved(Machine(gpus=(A, B))), 161.0)).values()) == {""}


def test_a_driver_that_fails_after_it_was_let_go_of_gets_no_patience() -> None:
    """There is no look to be patient with: its GPUs are lost at once, and stay so until there is one."""
    away = after(StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True)), start=READY)
    failing = step(away, MachineObserved(Machine(faults=(Fault("driver-hang", "silent in nvmlInit"),))), 161.0)

    assert all({"driver-hang", "not-looked"} <= set(codes.split()) for codes in troubles(failing).values())
    crashing = step(failing, MachineObserved(Machine(faults=(Fault("driver-crash", "SIGSEGV"),))), 162.0)
    assert all("not-looked" in codes.split() for codes in troubles(crashing).values())


def test_what_our_node_asked_last_holds_until_its_next_word() -> None:
    """A restart while the API server is away goes on letting go; the next word decides."""
    asked = after(NodeRequestsChanged(NodeObjectRequests(driver_release_reason="label x")), start=READY)
    restarted = after(LedgerLoaded(asked.ledger), start=READY)

    assert set(troubles(restarted).values()) == {"driver-released"}
    assert set(troubles(after(NodeRequestsChanged(NodeObjectRequests()), start=restarted)).values()) == {""}


@pytest.mark.parametrize(
    ("facts", "ready"),
    [
        ((), False),
        ((DriverReleaseRequested(DriverRelease(until=900.0, reason="x")),), True),
        ((StatusChanged(DRIVER_PART, DriverStatus("failing", "silent in nvmlInit")),), True),
        ((MachineObserved(Machine(faults=(LOST,))),), True),
        ((MachineObserved(Machine(gpus=())), ConfigLoaded(Settings()), AllocationsListed((), 0.0)), True),
        ((MachineObserved(Machine(gpus=(A,))), ConfigLoaded(Settings()), AllocationsListed((), 0.0)), False),
    ],
)
def test_ready_is_served_or_nothing_to_serve_and_the_reason_known(facts: tuple[Fact, ...], ready: bool) -> None:
    """A driver that is away, silent or let go of is nothing that a restart of the agent could cure."""
    assert (not_ready_reason(after(*facts)) is None) == ready


@given(st.text())
def test_a_text_from_outside_is_one_short_line(text: str) -> None:
    """Whatever an annotation says, a log line stays a line."""
    clipped = clip(text)

    assert len(clipped) <= MAX_CHARACTERS
    assert clipped.splitlines() in ([], [clipped])


def test_a_grant_lasts_until_kubelet_has_had_time_to_list_it() -> None:
    """Between Allocate and pod-resources nothing is lost; a list asked long after, without it, ends it."""
    granted = step(READY, AllocateAnswered("nvidia.com/gpu", ("GPU-a",)), 100.0)

    soon = step(granted, AllocationsListed((), requested_at=100.0 + ALLOCATION_LISTING_DELAY - 1), 200.0)
    assert soon.allocations == granted.allocations
    assert step(granted, AllocationsListed((), requested_at=100.0 + ALLOCATION_LISTING_DELAY), 200.0).allocations == ()
    listed = Allocation("nvidia.com/gpu", ("GPU-a",), holder=PodRef.parse("ns/p/c"))
    assert step(granted, AllocationsListed((listed,), requested_at=101.0), 102.0).allocations == (listed,)


def test_a_restart_remembers() -> None:
    """The ledger comes back as it was told."""
    ledger = Ledger(boot_id="b", release=DriverRelease(until=500.0, reason="x"), config_name="a")

    assert after(LedgerLoaded(ledger)).ledger == ledger


def test_news_is_said_once_and_names_the_device() -> None:
    """A fault makes one line, the recovery another, and a look that repeats it none."""
    faulty = after(MachineObserved(Machine(gpus=(A, B.but(faults=(LOST,))))), start=READY)

    [line] = news(READY, faulty)
    assert (line.level, line.about) == ("warning", "GPU-b")
    assert line.subject == LogSubject(devices=("GPU-b",), code="gpu-lost", resources=("nvidia.com/gpu",))
    assert list(news(faulty, faulty.but(generation=99))) == []
    mended = step(faulty, MachineObserved(Machine(gpus=(A, B))), 200.0)
    assert list(news(faulty, mended)) == []
    asked = step(mended, Tick(), 205.0)
    well = step(asked, ProbeFinished(205.0, B), 206.0)
    [line] = news(asked, well)
    assert line.level == "info"
    assert line.subject == LogSubject(devices=("GPU-b",), resources=("nvidia.com/gpu",))


def test_a_snapshot_survives_its_encoding() -> None:
    """One definition serves in memory and as JSON."""
    full = after(
        AllocateAnswered("nvidia.com/gpu", ("GPU-a",)),
        DriverReleaseRequested(DriverRelease(until=900.0, reason="x")),
        start=READY,
    )

    assert decode(encode(full), Snapshot) == full
