"""What is derived is derived once, and what has not changed is the same object."""

import gc
import weakref
from collections import Counter

import msgspec
import pytest

from gpuplane.node.core.advertising import offer, offered_devices_by_id
from gpuplane.node.core.inventory.resources import list_resources
from gpuplane.node.core.reports.news import news
from gpuplane.node.core.step import step
from gpuplane.node.core.view import part_view, view
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.facts import AllocateAnswered, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import Status, plugin_part

GPU = "nvidia.com/gpu"


def node(*gpus: Gpu, held: tuple[Allocation, ...] = ()) -> Snapshot:
    return step(
        Snapshot(config=Config(settings=Settings()), allocations=held), MachineObserved(Machine(gpus=gpus)), 0.0
    )


GPUS = (Gpu(index=0, uuid="GPU-a", model="T4"), Gpu(index=1, uuid="GPU-b", model="T4"))


def test_a_view_asked_again_derives_nothing() -> None:
    asked, one = [], Snapshot()

    @part_view
    def double(number: int) -> int:
        asked.append(number)
        return number * 2

    assert [double.of(one, number) for number in (1, 1, 2, 1)] == [2, 2, 4, 2]
    assert asked == [1, 2, 1]


def test_an_equal_answer_to_another_question_is_the_same_object() -> None:
    @part_view
    def parity(number: int) -> list[int]:
        return [number % 2]

    one = Snapshot()
    first = parity.of(one, 1)
    assert parity.of(one.but(generation=1), 3) is first
    assert parity.of(one, 2) is not first


def test_each_of_ten_thousand_nodes_has_a_memory_of_its_own() -> None:
    """A view that is asked about one node after the other, and again, derives each answer once."""
    derived = Counter[int]()

    @view
    def machine_of(snapshot: Snapshot) -> tuple[Machine | None]:
        derived[snapshot.generation] += 1
        return (snapshot.machine,)

    @part_view
    def count_gpus(machine: Machine | None) -> list[int]:
        return [len(machine.gpus or ()) if machine else 0]

    nodes = [Snapshot(generation=n, machine=Machine(gpus=GPUS)) for n in range(10_000)]
    first = [(machine_of(each), count_gpus.of(each, each.machine)) for each in nodes]
    again = [(machine_of(each), count_gpus.of(each, each.machine)) for each in nodes]

    assert set(derived.values()) == {1}
    assert len(derived) == len(nodes)
    assert all(a is b and c is d for (a, c), (b, d) in zip(first, again, strict=True))


def test_the_views_of_the_agent_derive_each_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offer rests on views of parts: none of them is derived anew because another node was asked about."""
    nodes, derived = [node(*GPUS) for _ in range(10)], list[str]()
    answers = [offer(each) for each in nodes]
    monkeypatch.setattr(list_resources, "derive", lambda *parts: derived.append("resources"))
    assert all(offer(each) is answer for each, answer in zip(nodes, answers, strict=True))
    for each in nodes:
        offer(step(each, AllocateAnswered(GPU, ("GPU-a",)), 1.0))

    assert derived == []


def test_the_memory_of_a_node_goes_with_its_last_snapshot() -> None:
    class Answer:
        pass

    @view
    def answer(snapshot: Snapshot) -> tuple[Answer, Snapshot]:
        return Answer(), snapshot.but(generation=7)

    before = node(*GPUS)
    after = step(before, AllocateAnswered(GPU, ("GPU-a",)), 1.0)
    offer(after)
    known_answer = weakref.ref(answer(after)[0])
    del before
    gc.collect()
    assert known_answer() is not None
    del after
    gc.collect()
    assert known_answer() is None


def test_a_memory_is_no_part_of_its_snapshot() -> None:
    before, other = node(*GPUS), node(*GPUS)
    offer(before)
    assert before == other
    assert msgspec.json.encode(before) == msgspec.json.encode(other)


def test_a_grant_that_withholds_nothing_leaves_the_offer_as_it_is() -> None:
    before = node(*GPUS)
    first = offer(before)
    after = step(before, AllocateAnswered(GPU, ("GPU-a",)), 1.0)
    assert after is not before
    assert offer(after) is first
    assert offered_devices_by_id.of(after, offer(after)) is offered_devices_by_id.of(before, first)
    assert list(news(before, after)) == []


def test_a_condition_leaves_the_offer_as_it_is() -> None:
    before = node(*GPUS)
    first = offer(before)
    after = step(before, StatusChanged(plugin_part("x"), Status(state="ok")), 1.0)
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
