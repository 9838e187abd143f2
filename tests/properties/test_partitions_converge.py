"""Whatever happens in between, GPUs come to have the layouts that are requested, or it is said why not.

A driver, a kubelet, an agent and its disk, by hand. Pods come and go, requests change, calls fail before or after they
did something, somebody makes instances by hand, the agent is killed at any point, and the node reboots. What a pod
holds is never destroyed.
"""

from collections import Counter
from collections.abc import Mapping

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.ledger import adapt_to_new_boot
from gpuplane.node.core.partitions.progress import partitions_progress
from gpuplane.node.core.partitions.state_machine import awaits_allocatable, current_change
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.step import next_due_time, step
from gpuplane.node.hardware.described.migchanges import ChangeRefused, make_change, with_mig_details
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    AllocatableListed,
    AllocateAnswered,
    AllocationsListed,
    ChangePartition,
    ConfigLoaded,
    Fact,
    LayoutRequested,
    LedgerLoaded,
    MachineObserved,
    PartitionChangeFinished,
    StatusChanged,
    Tick,
)
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.partitions import (
    ChangeProblem,
    CreateGpuInstance,
    GpuLayout,
    LayoutRequest,
    ResetGpu,
    SetMigMode,
)
from gpuplane.node.model.snapshot import Allocation, Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART, DriverStatus, Status, plugin_part
from tests.lengths import length
from tests.node.core.partitions.tables import FOUR, SEVEN, Card, Placement, by_id, can_exist

GPUS = "GPU-0", "GPU-1"
CARDS = {"GPU-0": SEVEN, "GPU-1": FOUR}
SETTINGS = Settings(mig_strategy="mixed", device_list_strategy=("envvar",))
LAYOUTS: Mapping[str, tuple[GpuLayout, ...]] = {
    "GPU-0": (
        GpuLayout(False, replaces_foreign=True),
        GpuLayout(True, {"1g.10gb": 7}, replaces_foreign=True),
        GpuLayout(True, {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}, replaces_foreign=True),
        GpuLayout(True, {"3g.40gb": 2}),
        GpuLayout(True, {"4g.40gb": 1, "1c.3g.40gb": 3}),
        GpuLayout(True, {"1g.20gb": 2, "1g.10gb+me": 1, "1g.10gb": 3}, replaces_foreign=True),
        GpuLayout(True, {"4g.40gb": 2}),  # it cannot be
        GpuLayout(True),
    ),
    "GPU-1": (
        GpuLayout(False),
        GpuLayout(True, {"1g.6gb": 4}, replaces_foreign=True),
        GpuLayout(True, {"2g.12gb": 1, "1g.6gb": 2}, replaces_foreign=True),
        GpuLayout(True, {"4g.24gb": 1}),
    ),
}


class Driver:
    """One GPU: its card, its mode, and what a look shows of it."""

    def __init__(self, uuid: str, index: int) -> None:
        self.uuid, self.index, self.profiles = uuid, index, CARDS[uuid]
        self.needs_reset = uuid == "GPU-1"
        self.card, self.enabled, self.pending = Card(self.profiles, ()), False, False
        self.fault = ""

    def devices(self) -> dict[str, tuple[Placement, int]]:
        """UUID of each MIG device → where it is. The same place has the same UUID again."""
        return {
            f"MIG-{self.index}-{place[0]}-{place[1]}-{part.id}": (place, part.id)
            for place, parts in self.card.there.items()
            for part in parts
        }

    def look(self) -> Gpu:
        """What the driver tells."""
        ids = {each.placement: each.id for each in self.card.instances}
        names = by_id(self.profiles)
        devices = tuple(
            MigDevice(
                uuid=uuid, profile=names[place[0]].name, gpu_instance=ids[place], compute_instance=part,
                mig_index=number, memory_mib=1000,
            )
            for number, (uuid, (place, part)) in enumerate(self.devices().items())
        )  # fmt: skip
        mig = Mig(
            enabled=self.enabled,
            devices=devices if self.enabled else (),
            pending=self.pending if self.pending != self.enabled else None,
            needs_reset=self.needs_reset,
            profiles=self.profiles,
            instances=self.card.instances if self.enabled else (),
        )
        faults = (Fault(code=self.fault, message="it is lost"),) if self.fault else ()
        return Gpu(index=self.index, uuid=self.uuid, model="NVIDIA X", memory_mib=80_000, mig=mig, faults=faults)

    def make(self, action: ChangePartition, held: set[str]) -> ChangeProblem:
        """A change, as the driver makes it. What is held is never touched."""
        before, mine = self.devices(), {self.uuid, *self.devices()} & held
        match action.change:
            case SetMigMode(enabled):
                assert not mine or enabled == self.enabled, "a pod has it"
                assert not self.card.there or enabled == self.enabled, "it has instances"
                self.pending = enabled
                self.enabled = self.enabled if self.needs_reset else enabled
            case ResetGpu():
                assert not mine, "a pod has it"
                self.enabled = self.pending
            case change:
                assert self.enabled
                self.card.make(change)
        assert not held & (before.keys() - self.devices().keys()), "a pod has it"
        return ""


class DescribedDriver(Driver):
    """The same GPU with the rules of a described machine. Its card shows what these have made."""

    def __init__(self, uuid: str, index: int) -> None:
        super().__init__(uuid, index)
        self.described = with_mig_details(super().look())

    def look(self) -> Gpu:
        """What a described machine shows."""
        if (self.enabled, frozenset(self.card.there)) != self._seen():  # a reboot, or somebody else's instance
            self.described = self.described.but(mig=super().look().mig)
        faults = (Fault(code=self.fault, message="it is lost"),) if self.fault else ()
        return self.described.but(faults=faults)

    def make(self, action: ChangePartition, held: set[str]) -> ChangeProblem:
        """A change, by the rules of a described machine."""
        self.look()
        before = {each.uuid for each in self.described.mig_devices}
        try:
            self.described = make_change(self.described, action.change, ())
        except ChangeRefused as refused:
            return refused.problem
        assert not held & (before - {each.uuid for each in self.described.mig_devices}), "a pod has it"
        mig = self.described.mig
        assert mig is not None
        assert mig.enabled == self.enabled or self.uuid not in held, "a pod has it"
        self.enabled, self.pending = mig.enabled, mig.enabled if mig.pending is None else mig.pending
        self.card.take_over(mig.instances or ())
        return ""

    def _seen(self) -> tuple[bool, frozenset[Placement]]:
        mig = self.described.mig
        assert mig is not None
        return mig.enabled, frozenset(each.placement for each in mig.instances or ())


class Life:
    """A node."""

    def __init__(self, driver: type[Driver] = Driver) -> None:
        self.now, self.boot = 1000.0, 0
        self.drivers = {uuid: driver(uuid, index) for index, uuid in enumerate(GPUS)}
        self.pods: dict[str, tuple[str, str]] = {}  # name → (resource, id)
        self.kubelet: dict[str, frozenset[str]] = {}  # what it could give out, as it was told last
        self.request: LayoutRequest | None = None
        self.fails: list[str] = []  # what the next changes come to
        self.disk = Ledger(boot_id="boot-0")
        self.count = 0
        self.start()

    # What the agent is told

    def start(self) -> None:
        """An agent begins, with what the disk has."""
        self.begun: ChangePartition | None = None
        self.flying: ChangePartition | None = None
        self.snapshot = Snapshot()
        self.apply(LedgerLoaded(self.disk))
        self.apply(ConfigLoaded(SETTINGS))
        self.apply(StatusChanged(DRIVER_PART, DriverStatus("ok")))
        self.look()
        self.list()
        self.apply(StatusChanged(plugin_part("nvidia.com/gpu"), Status("ok")))

    def apply(self, fact: Fact) -> None:
        self.snapshot = step(self.snapshot, fact, self.now)

    def look(self) -> None:
        self.apply(MachineObserved(Machine(gpus=tuple(each.look() for each in self.drivers.values()))))

    def list(self) -> None:
        """Kubelet lists what its pods hold."""
        held = (
            Allocation(resource=resource, devices=(id,), holder=PodRef(namespace="n", name=name, container="c"))
            for name, (resource, id) in self.pods.items()
        )
        self.apply(AllocationsListed(tuple(held), self.now))

    def store(self) -> None:
        self.disk = self.snapshot.ledger

    # What happens

    def ask(self, first: int, second: int) -> None:
        """Layouts are requested, and the answer comes once that is on disk; -1: not of this GPU."""
        chosen = {uuid: n for uuid, n in zip(GPUS, (first, second), strict=True) if n >= 0}
        layouts = {uuid: LAYOUTS[uuid][n % len(LAYOUTS[uuid])] for uuid, n in chosen.items()}
        self.request = LayoutRequest(name="asked", layouts=layouts) if layouts else None
        self.apply(LayoutRequested(self.request))
        self.store()

    def hear(self) -> None:
        """Kubelet reads the device lists."""
        self.kubelet = {
            each.name: frozenset(device.id for device in each.devices if not device.reasons)
            for each in offer(self.snapshot).resources
        }

    def admit(self, number: int, heard: bool) -> None:
        """Kubelet chooses a device for a pod, perhaps by an old list. The agent refuses what it does not offer."""
        if heard:
            self.hear()
        taken = {id for _, id in self.pods.values()}
        free = sorted((name, id) for name, ids in self.kubelet.items() for id in ids - taken)
        if not free:
            return
        resource, id = free[number % len(free)]
        offered = {
            (each.name, device.id) for each in offer(self.snapshot).resources for device in each.devices
            if not device.reasons
        }  # fmt: skip
        if (resource, id) in offered:
            self.count += 1
            self.pods[f"pod-{self.count}"] = resource, id
            self.apply(AllocateAnswered(resource, (id,)))

    def end(self, number: int) -> None:
        """A pod ends."""
        if self.pods:
            del self.pods[sorted(self.pods)[number % len(self.pods)]]

    def intrude(self, number: int, index: int) -> None:
        """Somebody makes an instance by hand."""
        driver = self.drivers[GPUS[index]]
        places = [(each.id, start) for each in driver.profiles for start in each.starts]
        place = places[number % len(places)]
        there = driver.card.there
        if driver.enabled and place not in there and can_exist(driver.profiles, {*there, place}):
            driver.card.create(place)

    def begin(self) -> None:
        """The reconciler gives a pending change to the hardware, once the disk has it."""
        change = current_change(self.snapshot)
        if change is None or change == self.begun or self.flying is not None or self.disk != self.snapshot.ledger:
            return
        self.begun = self.flying = change
        self.fate = self.fails.pop(0) if self.fails else ""
        driver = self.drivers[change.gpu]
        if isinstance(change.change, CreateGpuInstance):
            place = change.change.profile, change.change.start
            if place in driver.card.there:
                return  # somebody else was faster
            if not can_exist(driver.profiles, {*driver.card.there, place}):
                self.fate = "full"
        if self.fate in ("", "late"):
            self.problem = driver.make(change, {unit_of(id) for _, id in self.pods.values()})
            self.fate = self.fate or self.problem

    def finish(self) -> None:
        """What became of it is told, after a look."""
        if (change := self.flying) is None:
            return
        self.flying = None
        self.look()
        told = PartitionChangeFinished(change.gpu, change.change, change.requested_at)
        problem: ChangeProblem = "insufficient-resources" if self.fate == "full" else "failed"
        if self.fate:
            told = told.but(problem=problem, failure=self.fate, outcome_unknown=self.fate in ("late", "lost"))
        self.apply(told)

    def work(self) -> None:
        """As it mostly goes."""
        if awaits_allocatable(self.snapshot):
            self.hear()
            self.apply(AllocatableListed(self.kubelet, self.now))
        self.store()
        self.begin()
        self.finish()

    def fail(self, *how: str) -> None:
        self.fails += how

    def lose(self, index: int, lost: bool) -> None:
        """A GPU falls off the bus, or is back."""
        self.drivers[GPUS[index]].fault = "gpu-lost" if lost else ""
        self.look()

    def kill(self, late: bool) -> None:
        """The agent dies. A change that is under way is made, or not."""
        if self.flying is not None and self.fate == "lost" and late:
            self.drivers[self.flying.gpu].make(self.flying, {unit_of(id) for _, id in self.pods.values()})
        self.now += 1.0
        self.start()

    def reboot(self) -> None:
        """Instances are gone, and the mode of GPUs that need no reset for it; pods end."""
        for driver in self.drivers.values():
            driver.card = Card(driver.profiles, ())
            driver.enabled = driver.pending = driver.enabled and driver.needs_reset
        self.pods, self.kubelet, self.boot, self.now = {}, {}, self.boot + 1, 10.0
        self.disk = adapt_to_new_boot(self.disk, f"boot-{self.boot}", 1e9, self.now)
        self.start()

    def wait(self, seconds: float) -> None:
        """Time passes, and stops where something is due."""
        until = self.now + seconds
        for _ in range(100):
            due = next_due_time(self.snapshot)
            self.now = until if due is None else min(until, max(due, self.now))
            self.apply(Tick())
            if self.now >= until:
                return
            self.work()

    def settle(self) -> None:
        """Nothing fails any more, and there is time."""
        self.fails.clear()
        for driver in self.drivers.values():
            driver.fault = ""
        for _ in range(120):
            self.finish()
            self.list()
            self.look()
            self.work()
            self.wait(100.0)

    def has(self, uuid: str, layout: GpuLayout) -> bool:
        """Whether a GPU has a layout."""
        driver = self.drivers[uuid]
        if not layout.mig_enabled:
            return not driver.enabled
        names = by_id(driver.profiles)
        found = Counter(
            names[place[0]].name if part.slices == names[place[0]].slices else f"{part.slices}c.{names[place[0]].name}"
            for place, parts in driver.card.there.items()
            for part in parts
        )
        return driver.enabled and found == layout.mig_devices and all(driver.card.there.values())


NUMBERS = st.integers(0, 30)
STEPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(-1, 7), st.integers(-1, 3)),
    st.tuples(st.just("admit"), NUMBERS, st.booleans()),
    st.tuples(st.just("admit"), NUMBERS, st.booleans()),
    st.tuples(st.just("end"), NUMBERS),
    st.tuples(st.just("intrude"), NUMBERS, st.integers(0, 1)),
    st.tuples(st.sampled_from(["work", "work", "work", "hear", "list", "look", "store", "begin", "finish", "reboot"])),
    st.tuples(st.just("fail"), *[st.sampled_from(["", "refused", "full", "late", "lost"])] * 3),
    st.tuples(st.just("lose"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("kill"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 20.0, 700.0])),
)


@settings(max_examples=length(60, 2000))
@given(st.lists(STEPS, max_size=25), st.booleans(), st.sampled_from([Driver, DescribedDriver]))
@example(
    [("ask", 1, 1), *[("work",)] * 30, ("admit", 3, True), ("ask", 2, 2), *[("work",)] * 9, ("reboot",)], False, Driver
)
def test_gpus_come_to_have_their_layouts_or_it_is_said_why_not(
    steps: list[tuple[object, ...]], all_end: bool, driver: type[Driver]
) -> None:
    """Nothing that is held is touched on the way; nothing is half made in the end."""
    life = Life(driver)
    for name, *arguments in steps:
        getattr(life, str(name))(*arguments)
    if all_end:
        life.pods.clear()
    life.settle()

    progress = partitions_progress(life.snapshot)
    assert (progress is None) == (life.request is None)
    layouts = life.request.layouts if life.request is not None else {}
    for each in progress.gpus if progress is not None else ():
        event(each.state if each.state == "done" else each.code)
        if each.state == "done":
            assert life.has(each.gpu, layouts[each.gpu])
        elif each.code == "held":
            assert each.holders
            assert life.pods
        else:
            assert (each.state, each.code) in {("failed", "does-not-fit"), ("failed", "foreign-instance")}, each
    assert not any(state.pending for state in (life.snapshot.ledger.partitions or {}).values())
