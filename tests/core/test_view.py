"""What is derived is derived once, and what has not changed is the same object."""

from gpuplane.core.advertising import known, offer
from gpuplane.core.reports.news import news
from gpuplane.core.step import step
from gpuplane.core.view import view
from gpuplane.model.config import Config, Settings
from gpuplane.model.facts import AllocateAnswered, MachineObserved, StatusChanged
from gpuplane.model.machine import Fault, Gpu, Machine
from gpuplane.model.snapshot import Allocation, Snapshot
from gpuplane.model.status import Status, plugin_of

GPU = "nvidia.com/gpu"


def node(*gpus: Gpu, held: tuple[Allocation, ...] = ()) -> Snapshot:
    return step(
        Snapshot(config=Config(settings=Settings()), allocations=held), MachineObserved(Machine(gpus=gpus)), 0.0
    )


GPUS = (Gpu(index=0, uuid="GPU-a", model="T4"), Gpu(index=1, uuid="GPU-b", model="T4"))


def test_a_view_asked_again_derives_nothing() -> None:
    asked = []

    @view
    def double(number: int) -> int:
        asked.append(number)
        return number * 2

    assert [double(1), double(1), double(2), double(1)] == [2, 2, 4, 2]
    assert asked == [1, 2, 1]


def test_an_equal_answer_to_another_question_is_the_same_object() -> None:
    @view
    def parity(number: int) -> list[int]:
        return [number % 2]

    first = parity(1)
    assert parity(3) is first
    assert parity(2) is not first


def test_a_grant_that_withholds_nothing_leaves_the_offer_as_it_is() -> None:
    before = node(*GPUS)
    first = offer(before)
    after = step(before, AllocateAnswered(GPU, ("GPU-a",)), 1.0)
    assert after is not before
    assert offer(after) is first
    assert known(offer(after)) is known(first)
    assert list(news(before, after)) == []


def test_a_condition_leaves_the_offer_as_it_is() -> None:
    before = node(*GPUS)
    first = offer(before)
    after = step(before, StatusChanged(plugin_of("x"), Status(state="ok")), 1.0)
    assert offer(after) is first
    assert [each.about for each in news(before, after)] == ["plugin/x"]


def test_devices_without_trouble_stay_the_same_objects() -> None:
    """So that comparing two lists of a thousand devices compares the few that changed."""
    before = offer(node(*GPUS)).resources[0].devices
    faulty = GPUS[1].but(faults=(Fault(code="gpu-lost", message="fell off the bus"),))
    after = offer(node(GPUS[0], faulty)).resources[0].devices
    assert after[0] == before[0]
    assert [each.code for each in after[1].reasons] == ["gpu-lost"]


def test_the_same_ids_granted_twice_are_one_grant() -> None:
    """Kubelet asks again for a container that starts after an init container with the same devices."""
    snapshot = node(*GPUS)
    for now in (1.0, 2.0):
        snapshot = step(snapshot, AllocateAnswered(GPU, ("GPU-a",)), now)
    assert snapshot.allocations == (Allocation(resource=GPU, devices=("GPU-a",), granted_at=2.0),)
