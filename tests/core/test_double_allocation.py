"""A live change of names or shares never gives out what a container holds, however all that happens interleaves.

The world of this test is a kubelet that counts use per resource name and id, shows a container some time after it was
granted (but within SETTLING), and answers a list with what it shows at a moment between question and answer.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuplane.core.containers.allocate import allocate
from gpuplane.core.resources.offer import offer
from gpuplane.core.resources.sharing import base
from gpuplane.core.step import SETTLING, step
from gpuplane.model.config import MemoryShares, Naming, Replication, Settings, Sharing
from gpuplane.model.facts import Configured, Fact, Granted, Listed, Looked
from gpuplane.model.machine import Gpu, Machine
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.value import Value

NAMES = ("nvidia.com/gpu", "nvidia.com/fast")
SIZE = 2048
GPUS = tuple(Gpu(index=i, uuid=f"GPU-{i}", model=("T4", "L40S")[i % 2], memory_mib=SIZE) for i in range(2))
CONFIGURATIONS = (
    *(Settings(gpus=(Naming(pattern="T4", name=a), Naming(pattern="*", name=b))) for a in NAMES for b in NAMES),
    *(Settings(sharing=Sharing(memory=(MemoryShares(NAMES[0], NAMES[1], grain),))) for grain in (512, 1024)),
    Settings(sharing=Sharing((Replication(NAMES[0], 2, NAMES[1]),))),
)


class Container(Value):
    """A container that runs, and from when on kubelet shows it."""

    number: int
    resource: str
    id: str
    shown: float
    part: float  # of its GPU: 1 for a whole one and 0 for a time slice


class Node(RuleBasedStateMachine):
    """Rules are what may happen; the invariant is that of no GPU more is held than there is."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshot, self.now, self.count = Snapshot(), 1000.0, 0
        self.containers: list[Container] = []
        self.asked: float | None = None
        self.answer: tuple[Allocation, ...] | None = None

    def tell(self, fact: Fact) -> None:
        self.snapshot = step(self.snapshot, fact, self.now)

    @initialize()
    def start(self) -> None:
        for fact in (Looked(Machine(gpus=GPUS)), Configured(CONFIGURATIONS[0]), Listed((), self.now)):
            self.tell(fact)

    @rule(seconds=st.sampled_from([1.0, SETTLING / 2, 2 * SETTLING]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(settings=st.sampled_from(CONFIGURATIONS))
    def the_configuration_changes(self, settings: Settings) -> None:
        self.tell(Configured(settings))

    @rule(lag=st.floats(0, SETTLING - 0.1))
    def kubelet_admits_what_it_can(self, lag: float) -> None:
        """Kubelet believes free what is healthy and not used under the same name."""
        used = {(each.resource, each.id) for each in self.containers}
        for resource in offer(self.snapshot).resources:
            for device in resource.devices:
                if not device.trouble and (resource.name, device.id) not in used:
                    allocate(self.snapshot, resource.name, (device.id,))
                    self.tell(Granted(resource.name, (device.id,)))
                    self.count += 1
                    part = resource.grain_mib / SIZE if resource.grain_mib else float(device.id == device.unit.id)
                    container = Container(self.count, resource.name, device.id, self.now + lag, part)
                    self.containers.append(container)
                    return

    @precondition(lambda self: self.containers)
    @rule(which=st.integers(0, 9))
    def a_container_ends(self, which: int) -> None:
        self.containers.pop(which % len(self.containers))

    @precondition(lambda self: self.asked is None)
    @rule()
    def kubelet_is_asked(self) -> None:
        self.asked, self.answer = self.now, None

    @precondition(lambda self: self.asked is not None and self.answer is None)
    @rule()
    def kubelet_puts_its_answer_together(self) -> None:
        self.answer = tuple(
            Allocation(resource=each.resource, devices=(each.id,), pod=f"ml/{each.number}", container="main")
            for each in self.containers
            if each.shown <= self.now
        )

    @precondition(lambda self: self.answer is not None)
    @rule()
    def the_answer_comes(self) -> None:
        assert self.asked is not None
        assert self.answer is not None
        self.tell(Listed(self.answer, self.asked))
        self.asked = self.answer = None

    @invariant()
    def no_gpu_is_given_twice(self) -> None:
        held = [(each.resource, each.id) for each in self.containers]
        assert len(held) == len(set(held)), self.containers
        for gpu in GPUS:
            parts = [each.part for each in self.containers if base(each.id) == gpu.uuid]
            assert sum(parts) <= 1, self.containers
            assert all(parts) or not any(parts), self.containers  # time slices have theirs to themselves


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
