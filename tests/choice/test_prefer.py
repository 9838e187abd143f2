"""Which free devices are advised: the simple choice, and what holds for every question."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.core.choice.prefer import prefer
from gpuplane.core.resources.offer import offer
from gpuplane.core.step import step
from gpuplane.model.config import AllocationPolicy, Config, Replication, Settings, Sharing
from gpuplane.model.facts import Looked
from gpuplane.model.machine import Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.model.snapshot import Snapshot

GPU = "nvidia.com/gpu"


def node(numa: Iterable[int | None], lost: Iterable[int] = ()) -> Snapshot:
    """One GPU for each NUMA node in the list."""
    fault = (Fault(code="gpu-lost", message="gone"),)
    gpus = tuple(
        Gpu(index=i, uuid=f"GPU-{i}", model="T4", numa=each, faults=fault if i in lost else ())
        for i, each in enumerate(numa)
    )
    unseen = Snapshot(config=Config(settings=Settings()), allocations=())
    return step(unseen, Looked(Machine(gpus=gpus)), 0.0)


def advice(snapshot: Snapshot, free: Iterable[int], size: int, required: Iterable[int] = ()) -> list[int]:
    ids = prefer(snapshot, GPU, [f"GPU-{i}" for i in free], [f"GPU-{i}" for i in required], size)
    return [int(id.removeprefix("GPU-")) for id in ids]


EIGHT = (0, 0, 0, 0, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("numa", "free", "size", "required", "expected"),
    [
        (EIGHT, range(8), 2, (), [0, 1]),  # lowest index
        (EIGHT, reversed(range(8)), 4, (), [0, 1, 2, 3]),  # whatever the order of the question
        (EIGHT, (1, 2, 3, 6, 7), 2, (), [6, 7]),  # the node that it fits with nothing left over
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


def test_a_resource_that_is_not_offered_gets_no_advice() -> None:
    assert prefer(node(EIGHT), "nvidia.com/other", ["GPU-0"], [], 1) == ()
    assert prefer(Snapshot(), GPU, ["GPU-0"], [], 1) == ()


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
    same for the same question."""
    snapshot = node(numa, lost)
    got = advice(snapshot, free | required, size, required)
    there = set(range(len(numa)))
    fit = there - lost
    assert len(set(got)) == len(got) == min(max(size, 0), len((free & fit) | (required & there)))
    assert set(got) <= free | required
    assert set(got) >= required & there or set(got) <= required
    assert advice(snapshot, sorted(free | required, reverse=True), size, required) == got


def shared(gpus: int, replicas: int, policy: AllocationPolicy = "distributed") -> Snapshot:
    """GPUs that are offered in shares."""
    sharing = Sharing(resources=(Replication(name=GPU, replicas=replicas),))
    snapshot = node((0,) * gpus)
    return snapshot.but(config=Config(settings=Settings(sharing=sharing, sharing_policy=policy)))


def share_advice(snapshot: Snapshot, taken: Iterable[str], size: int, required: Iterable[str] = ()) -> list[str]:
    """Advice where all shares are free but those taken; "0::1" for the second of GPU-0."""
    ids = [device.id for device in offer(snapshot).resources[0].devices]
    free = [id for id in reversed(ids) if id.removeprefix("GPU-") not in set(taken)]
    return [id.removeprefix("GPU-") for id in prefer(snapshot, GPU, free, [f"GPU-{each}" for each in required], size)]


@pytest.mark.parametrize(
    ("gpus", "replicas", "taken", "size", "required", "expected"),
    [
        (2, 4, (), 2, (), ["0::0", "1::0"]),  # distinct GPUs first
        (3, 2, (), 3, (), ["0::0", "1::0", "2::0"]),
        (2, 4, (), 4, (), ["0::0", "1::0", "0::1", "1::1"]),  # then in turns
        (2, 4, ("0::0", "0::1", "1::0"), 1, (), ["1::1"]),  # the least used
        (2, 4, ("0::0", "0::1", "1::0"), 2, (), ["1::1", "0::2"]),
        (2, 2, ("0::0", "0::1"), 2, (), ["1::0", "1::1"]),  # what there is
        (2, 4, (), 2, ("0::3",), ["0::3", "1::0"]),  # the required one counts as a GPU that the request has
        (2, 2, (), 5, (), ["0::0", "1::0", "0::1", "1::1"]),
    ],
)
def test_shares(
    gpus: int, replicas: int, taken: Iterable[str], size: int, required: Iterable[str], expected: list[str]
) -> None:
    assert share_advice(shared(gpus, replicas), taken, size, required) == expected


@pytest.mark.parametrize(
    ("gpus", "replicas", "taken", "size", "expected"),
    [
        (2, 4, (), 2, ["0::0", "0::1"]),  # one GPU
        (3, 2, (), 3, ["0::0", "0::1", "1::0"]),  # filled up, and one more
        (2, 4, (), 5, ["0::0", "0::1", "0::2", "0::3", "1::0"]),
        (2, 4, ("1::0",), 2, ["1::1", "1::2"]),  # the most used first
        (2, 2, (), 5, ["0::0", "0::1", "1::0", "1::1"]),  # what there is
    ],
)
def test_packed_shares(gpus: int, replicas: int, taken: Iterable[str], size: int, expected: list[str]) -> None:
    """sharedDevicesAllocationPolicy: packed."""
    assert share_advice(shared(gpus, replicas, "packed"), taken, size) == expected


def test_mig_devices_are_spread_over_their_gpus() -> None:
    def gpu(index: int) -> Gpu:
        devices = tuple(MigDevice(uuid=f"MIG-{index}-{i}", profile="1g.5gb", gpu_instance=i, slot=i) for i in range(3))
        return Gpu(index=index, uuid=f"GPU-{index}", model="A100", mig=Mig(enabled=True, devices=devices))

    machine = Machine(gpus=(gpu(0), gpu(1)))
    settings = Settings(mig_strategy="mixed")
    snapshot = Snapshot(machine=machine, config=Config(settings=settings), allocations=())
    ids = ["MIG-1-2", "MIG-0-1", "MIG-0-2", "MIG-1-1", "MIG-1-0"]
    assert prefer(snapshot, "nvidia.com/mig-1g.5gb", ids, [], 3) == ("MIG-1-0", "MIG-0-1", "MIG-1-1")
