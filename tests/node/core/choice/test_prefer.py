"""Which free devices are advised, and what holds for every request."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.choice.preference import machine_link_score_matrix, preferred_ids
from gpuplane.node.core.choice.tablecache import build_table
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot

GPU = "nvidia.com/gpu"


def node(numa: Iterable[int | None], lost: Iterable[int] = ()) -> Snapshot:
    """One GPU for each NUMA node in the list."""
    fault = (Fault(code="gpu-lost", message="gone"),)
    gpus = tuple(
        Gpu(index=i, uuid=f"GPU-{i}", model="T4", numa=each, faults=fault if i in lost else ())
        for i, each in enumerate(numa)
    )
    unseen = Snapshot(config=Config(settings=Settings()), allocations=())
    return step(unseen, MachineObserved(Machine(gpus=gpus)), 0.0)


def advice(snapshot: Snapshot, free: Iterable[int], size: int, required: Iterable[int] = ()) -> list[int]:
    build_table(machine_link_score_matrix(snapshot))
    ids = preferred_ids(snapshot, GPU, [f"GPU-{i}" for i in free], [f"GPU-{i}" for i in required], size)
    return [int(id.removeprefix("GPU-")) for id in ids]


EIGHT = (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("numa", "free", "size", "required", "expected"),
    [
        (EIGHT, range(8), 2, (), [0, 1]),  # lowest index
        (EIGHT, reversed(range(8)), 4, (), [0, 1, 2, 3]),  # whatever the order of the request
        (EIGHT, (1, 2, 3, 6, 7), 2, (), [1, 2]),  # either leaves a pair on one node
        (EIGHT, (0, 1, 2, 3, 6, 7), 2, (), [6, 7]),  # the only one that leaves four on one node
        (EIGHT, range(1, 8), 1, (), [1]),  # a single one breaks up no node that is whole
        (EIGHT, (0, 4, 5, 6), 3, (), [4, 5, 6]),  # one node that fits
        (EIGHT, (0, 1, 4, 5, 6), 4, (), [0, 4, 5, 6]),  # none fits: as few nodes as possible, the fullest first
        (EIGHT, range(8), 2, (5,), [5, 4]),  # near what the request has already
        (EIGHT, range(8), 1, (5,), [5]),
        (EIGHT, range(8), 1, (5, 2), [2]),  # more required than asked for
        ((None,) * 4, range(4), 2, (), [0, 1]),  # no NUMA nodes known
        (EIGHT, (3,), 2, (), [3]),  # fewer than asked for
        (EIGHT, (), 2, (), []),
        (EIGHT, range(8), 0, (), []),
        (EIGHT, range(8), -1, (), []),
        (EIGHT, (0, 99), 2, (98,), [0]),  # unknown ids
    ],
)
def test_whole_gpus(
    numa: tuple[int | None, ...], free: Iterable[int], size: int, required: Iterable[int], expected: list[int]
) -> None:
    assert advice(node(numa), free, size, required) == expected


def test_a_device_that_has_just_come_into_trouble_is_not_advised() -> None:
    assert advice(node(EIGHT, lost=(0, 1)), range(8), 2) == [2, 3]


def test_a_degraded_device_comes_last_of_those_that_are_as_good() -> None:
    """It is served; but not for its position."""
    snapshot = node(EIGHT)
    worn = Fault(code="remap-pending", message="a row waits")
    assert snapshot.machine is not None
    first, *others = snapshot.machine.gpus or ()
    snapshot = step(snapshot, MachineObserved(Machine(gpus=(first.but(faults=(worn,)), *others))), 1.0)
    assert offer(snapshot).resources[0].devices[0].unavailable_reason == ""
    assert advice(snapshot, range(8), 1) == [1]
    assert advice(snapshot, range(8), 4) == [4, 5, 6, 7]
    assert advice(snapshot, range(5), 4) == [0, 1, 2, 3]  # that they lie well comes first


def test_a_resource_that_is_not_offered_gets_no_advice() -> None:
    assert preferred_ids(node(EIGHT), "nvidia.com/other", ["GPU-0"], [], 1) == ()
    assert preferred_ids(Snapshot(), GPU, ["GPU-0"], [], 1) == ()


@given(
    st.lists(st.sampled_from([None, 0, 1, 2]), max_size=8),
    st.sets(st.integers(0, 9)),
    st.sets(st.integers(0, 9)),
    st.integers(-2, 12),
    st.sets(st.integers(0, 9)),
)
def test_for_every_question(
    numa: list[int | None], free: set[int], required: set[int], size: int, lost: set[int]
) -> None:
    """The answer has no id twice, none that was not asked about, as many as there are up to the size, and it is the
    same for the same request."""
    snapshot = node(numa, lost)
    got = advice(snapshot, free | required, size, required)
    there = set(range(len(numa)))
    fit = there - lost
    assert len(set(got)) == len(got) == min(max(size, 0), len((free & fit) | (required & there)))
    assert set(got) <= free | required
    assert set(got) >= required & there or set(got) <= required
    assert advice(snapshot, sorted(free | required, reverse=True), size, required) == got
