"""Which shares are advised: spread or packed, and of well-connected GPUs."""

from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.choice.linkscores import Policy
from gpuplane.node.core.choice.preference import machine_link_score_matrix, preferred_ids
from gpuplane.node.core.choice.tablecache import build_table
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Config, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import MachineObserved
from gpuplane.node.model.machine import Gpu, Link, Machine, Mig, MigDevice
from gpuplane.node.model.snapshot import Snapshot

GPU = "nvidia.com/gpu"


def shared(replicas: int, *gpus: Gpu) -> Snapshot:
    """GPUs that are offered in shares."""
    sharing = Sharing(replicated_resources=(ReplicatedResource(name=GPU, replicas=replicas),))
    unseen = Snapshot(config=Config(settings=Settings(sharing=sharing)), allocations=())
    snapshot = step(unseen, MachineObserved(Machine(gpus=gpus)), 0.0)
    build_table(machine_link_score_matrix(snapshot))
    return snapshot


def alike(count: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=i, uuid=f"GPU-{i}", model="T4", pci=f"0000:0{i}:00.0", numa=0) for i in range(count))


def bridged(count: int, *bridges: tuple[int, int]) -> tuple[Gpu, ...]:
    """GPUs alike but for NVLink bridges of two lanes."""
    gpus = alike(count)
    peers = {(one, other) for pair in bridges for one, other in (pair, pair[::-1])}
    return tuple(
        gpu.but(links=tuple(Link(gpus[peer].pci, 2) for one, peer in sorted(peers) if one == gpu.index)) for gpu in gpus
    )


def advice(
    snapshot: Snapshot, policy: Policy, size: int, taken: Iterable[str] = (), required: Iterable[str] = ()
) -> list[str]:
    """Advice where all shares are free but those taken; "0::1" for the second of GPU-0."""
    ids = [device.id for device in offer(snapshot).resources[0].devices]
    free = [id for id in reversed(ids) if id.removeprefix("GPU-") not in set(taken)]
    must = [f"GPU-{each}" for each in required]
    return [id.removeprefix("GPU-") for id in preferred_ids(snapshot, GPU, free, must, size, policy)]


def of(held: Mapping[int, int]) -> list[str]:
    """The first so many shares of each GPU."""
    return [f"{gpu}::{n}" for gpu, count in held.items() for n in range(count)]


@pytest.mark.parametrize(
    ("gpus", "replicas", "taken", "size", "required", "expected"),
    [
        (2, 4, {}, 2, (), ["0::0", "1::0"]),  # distinct GPUs first
        (3, 2, {}, 3, (), ["0::0", "1::0", "2::0"]),
        (2, 4, {}, 4, (), ["0::0", "1::0", "0::1", "1::1"]),  # then in turns
        (2, 4, {0: 2, 1: 1}, 1, (), ["1::1"]),  # the least used
        (2, 4, {0: 2, 1: 1}, 2, (), ["1::1", "0::2"]),
        (2, 2, {0: 2}, 2, (), ["1::0", "1::1"]),  # what there is
        (2, 4, {}, 2, ("0::3",), ["0::3", "1::0"]),  # the required one counts as a GPU that the request has
        (2, 2, {}, 5, (), ["0::0", "1::0", "0::1", "1::1"]),
        (4, 4, {0: 1, 1: 3}, 3, (), ["2::0", "3::0", "0::1"]),
    ],
)
def test_distributed(
    gpus: int, replicas: int, taken: Mapping[int, int], size: int, required: Iterable[str], expected: list[str]
) -> None:
    assert advice(shared(replicas, *alike(gpus)), "distributed", size, of(taken), required) == expected


@pytest.mark.parametrize(
    ("gpus", "replicas", "taken", "size", "required", "expected"),
    [
        (2, 4, {}, 2, (), ["0::0", "0::1"]),  # one GPU
        (3, 2, {}, 3, (), ["0::0", "0::1", "1::0"]),  # filled up, and one more
        (2, 4, {}, 5, (), ["0::0", "0::1", "0::2", "0::3", "1::0"]),
        (2, 4, {1: 1}, 2, (), ["1::1", "1::2"]),  # the most used first
        (2, 4, {1: 3}, 2, (), ["0::0", "0::1"]),  # but of as few GPUs as possible
        (3, 4, {0: 3, 1: 2}, 5, (), ["0::3", "2::0", "2::1", "2::2", "2::3"]),  # two do; with the most used of them
        (3, 4, {0: 3, 1: 2}, 6, (), ["1::2", "1::3", "2::0", "2::1", "2::2", "2::3"]),
        (2, 4, {1: 1}, 2, ("0::3",), ["0::3", "0::0"]),  # where the request has a share already
        (2, 4, {1: 1}, 4, ("0::0", "0::1"), ["0::0", "0::1", "0::2", "0::3"]),
        (2, 2, {}, 5, (), ["0::0", "0::1", "1::0", "1::1"]),  # what there is
    ],
)
def test_packed(
    gpus: int, replicas: int, taken: Mapping[int, int], size: int, required: Iterable[str], expected: list[str]
) -> None:
    assert advice(shared(replicas, *alike(gpus)), "packed", size, of(taken), required) == expected


@pytest.mark.parametrize(
    ("policy", "there", "size", "expected"),
    [
        ("distributed", {0: 4, 1: 4}, 2, {0: 1, 1: 1}),
        ("distributed", {0: 2, 1: 2, 2: 2}, 3, {0: 1, 1: 1, 2: 1}),
        ("distributed", {0: 4, 1: 4}, 4, {0: 2, 1: 2}),
        ("distributed", {0: 1, 1: 1}, 5, {0: 1, 1: 1}),  # theirs is an error, which rejects the pod
        ("distributed", {0: 2, 1: 1}, 2, {0: 1, 1: 1}),
        ("packed", {0: 4, 1: 4}, 2, {0: 2}),
        ("packed", {0: 2, 1: 2, 2: 2}, 3, {0: 2, 1: 1}),
        ("packed", {0: 4, 1: 4}, 4, {0: 4}),
        ("packed", {0: 4, 1: 4}, 5, {0: 4, 1: 1}),
    ],
)
def test_as_nvidias_plugin_spreads_and_packs(
    policy: Policy, there: Mapping[int, int], size: int, expected: Mapping[int, int]
) -> None:
    """The scenarios of its internal/rm/allocate_test.go: so many ids of each GPU are available, so many are wanted."""
    replicas = max(2, *there.values())
    held = {gpu: replicas - count for gpu, count in there.items()}
    got = advice(shared(replicas, *alike(len(there))), policy, size, of(held))

    assert {gpu: sum(id.startswith(f"{gpu}::") for id in got) for gpu in expected} == expected
    assert len(got) == sum(expected.values())


FOUR = bridged(4, (0, 3), (1, 2))


@pytest.mark.parametrize(
    ("policy", "taken", "size", "required", "expected"),
    [
        ("distributed", {}, 2, (), ["0::0", "3::0"]),  # a bridged pair
        ("distributed", {0: 1}, 2, (), ["1::0", "2::0"]),  # of the least used
        ("distributed", {0: 2, 1: 1}, 2, (), ["2::0", "3::0"]),  # that they are comes first
        ("distributed", {}, 2, ("2::0",), ["2::0", "1::0"]),  # beside what the request has
        ("distributed", {}, 6, (), ["0::0", "1::0", "2::0", "3::0", "0::1", "1::1"]),
        ("topology", {0: 2, 1: 1}, 2, (), ["2::0", "1::1"]),  # of bridged pairs the less used
        ("topology", {0: 1, 2: 2}, 2, (), ["3::0", "0::1"]),
        ("topology", {0: 4}, 1, (), ["1::0"]),  # a single share goes where it is quiet
        ("topology", {0: 1, 1: 1, 2: 2}, 1, (), ["3::0"]),
        ("packed", {}, 8, (), ["0::0", "0::1", "0::2", "0::3", "3::0", "3::1", "3::2", "3::3"]),
        ("packed", {}, 5, ("1::0",), ["1::0", "1::1", "1::2", "1::3", "2::0"]),
    ],
)
def test_where_a_policy_leaves_a_choice_gpus_that_lie_well_are_taken(
    policy: Policy, taken: Mapping[int, int], size: int, required: Iterable[str], expected: list[str]
) -> None:
    """Two bridged pairs: 0 with 3, and 1 with 2."""
    assert advice(shared(4, *FOUR), policy, size, of(taken), required) == expected


def test_numa_takes_the_gpus_of_one_node_whatever_their_links() -> None:
    gpus = tuple(gpu.but(numa=gpu.index // 2) for gpu in FOUR)
    sizes = {policy: advice(shared(4, *gpus), policy, 2) for policy in ("topology", "numa")}

    assert sizes == {"topology": ["0::0", "3::0"], "numa": ["0::0", "1::0"]}


@given(
    st.sampled_from(["distributed", "packed", "topology", "numa"]),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
    st.integers(1, 14),
)
def test_every_policy_keeps_its_word(policy: Policy, held: list[int], size: int) -> None:
    """As many ids as there are up to the size, each once and free; of as many GPUs as can be, or of as few."""
    got = advice(shared(4, *alike(len(held))), policy, size, of(dict(enumerate(held))))
    frees = sorted((4 - count for count in held), reverse=True)
    few = next((n for n in range(len(frees) + 1) if sum(frees[:n]) >= size), len(frees))
    counts = [sum(id.startswith(f"{gpu}::") for id in got) for gpu in range(len(held))]

    assert len(set(got)) == len(got) == sum(counts) == min(size, sum(frees))
    assert all(count <= 4 - used for count, used in zip(counts, held, strict=True))
    if policy == "packed":
        assert sum(map(bool, counts)) == min(few, sum(map(bool, frees)))
    else:
        assert sum(map(bool, counts)) == min(size, sum(map(bool, frees)))
        assert all(a >= b - 1 or a == 4 - used for a, used in zip(counts, held, strict=True) for b in counts)


def test_mig_devices_are_spread_over_their_gpus() -> None:
    def gpu(index: int) -> Gpu:
        devices = tuple(
            MigDevice(uuid=f"MIG-{index}-{i}", profile="1g.5gb", gpu_instance=i, mig_index=i) for i in range(3)
        )
        return Gpu(index=index, uuid=f"GPU-{index}", model="A100", mig=Mig(enabled=True, devices=devices))

    machine = Machine(gpus=(gpu(0), gpu(1)))
    settings = Settings(mig_strategy="mixed")
    snapshot = Snapshot(machine=machine, config=Config(settings=settings), allocations=())
    ids = ["MIG-1-2", "MIG-0-1", "MIG-0-2", "MIG-1-1", "MIG-1-0"]
    assert preferred_ids(snapshot, "nvidia.com/mig-1g.5gb", ids, [], 3) == ("MIG-1-0", "MIG-0-1", "MIG-1-1")
