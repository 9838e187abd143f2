"""A GPU that the driver listed once and lists no more is missed, until it is back or somebody has taken it out."""

import pytest

from gpuplane.node.core.availability import availability
from gpuplane.node.core.health.absence import LISTING_PRECISION, last_listing
from gpuplane.node.core.health.context import device_record
from gpuplane.node.core.ledger import FIELDS_WITH_FILE, adapt_to_new_boot, decode_part, encode_part
from gpuplane.node.core.reports.nodecondition import node_condition
from gpuplane.node.core.reports.nodeevents import event_states, node_events
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    Fact,
    FaultOccurred,
    LedgerLoaded,
    MachineObserved,
)
from gpuplane.node.model.health import DeviceRecord, Drain, HealthRecords
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.views import NodeCondition
from tests.node.core.health.world import BOOT, SETTINGS, World, machine
from tests.texts import as_shown

EPOCH = 1_800_000_000.0
"""The wall clock when the test's clock began, in seconds since 1970."""
ABSENT = ("unhealthy", "gpu-absent")


class Node(World):
    """A node with a clock on its wall."""

    listens = False

    def apply(self, fact: Fact) -> None:
        super().apply(fact.but(wall_clock=EPOCH + self.now) if isinstance(fact, MachineObserved) else fact)

    def without(self, *indices: int) -> None:
        """A look that does not show these GPUs."""
        self.machine = self.machine.but(gpus=tuple(g for g in self.machine.gpus or () if g.index not in indices))
        self.look()

    def restart(self, *, reboot: bool = False, gpus: tuple[Gpu, ...] | None = None) -> "Node":
        """Another agent, with the files that this one left; `gpus`: those that are listed then."""
        ledger = Ledger(boot_id=BOOT)
        for field in FIELDS_WITH_FILE:
            written = encode_part(getattr(self.snapshot.ledger, field), BOOT)
            ledger = ledger.but(**{field: decode_part(field, written).value})
        if reboot:
            ledger = adapt_to_new_boot(ledger, "next", EPOCH + self.now, self.now)
        other = Node.__new__(Node)
        other.__dict__.update(self.__dict__, said=[], snapshot=Snapshot(ledger=Ledger()))
        other.machine = self.machine if gpus is None else Machine(gpus=gpus)
        for fact in (LedgerLoaded(ledger), ConfigLoaded(SETTINGS), AllocationsListed((), self.now)):
            other.apply(fact)
        other.look()
        return other

    @property
    def condition(self) -> NodeCondition:
        found = node_condition(self.snapshot)
        assert found is not None
        return found


def gpus(count: int) -> tuple[Gpu, ...]:
    return machine(count).gpus or ()


def test_a_gpu_that_goes_is_missed_after_a_moment() -> None:
    """A GPU that is being reset may be away for some seconds."""
    node = Node(machine(3))
    node.wait(100.0)

    node.without(1)

    assert node.verdicts() == {"GPU-1": ("suspect", "gpu-absent")}
    node.wait(10.0)
    assert node.verdicts() == {"GPU-1": ABSENT}


@pytest.mark.parametrize("reboot", [False, True])
def test_a_gpu_that_went_while_no_agent_ran_is_missed_at_once(reboot: bool) -> None:
    node = Node(machine(8))
    node.wait(50.0)

    after = node.restart(reboot=reboot, gpus=gpus(7)).restart()

    assert after.verdicts() == {"GPU-7": ABSENT}
    assert after.condition.status == "True"
    assert after.condition.message == (
        "GPU-7: gpu-absent: the driver lists it no more, it was at 0000:08:00.0, last seen 2027-01-15T08:16:40Z"
    )


def test_what_a_look_and_a_restart_show_of_the_others_is_counted_apart() -> None:
    node = Node(machine(3))
    node.without(2)
    node.wait(10.0)
    node.apply(DrainRequested("GPU-0", Drain(reason="fan")))

    absent, others = as_shown(node.condition.message).split("; 1 of 2 GPUs is not given out: ")

    assert absent.startswith("GPU-2: gpu-absent: ") and others == "GPU 0 (GPU-0): drained: fan"
    assert [each.device for each in availability(node.snapshot)] == ["GPU-0", "GPU-1"]


def test_it_is_said_in_events_and_in_the_log_whatever_ailed_it_before() -> None:
    node = Node(machine(2))
    node.listens = True
    node.show("1", "gpu-lost")
    before, node.said = event_states(node.snapshot), []

    node.without(1)
    node.wait(10.0)

    assert [(each.level, each.subject.code) for _, each in node.said if each.subject.devices == ("GPU-1",)] == [
        ("warning", "gpu-absent")
    ]
    well = {key: each.but(state="well") for key, each in before.items()}
    [event] = node_events(well, event_states(node.snapshot))
    assert (event.reason, event.devices) == ("GPUUnhealthy", ("GPU-1",)) and "gpu-absent" in as_shown(event.message)


@pytest.mark.parametrize("reboot", [False, True])
def test_it_is_not_missed_once_it_is_back(reboot: bool) -> None:
    node = Node(machine(2))
    node.without(1)
    node.wait(10.0)
    assert node.verdicts() == {"GPU-1": ABSENT}

    back = node.restart(reboot=reboot, gpus=gpus(2))

    assert back.verdicts() == {}
    assert back.condition.status == "False"


def test_it_is_not_missed_once_it_was_taken_out() -> None:
    """Nor by the next agent."""
    node = Node(machine(2))
    node.without(1)
    node.wait(10.0)

    node.apply(DrainRequested("GPU-1", None))
    node.look()

    assert node.verdicts() == {} and device_record(node.snapshot, "GPU-1").last_listed_at is None
    assert node.restart().verdicts() == {}


def test_to_say_twice_that_it_was_taken_out_makes_no_ghost() -> None:
    """Who gets no answer says it again, perhaps to the next agent, before it has looked."""
    node = Node(machine(3))
    node.without(1)
    for _ in range(2):
        node.apply(DrainRequested("GPU-1", None))

    assert node.restart().verdicts() == {}


def test_an_older_event_does_not_count_if_it_comes_back() -> None:
    """It was taken out and repaired; an agent that starts again reads the whole kernel log."""
    node = Node(machine(3))
    node.without(1)
    node.wait(20.0)
    node.apply(DrainRequested("GPU-1", None))
    node.machine = machine(3)
    node.look()
    node.apply(FaultOccurred(code="xid-79", gpu="GPU-1", message="", at=node.now - 10.0, kernel_log_number=1))
    node.wait(200.0, answer=True)

    assert "GPU-1" not in node.ill()


def test_a_drain_of_what_was_never_listed_makes_no_ghost() -> None:
    """Nor of what was taken out: a look must have shown a GPU for it to be missed."""
    node = Node(machine(3))
    node.without(1)
    for device in ("GPU-1", "GPU-7"):
        node.apply(DrainRequested(device, None))
        node.apply(DrainRequested(device, Drain(reason="its fan")))
    other = node.restart()
    other.look()

    assert other.verdicts() == dict.fromkeys(("GPU-1", "GPU-7"), ("drained", ""))


def test_the_faults_of_a_gpu_outlast_its_absence() -> None:
    node = Node(machine(2))
    node.show("1", "remap-failed")
    node.without(1)
    node.wait(10.0)
    assert node.verdicts() == {"GPU-1": ABSENT}

    node.machine = machine(2)
    node.show("1", "remap-failed")

    assert node.verdicts() == {"GPU-1": ("unhealthy", "remap-failed")}


def test_a_gpu_with_another_index_or_address_is_not_missed() -> None:
    """The bus is numbered anew where a card is gone: who has its address now is known, and does not replace it."""
    node = Node(machine(4))
    moved = tuple(each.but(index=n, pci=f"0000:0{n + 1}:00.0") for n, each in enumerate(gpus(4)[1:]))

    after = node.restart(reboot=True, gpus=moved)

    assert after.verdicts() == {"GPU-0": ABSENT}


@pytest.mark.parametrize(
    "there",
    [
        pytest.param((*gpus(2), gpus(3)[2].but(uuid="GPU-new")), id="a new card at its address"),
        pytest.param(tuple(g.but(uuid=f"{g.uuid}-b", pci=f"0001:0{g.index}:00.0") for g in gpus(1)), id="all are new"),
        pytest.param((*gpus(2), gpus(3)[2].but(uuid="", faults=(Fault("gpu-hang", "?"),))), id="its UUID is not told"),
        pytest.param((*gpus(2), Gpu(index=2)), id="neither UUID nor address is told"),
    ],
)
def test_a_gpu_that_was_replaced_or_may_be_there_is_not_missed(there: tuple[Gpu, ...]) -> None:
    after = Node(machine(3)).restart(gpus=there)

    assert [uuid for uuid, (_, code) in after.verdicts().items() if code == "gpu-absent"] == []


def test_a_driver_that_is_silent_misses_none() -> None:
    node = Node(machine(3))

    node.fail("driver-failed")
    node.wait(100.0)

    assert node.verdicts() == {"": ("unhealthy", "driver-failed")}


def test_a_mig_device_that_a_layout_removes_is_not_missed() -> None:
    node = Node(machine(2, parts=[0]))
    node.apply(DrainRequested("MIG-0-1", Drain(reason="noisy")))

    node.machine = machine(2)
    node.look()
    node.wait(10.0)

    assert node.verdicts() == {"MIG-0-1": ("drained", "")}


def test_nothing_is_missed_before_the_first_look() -> None:
    node = Node(machine(2))
    ledger = node.snapshot.ledger

    after = World.__new__(World)
    after.__dict__.update(node.__dict__, said=[], snapshot=Snapshot(ledger=Ledger()))
    after.apply(LedgerLoaded(ledger))
    after.apply(ConfigLoaded(SETTINGS))
    after.wait(100.0)

    assert after.verdicts() == {}


def test_that_a_gpu_is_listed_is_noted_once_an_hour() -> None:
    """Each note is a write to the disk."""
    node = Node(machine(1))
    first = device_record(node.snapshot, "GPU-0").last_listed_at
    noted = set()
    for _ in range(20):
        node.wait(LISTING_PRECISION / 10)
        node.look()
        noted.add(device_record(node.snapshot, "GPU-0").last_listed_at)

    assert first == EPOCH + 1000.0
    assert noted == {first, first + LISTING_PRECISION, first + 2 * LISTING_PRECISION}


@pytest.mark.parametrize("at", [-1.0, 1e300, float("inf"), float("nan"), None])
def test_a_moment_that_is_no_date_is_not_told(at: float | None) -> None:
    """Files of the state directory can be edited."""
    assert last_listing(DeviceRecord(last_listed_at=at)) is None
    node = Node(machine(1))
    health = HealthRecords(devices={"GPU-9": DeviceRecord(pci="0000:09:00.0", last_listed_at=at)})
    node.apply(LedgerLoaded(Ledger(health=health)))
    node.look()
    assert as_shown(node.condition.message).endswith("lists it no more, it was at 0000:09:00.0")


@pytest.mark.parametrize(
    ("owner", "codes"),
    [
        ("", {"GPU-2": "gpu-absent", "0000:99:00.0": "gpu-unlisted"}),
        ("nouveau", {"GPU-2": "gpu-absent", "0000:99:00.0": "gpu-unlisted"}),
        ("vfio-pci", {}),
        ("nvgrace_gpu_vfio_pci", {}),
    ],
)
def test_a_gpu_on_the_bus_that_the_driver_does_not_have_is_named_with_who_has_it(
    owner: str, codes: dict[str, str]
) -> None:
    """One that was listed by its UUID, any other by its address; for guests it is taken by intent."""
    node = Node(machine(3))
    node.machine = machine(2).but(unlisted={"0000:03:00.0": owner, "0000:99:00.0": owner})
    node.look()
    node.wait(10.0)

    assert {uuid: code for uuid, (_, code) in node.verdicts().items()} == codes
    assert as_shown(node.condition.message).count(owner or "no kernel driver") == len(codes)
    assert (node.condition.status == "True") == bool(codes)
    assert node.wished() == {}

    node.machine = machine(3)
    node.look()
    node.wait(100.0)

    assert node.verdicts() == {}
