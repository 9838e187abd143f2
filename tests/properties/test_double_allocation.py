"""Whatever is changed, lost or late: what a container holds is given to no other.

The world of this test is a kubelet that counts use per resource name and id, shows a container some time after it was
granted (but within LISTING_DELAY), has it in its checkpoint at once, and answers a list with what it shows at a moment
between question and answer; a driver that switches MIG on and off and changes layouts under running containers; and a
state directory that is written late, not at all, or loses parts. Agents end at any moment, and the next one starts.

A history is a list of steps with their arguments, drawn at random: in each history some kinds of steps are frequent and
others do not happen, for what goes wrong takes several of few kinds in a row. One that breaks is shortened before it is
shown, and can be played again as it stands there.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.shares import unit_of
from gpuplane.node.core.step import ALLOCATION_LISTING_DELAY, step
from gpuplane.node.model.config import MemorySharedResource, NamingRule, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ConfigLoaded,
    Fact,
    LedgerLoaded,
    LedgerStored,
    MachineObserved,
)
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Ledger, Snapshot, StoredLedger
from tests.lengths import length

NAMES = ("nvidia.com/gpu", "nvidia.com/fast")
SMALL = "nvidia.com/mig-1g.1gb"
SIZE = 2048
MIG = Settings(mig_strategy="mixed")
CONFIGURATIONS = (
    MIG,
    *(MIG.but(gpus=(NamingRule(pattern="T4", name=a), NamingRule(pattern="*", name=b))) for a in NAMES for b in NAMES),
    *(
        MIG.but(sharing=Sharing(memory_resources=(MemorySharedResource(name, NAMES[1], grain),)))
        for grain in (512, 1024)
        for name in (NAMES[0], SMALL)
    ),
    MIG.but(sharing=Sharing((ReplicatedResource(NAMES[0], 2, NAMES[1]),))),
    MIG.but(sharing=Sharing((ReplicatedResource(NAMES[0], 2), ReplicatedResource(SMALL, 2)))),
)
LAYOUTS: Mapping[str, tuple[str, ...]] = {"off": (), "small": ("0", "1"), "large": ("5",)}
"""Names of layouts → the MIG devices of a GPU, which have the same UUIDs whenever they are made again."""
DIVISIBLE = (1, 2)


def machine(layouts: Mapping[int, str], which: Sequence[int]) -> Machine:
    """Some of three GPUs: one without MIG, and two with these layouts."""

    def mig(index: int) -> Mig | None:
        if index not in DIVISIBLE:
            return None
        ids = LAYOUTS[layouts[index]]
        devices = (
            MigDevice(uuid=f"MIG-{index}-{n}", profile="1g.1gb", gpu_instance=int(n), mig_index=slot, memory_mib=SIZE)
            for slot, n in enumerate(ids)
        )
        return Mig(enabled=bool(ids), devices=tuple(devices))

    models = ("T4", "A100", "A100")
    return Machine(
        gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}", model=models[i], memory_mib=SIZE, mig=mig(i)) for i in which)
    )


class Container(Value):
    """A container that runs, and from when on kubelet shows it.

    `part`: of its unit's memory, 1 for all of it and 0 for a time slice. `layout`: that its GPU had then.
    """

    number: int
    resource: str
    id: str
    gpu: str
    shown: float
    part: float
    layout: str


class Given(AssertionError):
    """Something was given twice, or stays withheld though nobody holds it."""


class Node:
    """A node. Each step is a method that does nothing where it cannot happen now; all arguments are numbers from 0 to
    1, so that a step means something wherever it stands in a history."""

    def __init__(self, gpus: Sequence[int]) -> None:
        self.snapshot, self.now, self.count, self.gpus = Snapshot(), 1000.0, 0, gpus
        self.layouts = dict.fromkeys(DIVISIBLE, "off")
        self.settings = CONFIGURATIONS[0]
        self.disk = Ledger()
        self.containers: list[Container] = []
        self.before: set[int] = set()  # containers of before this agent: until they are shown, the checkpoint has them
        self.asked: float | None = None
        self.answer: tuple[Allocation, ...] | None = None
        self._start(self.disk)

    def _tell(self, fact: Fact) -> None:
        self.snapshot = step(self.snapshot, fact, self.now)

    def _start(self, remembered: Ledger) -> None:
        self.snapshot, self.asked, self.answer = Snapshot(), None, None
        self.before = {each.number for each in self.containers}
        for fact in (
            LedgerLoaded(remembered),
            MachineObserved(machine(self.layouts, self.gpus)),
            ConfigLoaded(self.settings),
        ):
            self._tell(fact)
        self._tell(AllocationsListed(self._listed(), self.now))

    def _listed(self) -> tuple[Allocation, ...]:
        """What kubelet shows now, and its checkpoint of what was before this agent."""
        return tuple(
            Allocation(resource=each.resource, devices=(each.id,), holder=PodRef.parse(f"ml/{each.number}/main"))
            for each in self.containers
            if each.shown <= self.now or each.number in self.before
        )

    def time_passes(self, how_long: float) -> None:
        self.now += _one((1.0, ALLOCATION_LISTING_DELAY / 2, 2 * ALLOCATION_LISTING_DELAY), how_long)

    def the_configuration_changes(self, which: float) -> None:
        self.settings = _one(CONFIGURATIONS, which)
        self._tell(ConfigLoaded(self.settings))

    def the_layout_changes(self, gpu: float, layout: float) -> None:
        self.layouts[_one(DIVISIBLE, gpu)] = _one(tuple(LAYOUTS), layout)
        self._tell(MachineObserved(machine(self.layouts, self.gpus)))

    def the_directory_is_written(self) -> None:
        self._tell(
            LedgerStored(
                StoredLedger(
                    possible_share_layouts=(self.disk.share_layouts or {}, self.snapshot.ledger.share_layouts or {})
                )
            )
        )
        self.disk = self.snapshot.ledger
        self._tell(
            LedgerStored(StoredLedger(ledger=self.disk, possible_share_layouts=(self.disk.share_layouts or {},)))
        )

    def the_directory_loses_parts(self, which: float) -> None:
        """Nobody notices before the next start."""
        self.disk = self.disk.but(
            **dict.fromkeys(_one((("mig_parents",), ("share_layouts",), ("mig_parents", "share_layouts")), which))
        )

    def the_agent_is_killed(self, gpu: float, layout: float, settings: float) -> None:
        """What was not written is forgotten. Meanwhile the machine and the configuration may change."""
        self.layouts[_one(DIVISIBLE, gpu)] = _one((self.layouts[_one(DIVISIBLE, gpu)], *LAYOUTS), layout)
        self.settings = _one((self.settings,) * 5 + CONFIGURATIONS, settings)
        self._start(self.disk)

    def kubelet_admits_what_it_can(self, which: float, lag: float) -> None:
        """Kubelet believes free what is healthy and not used under the same name."""
        used = {(each.resource, each.id) for each in self.containers}
        free = [
            (resource, device)
            for resource in offer(self.snapshot).resources
            for device in resource.devices
            if not device.unavailable_reason and (resource.name, device.id) not in used
        ]
        if not free:
            return
        resource, device = _one(free, which)
        allocate(self.snapshot, resource.name, (device.id,))
        self._tell(AllocateAnswered(resource.name, (device.id,)))
        self.count += 1
        part = resource.share_mib / device.unit.memory_mib if resource.share_mib else float(device.id == device.unit.id)
        layout = self.layouts.get(int(device.unit.gpu[-1]), "")
        shown = self.now + lag * (ALLOCATION_LISTING_DELAY - 0.1)
        container = Container(self.count, resource.name, device.id, device.unit.gpu, shown, part, layout)
        self.containers.append(container)

    def a_container_ends(self, which: float) -> None:
        if self.containers:
            self.containers.remove(_one(self.containers, which))

    def kubelet_is_asked(self, at_once: float) -> None:
        """It may put its answer together at once; the answer may come much later all the same."""
        if self.asked is None:
            self.asked, self.answer = self.now, self._listed() if at_once < 0.7 else None

    def kubelet_puts_its_answer_together(self) -> None:
        if self.asked is not None and self.answer is None:
            self.answer = self._listed()

    def the_answer_comes(self) -> None:
        if self.asked is not None and self.answer is not None:
            self._tell(AllocationsListed(self.answer, self.asked))
            self.asked = self.answer = None

    def kubelet_lists(self) -> None:
        """Question and answer at once."""
        if self.asked is None:
            self._tell(AllocationsListed(self._listed(), self.now))

    def check(self) -> None:
        """Nothing is given twice. Raises Given."""
        held = [(each.resource, each.id) for each in self.containers]
        if len(held) != len(set(held)):
            raise Given(self.containers)
        for gpu in {each.gpu for each in self.containers}:
            mine = [each for each in self.containers if each.gpu == gpu]
            if len({(each.id.startswith("MIG-"), each.layout) for each in mine}) > 1:
                raise Given(mine)
            for unit in {unit_of(each.id) for each in mine}:
                parts = [each.part for each in mine if unit_of(each.id) == unit]
                if sum(parts) > 1 or (not all(parts) and any(parts)):  # time slices have theirs to themselves
                    raise Given(mine)

    def end(self) -> None:
        """Nothing stays withheld once its holder has ended and kubelet has shown that. Raises Given."""
        self.containers, self.asked = [], None
        self.now += 2 * ALLOCATION_LISTING_DELAY
        self._tell(AllocationsListed((), self.now))
        self.the_directory_is_written()
        left = [d for resource in offer(self.snapshot).resources for d in resource.devices if d.unavailable_reason]
        if left:
            raise Given(left)


STEPS: Mapping[Callable[..., None], int] = {
    Node.kubelet_admits_what_it_can: 2,
    Node.a_container_ends: 1,
    Node.the_configuration_changes: 1,
    Node.the_layout_changes: 2,
    Node.the_directory_is_written: 0,
    Node.the_directory_loses_parts: 1,
    Node.the_agent_is_killed: 3,
    Node.time_passes: 1,
    Node.kubelet_is_asked: 1,
    Node.kubelet_puts_its_answer_together: 0,
    Node.the_answer_comes: 0,
    Node.kubelet_lists: 0,
}
"""The steps, and how many arguments each takes."""

Step = tuple[Callable[..., None], tuple[float, ...]]
LENGTH = 60
SIZES = ((0,), (1,), (0, 1), (0, 1, 2))
LATE = (
    Node.kubelet_admits_what_it_can,
    Node.a_container_ends,
    Node.the_configuration_changes,
    Node.time_passes,
    Node.kubelet_is_asked,
    Node.the_answer_comes,
    Node.kubelet_lists,
)
"""The steps of a history in which nothing but answers goes wrong."""


class History(Value):
    """A machine, and what happens on it."""

    gpus: tuple[int, ...]
    steps: tuple[Step, ...]


def _one(choices: Sequence[Any], where: float) -> Any:
    return choices[int(where * len(choices))]


def histories(seed: int) -> Iterator[History]:
    """Random histories without end. In each some kinds of steps are missing, and the others are more or less
    frequent."""
    chance = random.Random(seed)
    while True:
        share = chance.choice((0.5, 0.7, 0.9))
        some = [each for each in STEPS if each is Node.kubelet_admits_what_it_can or chance.random() < share]
        kinds = chance.choice((some, some, LATE))
        weights = [chance.choice((1, 2, 4)) for _ in kinds]
        steps = (
            (kind, tuple(chance.random() for _ in range(STEPS[kind])))
            for kind in chance.choices(kinds, weights, k=LENGTH)
        )
        yield History(gpus=chance.choice(SIZES), steps=tuple(steps))


def played(history: History) -> str:
    """What broke in a history; "" for nothing."""
    node = Node(history.gpus)
    try:
        for kind, arguments in history.steps:
            kind(node, *arguments)
            node.check()
        node.end()
    except Given as given:
        return str(given) or repr(given)
    return ""


def shortened(history: History) -> History:
    """A history that breaks, without the steps that it does not take for that."""
    for n in reversed(range(len(history.steps))):
        shorter = history.but(steps=history.steps[:n] + history.steps[n + 1 :])
        if played(shorter):
            history = shorter
    return history


def told(history: History) -> str:
    """A history as it can be written into a test."""
    steps = "".join(f"(Node.{kind.__name__}, {arguments!r}),\n" for kind, arguments in history.steps)
    return f"{history.gpus}:\n{steps}"


def test_an_answer_does_not_settle_a_grant_that_is_younger_than_the_question() -> None:
    """It shows the container that had the same device before. The next answer shows the new one not yet."""
    history = History(
        gpus=(0,),
        steps=(
            (Node.kubelet_admits_what_it_can, (0.0, 0.05)),
            (Node.time_passes, (0.0,)),
            (Node.kubelet_is_asked, (0.0,)),
            (Node.a_container_ends, (0.0,)),
            (Node.kubelet_admits_what_it_can, (0.0, 0.9)),
            (Node.the_answer_comes, ()),
            (Node.kubelet_lists, ()),
            (Node.the_configuration_changes, (0.35,)),
            (Node.kubelet_admits_what_it_can, (0.0, 0.9)),
        ),
    )
    assert played(history) == ""


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_given_twice_in_random_histories(part: int, seed: int) -> None:
    """Eight hundred in all; a hundred times as many with `--soak`."""
    for _, history in zip(range(length(200, 20_000)), histories(seed), strict=False):
        if played(history):
            short = shortened(history)
            pytest.fail(f"{played(short)}\nin\n{told(short)}")
