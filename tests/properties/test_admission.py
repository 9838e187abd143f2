"""Pods come and go at random on nodes that share in every way, and the configuration is edited under them.

The world is a kubelet that counts use by resource and id, takes our advice and fills up at random where it is short. At
every point, by what containers were given and not by what anybody believes:
- no id is with two containers, and whoever has a whole GPU or MIG device has it alone;
- of no memory more than there is has been given away, of no GPU more time slices than there may be, and memory, time
  slices and whole devices of one GPU are not held beside each other;
- a container's memory is of one GPU or MIG device, and its distinct shares are of different GPUs;
- a request is refused only where no choice of what is free could have served it.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from gpuplane.base.value import Value
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.choice.preference import preferred_ids
from gpuplane.node.core.step import step
from gpuplane.node.model.config import MemorySharedResource, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import AllocateAnswered, AllocationsListed, ConfigLoaded, Fact, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.views import OfferedDevice, RequestRefused, Resource
from tests.lengths import length

GPU = "nvidia.com/gpu"


def whole(index: int, gib: int = 6) -> Gpu:
    return Gpu(index=index, uuid=f"GPU-{index}", model="L4", memory_mib=1024 * gib, numa=index % 2)


def cut(index: int, parts: int) -> Gpu:
    devices = tuple(
        MigDevice(uuid=f"MIG-{index}-{n}", profile="1g.3gb", gpu_instance=n, mig_index=n, memory_mib=3072)
        for n in range(parts)
    )
    return whole(index).but(mig=Mig(enabled=True, devices=devices))


MACHINES = (
    Machine(gpus=(whole(0),)),
    Machine(gpus=(whole(0), whole(1), whole(2, 9))),
    Machine(gpus=(whole(0), cut(1, 2), cut(2, 3), whole(3, 4))),
)


def split(replicas: int, *, distinct: bool = False, **selected: object) -> ReplicatedResource:
    return ReplicatedResource(GPU, replicas, "nvidia.com/slice" if selected else "", distinct_gpus=distinct, **selected)  # type: ignore[arg-type]


WAYS = (
    Sharing(),
    Sharing((split(3),)),
    Sharing((split(2),)),
    Sharing((split(3, distinct=True),)),
    Sharing((split(3, devices=1),), memory_resources=(MemorySharedResource(GPU, f"{GPU}.mem", 1024),)),
    Sharing(memory_resources=(MemorySharedResource(GPU, f"{GPU}.mem", 1024),)),
    Sharing(memory_resources=(MemorySharedResource(GPU, f"{GPU}.mem", 2048),)),
    Sharing(
        memory_resources=(
            MemorySharedResource(GPU, f"{GPU}.mem", 1024, 1),
            MemorySharedResource("nvidia.com/mig-1g.3gb", "nvidia.com/p", 1024),
        )
    ),
)
ELSE = (
    Settings(mig_strategy="mixed"),
    Settings(mig_strategy="single", sharing_policy="packed"),
    Settings(mig_strategy="none", sharing_policy="topology", whole_mig_gpus=True),
)
CONFIGURATIONS = tuple(settings.but(sharing=sharing) for sharing in WAYS for settings in ELSE)


class Container(Value):
    """What one container holds, and what that was when it got it."""

    resource: str
    devices: tuple[OfferedDevice, ...]
    grain_mib: int
    replicas: Mapping[str, int]  # unit → its ids


class World:
    """One node with its kubelet."""

    def __init__(self, chance: random.Random, machine: Machine) -> None:
        self.chance, self.snapshot, self.now = chance, Snapshot(), 1000.0
        self.containers: list[Container] = []
        self.refused = 0
        for fact in (
            MachineObserved(machine),
            ConfigLoaded(chance.choice(CONFIGURATIONS)),
            AllocationsListed((), self.now),
        ):
            self.apply(fact)

    def apply(self, fact: Fact) -> None:
        self.snapshot = step(self.snapshot, fact, self.now)

    def go_on(self) -> None:
        """One thing that may happen."""
        match self.chance.randrange(8):
            case 0 | 1 | 2 | 3:
                self.admit()
            case 4 | 5 if self.containers:
                self.containers.pop(self.chance.randrange(len(self.containers)))
            case 6:
                self.apply(ConfigLoaded(self.chance.choice(CONFIGURATIONS)))
            case _:
                self.now += 20.0
                self.apply(AllocationsListed(tuple(map(_allocation, self.containers)), self.now))
        self.check()

    def admit(self) -> None:
        """A pod that the scheduler would send here: so many ids are free."""
        resource = self.chance.choice(offer(self.snapshot).resources or (Resource("nvidia.com/none", ()),))
        used = {(each.resource, device.id) for each in self.containers for device in each.devices}
        free = [
            each for each in resource.devices if not each.unavailable_reason and (resource.name, each.id) not in used
        ]
        if not free:
            return
        size = self.chance.randint(1, min(len(free), 7))
        ids = self.choose(resource.name, [device.id for device in free], size)
        try:
            allocate(self.snapshot, resource.name, ids)
        except RequestRefused as refused:
            assert not _possible(resource, free, size), f"{size} of {[each.id for each in free]}: {refused}"
            self.refused += 1
        else:
            counts = Counter(device.unit.id for device in resource.devices)
            devices = tuple(device for device in free if device.id in ids)
            assert _possible(resource.but(devices=devices), devices, size), f"{ids} are one container's"
            self.apply(AllocateAnswered(resource.name, tuple(ids)))
            self.containers.append(Container(resource.name, devices, resource.share_mib, counts))

    def choose(self, resource: str, free: list[str], size: int) -> list[str]:
        """As kubelet does: the advice, and what it lacks at random."""
        advised = [id for id in preferred_ids(self.snapshot, resource, free, (), size) if id in free]
        rest = [id for id in free if id not in advised]
        self.chance.shuffle(rest)
        return [*advised, *rest][:size]

    def check(self) -> None:
        """What containers really hold."""
        held = [(each, device) for each in self.containers for device in each.devices]
        ids = Counter((each.resource, device.id) for each, device in held)
        assert max(ids.values(), default=1) == 1, self.containers
        for gpu in {device.unit.gpu for _, device in held}:
            self.check_gpu([(each, device) for each, device in held if device.unit.gpu == gpu])

    def check_gpu(self, held: Sequence[tuple[Container, OfferedDevice]]) -> None:
        units = Counter(device.unit.id for _, device in held)
        for unit, count in units.items():
            mine = [(each, device) for each, device in held if device.unit.id == unit]
            kinds = {(device.id != unit, each.grain_mib) for each, device in mine}
            assert len(kinds) == 1, f"{unit} is held as {kinds}"
            ((shared, grain),) = kinds
            most = mine[0][1].unit.memory_mib // grain if grain else max(each.replicas[unit] for each, _ in mine)
            assert count <= (most if shared else 1), f"{unit}: {count} of {most}"
        wholes = [device for _, device in held if device.unit.id == device.unit.gpu]
        assert not wholes or len(units) == 1, f"{list(units)} of one GPU are held"


def _allocation(container: Container) -> Allocation:
    return Allocation(container.resource, tuple(device.id for device in container.devices), PodRef.parse("ml/pod/main"))


def _possible(resource: Resource, free: Sequence[OfferedDevice], size: int) -> bool:
    """Whether any choice of what is free is one that a container may have."""
    if resource.share_mib:
        return max(Counter(device.unit.id for device in free).values()) >= size
    return not resource.requires_distinct_gpus or len({device.unit.gpu for device in free}) >= size


SEQUENCES = 4


@pytest.mark.parametrize("part", range(SEQUENCES))
def test_shares_are_never_over_all_there_is_and_refused_only_where_they_cannot_be(part: int, seed: int) -> None:
    """The seed of a history that does not hold is in the message."""
    refused = 0
    for n in range(length(1_200, 100_000) // SEQUENCES):
        seed += n
        chance = random.Random(seed)
        world = World(chance, chance.choice(MACHINES))
        try:
            for _ in range(chance.randint(4, 14)):
                world.go_on()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        refused += world.refused
    assert refused  # else nothing was tried
