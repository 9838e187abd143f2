"""Shares that must be of one device (memory), and shares that must be of different GPUs."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.choice.preference import preferred_ids
from gpuplane.node.core.step import step
from gpuplane.node.model.config import (
    AllocationPolicy,
    Config,
    MemorySharedResource,
    ReplicatedResource,
    Settings,
    Sharing,
)
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Snapshot

GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.mem"


def node(sharing: Sharing, *gpus: Gpu, policy: AllocationPolicy = "distributed") -> Snapshot:
    """A node that shares so."""
    settings = Settings(sharing=sharing, mig_strategy="single", sharing_policy=policy)
    return step(Snapshot(config=Config(settings=settings), allocations=()), MachineObserved(Machine(gpus=gpus)), 0.0)


def memory(*gib: int) -> Snapshot:
    """GPUs with so much memory each, counted in GiB."""
    gpus = (Gpu(index=i, uuid=f"GPU-{i}", memory_mib=1024 * each) for i, each in enumerate(gib))
    return node(Sharing(memory_resources=(MemorySharedResource(GPU, MEMORY, 1024),)), *gpus)


def distinct(replicas: int, count: int, policy: AllocationPolicy = "distributed") -> Snapshot:
    """GPUs of which a container's shares are all different."""
    gpus = (Gpu(index=i, uuid=f"GPU-{i}") for i in range(count))
    return node(
        Sharing(replicated_resources=(ReplicatedResource(GPU, replicas, distinct_gpus=True),)), *gpus, policy=policy
    )


def advice(
    snapshot: Snapshot, name: str, taken: Collection[str], size: int, required: Collection[str] = ()
) -> list[str]:
    """Unit of each id that is advised, where all are free but those taken."""
    ids = [device.id for each in offer(snapshot).resources for device in each.devices]
    free = [id for id in ids if id not in taken]
    return [id.partition("::")[0] for id in preferred_ids(snapshot, name, free, required, size)]


def some(gpu: int, count: int) -> list[str]:
    """The first shares of a GPU."""
    return [f"GPU-{gpu}::{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("gib", "taken", "size", "required", "gpu"),
    [
        ((16, 16), [], 4, (), 0),  # the first of those alike
        ((24, 16), [], 4, (), 1),  # where the least is left over
        ((16, 16), some(1, 8), 8, (), 1),  # filled to the last
        ((16, 16), some(1, 8), 9, (), 0),  # where it fits at all
        ((16, 16), [], 4, ("GPU-1::7",), 1),  # beside what the request has
        ((16, 80), [*some(0, 2), *some(1, 70)], 10, (), 1),
    ],
)
def test_memory_is_packed_onto_one_gpu(
    gib: tuple[int, ...], taken: list[str], size: int, required: Collection[str], gpu: int
) -> None:
    """Where it fits best."""
    assert advice(memory(*gib), MEMORY, taken, size, required) == [f"GPU-{gpu}"] * size


@pytest.mark.parametrize(("taken", "required"), [([], ()), (some(1, 16), ("GPU-0::0",))])
def test_what_fits_on_no_gpu_gets_no_advice(taken: list[str], required: Collection[str]) -> None:
    """Beyond what is required: Allocate will say why."""
    assert advice(memory(16, 16), MEMORY, taken, 17, required) == ["GPU-0"] * len(required)


def test_memory_of_mig_devices_is_of_one_of_them() -> None:
    """Though two of them are on one GPU."""
    parts = tuple(
        MigDevice(uuid=f"MIG-{n}", profile="1g", gpu_instance=n, mig_index=n, memory_mib=4096) for n in range(2)
    )
    snapshot = node(
        Sharing(memory_resources=(MemorySharedResource(GPU, MEMORY, 1024),)),
        Gpu(index=0, uuid="GPU-0", memory_mib=8192, mig=Mig(enabled=True, devices=parts)),
    )

    assert advice(snapshot, MEMORY, ["MIG-1::0"], 3) == ["MIG-1"] * 3
    assert advice(snapshot, MEMORY, ["MIG-1::0"], 4) == ["MIG-0"] * 4
    assert advice(snapshot, MEMORY, [], 5) == []


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 10),
    st.data(),
)
def test_memory_that_fits_somewhere_is_advised_where_the_least_is_left(
    gib: list[int], size: int, data: st.DataObject
) -> None:
    """For every request: all of one GPU, and no other GPU that fits would have less left."""
    snapshot = memory(*gib)
    used = [data.draw(st.integers(0, each)) for each in gib]
    taken = [id for gpu, count in enumerate(used) for id in some(gpu, count)]
    room = [each - gone for each, gone in zip(gib, used, strict=True)]

    advised = advice(snapshot, MEMORY, taken, size)
    fitting = [each for each in room if each >= size]
    assert len(set(advised)) == bool(fitting)
    assert not fitting or room[int(advised[0].removeprefix("GPU-"))] == min(fitting)


@pytest.mark.parametrize("policy", ["distributed", "packed", "topology", "numa"])
@pytest.mark.parametrize("required", [(), ("GPU-2::1",)])
def test_distinct_shares_are_of_as_many_gpus(policy: AllocationPolicy, required: Collection[str]) -> None:
    """Under every policy, and with what the request has already."""
    for size in range(1, 5):
        advised = advice(distinct(4, 4, policy), GPU, some(0, 3), size, required)
        assert len(set(advised)) == len(advised) == size


def test_packed_distinct_shares_are_of_the_most_used_gpus() -> None:
    """The policy decides which GPUs, not how many of one."""
    assert set(advice(distinct(4, 4, "packed"), GPU, [*some(1, 2), *some(3, 1)], 2)) == {"GPU-1", "GPU-3"}
    assert set(advice(distinct(4, 4), GPU, [*some(1, 2), *some(3, 1)], 2)) == {"GPU-0", "GPU-2"}


def test_where_too_few_gpus_have_a_share_the_advice_is_short() -> None:
    """Kubelet fills up, and Allocate refuses with the reason."""
    assert sorted(advice(distinct(2, 3), GPU, some(0, 2), 3)) == ["GPU-1", "GPU-2"]
