"""Sharing, as tables: which devices become how many ids of which resource, and which are left for what reason."""

from typing import Any

import pytest

from gpuplane.node.core.inventory.resources import describe_unsupported_sharing, list_resources
from gpuplane.node.model.config import (
    MemorySharedResource,
    MemoryUnit,
    NamingRule,
    ReplicatedResource,
    Settings,
    Sharing,
)
from gpuplane.node.model.machine import Gpu, Machine, Mig, MigDevice
from tests.golden import Golden
from tests.texts import as_shown

UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
MIG = Mig(
    enabled=True,
    devices=tuple(MigDevice(uuid=f"MIG-{n}", profile="1g.10gb", gpu_instance=n, mig_index=n) for n in range(2)),
)
MACHINE = Machine(
    gpus=(
        Gpu(index=0, uuid="GPU-a", model="A100"),
        Gpu(index=1, uuid="GPU-b", model="A100"),
        Gpu(index=2, uuid=UUID, model="T4"),
        Gpu(index=3, uuid="GPU-m", model="A100", mig=MIG),
    )
)


def share(*entries: ReplicatedResource, **settings: Any) -> dict[str, str]:
    """Resource without its prefix → its ids in one line, on a machine with three whole GPUs and two MIG devices."""
    fields = {"mig_strategy": "mixed", "sharing": Sharing(replicated_resources=entries), **settings}
    resources, left = list_resources(MACHINE, Settings(**fields))
    assert left == ()
    return {each.name.removeprefix("nvidia.com/"): " ".join(device.id for device in each.devices) for each in resources}


def entry(name: str, replicas: int, rename: str = "", devices: Any = None, model: str = "") -> ReplicatedResource:
    """An entry with names in short."""
    return ReplicatedResource(f"nvidia.com/{name}", replicas, rename and f"nvidia.com/{rename}", devices, model)


SMALL = {"mig-1g.10gb": "MIG-0 MIG-1"}


@pytest.mark.parametrize(
    ("entries", "resources"),
    [
        ([], {"gpu": f"GPU-a GPU-b {UUID}", **SMALL}),
        (
            [entry("gpu", 2)],
            {"gpu": f"GPU-a::0 GPU-a::1 GPU-b::0 GPU-b::1 {UUID}::0 {UUID}::1", **SMALL},
        ),
        ([entry("gpu", 1)], {"gpu": f"GPU-a GPU-b {UUID}", **SMALL}),
        ([entry("gpu", 1, "one")], {"one": f"GPU-a GPU-b {UUID}", **SMALL}),
        (
            [entry("gpu", 2, "gpu.shared", ("1",))],
            {"gpu": f"GPU-a {UUID}", "gpu.shared": "GPU-b::0 GPU-b::1", **SMALL},
        ),
        ([entry("gpu", 2, "x", 2)], {"x": "GPU-a::0 GPU-a::1 GPU-b::0 GPU-b::1", "gpu": UUID, **SMALL}),
        ([entry("gpu", 2, "x", (UUID, "0"))], {"x": f"GPU-a::0 GPU-a::1 {UUID}::0 {UUID}::1", "gpu": "GPU-b", **SMALL}),
        # the first entry that selects a device has it, and a count counts those that are left
        (
            [entry("gpu", 3, "x", ("0",)), entry("gpu", 2, "y", 1), entry("gpu", 1, "z")],
            {"x": "GPU-a::0 GPU-a::1 GPU-a::2", "y": "GPU-b::0 GPU-b::1", "z": UUID, **SMALL},
        ),
        # MIG devices, by profile's name, index pair and UUID
        (
            [entry("mig-1g.10gb", 2, "s", ("3:1",)), entry("mig-1g.10gb", 3, "t", ("MIG-0",))],
            {"gpu": f"GPU-a GPU-b {UUID}", "t": "MIG-0::0 MIG-0::1 MIG-0::2", "s": "MIG-1::0 MIG-1::1"},
        ),
        # what is not there today costs the others nothing
        (
            [entry("mig-9g.9gb", 2), entry("gpu", 2, "x", ("0", "17", "GPU-z", "3:0")), entry("gpu", 2, "y", 99)],
            {"x": "GPU-a::0 GPU-a::1", "y": f"GPU-b::0 GPU-b::1 {UUID}::0 {UUID}::1", **SMALL},
        ),
        # two kinds may go by one name
        (
            [entry("gpu", 2, "slice", ("0",)), entry("mig-1g.10gb", 1, "slice")],
            {"slice": "GPU-a::0 GPU-a::1 MIG-0 MIG-1", "gpu": f"GPU-b {UUID}"},
        ),
        # of one model
        (
            [entry("gpu", 2, "x", model="T4"), entry("gpu", 1, "y", 1, "A*"), entry("mig-1g.10gb", 2, model="T4")],
            {"y": "GPU-a", "gpu": "GPU-b", "x": f"{UUID}::0 {UUID}::1", **SMALL},
        ),
        # a shared name is not shared again
        ([entry("gpu", 2, "mig-1g.10gb", 1), entry("mig-1g.10gb", 1, "y")], None),
    ],
)
def test_entries_share_out_the_devices_of_a_resource(
    entries: list[ReplicatedResource], resources: dict[str, str] | None
) -> None:
    """Ids are the unit's with ::n after it, in the order of the units; what no entry selects stays as it was."""
    expected = resources or {"mig-1g.10gb": "GPU-a::0 GPU-a::1", "gpu": f"GPU-b {UUID}", "y": "MIG-0 MIG-1"}

    assert share(*entries) == expected


def test_names_by_pattern_are_shared_by_those_names() -> None:
    """Sharing comes after naming."""
    gpus = (NamingRule("A100", "nvidia.com/a100"),)

    assert share(entry("a100", 2), gpus=gpus) == {
        "a100": "GPU-a::0 GPU-a::1 GPU-b::0 GPU-b::1",
        "gpu": UUID,
        **SMALL,
    }


@pytest.mark.parametrize(
    ("replicas", "fail", "shared", "one_share_only"),
    [(1, True, False, False), (2, False, True, False), (2, True, True, True)],
)
def test_requests_for_more_than_one_share_may_be_refused(
    replicas: int, fail: bool, shared: bool, one_share_only: bool
) -> None:
    """failRequestsGreaterThanOne is about resources that are shared; others are asked for by any number."""
    sharing = Sharing(replicated_resources=(entry("gpu", replicas),), fail_requests_greater_than_one=fail)
    gpus, mig = list_resources(MACHINE, Settings(mig_strategy="mixed", sharing=sharing))[0]

    assert (gpus.shared, gpus.one_share_only) == (shared, one_share_only)
    assert (mig.shared, mig.one_share_only) == (False, False)


GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/gpu.mem"


def sized(*mib: int) -> Machine:
    """GPUs with so much memory each."""
    return Machine(gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}", model="L4", memory_mib=each) for i, each in enumerate(mib)))


def by_memory(grain: int, unit: MemoryUnit = "GiB", **selected: Any) -> Settings:
    """Memory of nvidia.com/gpu in grains of so many MiB."""
    return Settings(
        sharing=Sharing(memory_resources=(MemorySharedResource(GPU, MEMORY, grain, **selected),), memory_unit=unit)
    )


@pytest.mark.parametrize(
    ("memories", "grain", "counts"),
    [
        ((4096, 2048), 1024, {"GPU-0": 4, "GPU-1": 2}),
        ((4100, 2047), 1024, {"GPU-0": 4, "GPU-1": 1}),  # what makes no whole grain is not offered
        ((1024,), 1024, {"GPU-0": 1}),  # one share is a share
        ((4096, 4096), 3000, {"GPU-0": 1, "GPU-1": 1}),
    ],
)
def test_each_grain_of_memory_is_an_id(memories: tuple[int, ...], grain: int, counts: dict[str, int]) -> None:
    """Numbered as replicas are."""
    (resource,), left = list_resources(sized(*memories), by_memory(grain))

    assert left == ()
    assert (resource.name, resource.shared, resource.share_mib, resource.uses_mps) == (MEMORY, True, grain, False)
    assert [device.id for device in resource.devices] == [
        f"{id}::{n}" for id, count in counts.items() for n in range(count)
    ]


def test_memory_is_shared_of_what_is_left_by_other_entries() -> None:
    """By count, index and model; the memory of a MIG device is its own."""
    parts = MIG.but(devices=tuple(device.but(memory_mib=2048 + device.mig_index) for device in MIG.devices))
    machine = sized(4096, 4096, 4096).but()
    machine = machine.but(gpus=(*(machine.gpus or ()), Gpu(index=3, uuid="GPU-m", memory_mib=9999, mig=parts)))
    sharing = Sharing(
        replicated_resources=(entry("gpu", 2, "slice", ("0",)),),
        memory_resources=(
            MemorySharedResource(GPU, MEMORY, 2048, 1, "L4"),
            MemorySharedResource(GPU, "nvidia.com/other", 4096, model="H100"),
            MemorySharedResource("nvidia.com/mig-1g.10gb", "nvidia.com/part", 1024),
        ),
    )
    resources, _ = list_resources(machine, Settings(mig_strategy="mixed", sharing=sharing))

    assert {each.name: " ".join(device.id for device in each.devices) for each in resources} == {
        "nvidia.com/slice": "GPU-0::0 GPU-0::1",
        MEMORY: "GPU-1::0 GPU-1::1",
        GPU: "GPU-2",
        "nvidia.com/part": "MIG-0::0 MIG-0::1 MIG-1::0 MIG-1::1",
    }


@pytest.mark.parametrize(
    "memory",
    [
        0,
        1023,
    ],
)
def test_a_gpu_whose_memory_makes_no_share_is_left_alone(memory: int, golden: Golden) -> None:
    """The others are shared."""
    (resource,), left = list_resources(sized(memory, 1024), by_memory(1024))

    assert [device.id for device in resource.devices] == ["GPU-1::0"]
    assert [each.unit for each in left] == ["GPU-0"]
    golden(left[0].reason)


@pytest.mark.parametrize(
    ("memories", "grain", "unit", "count", "fits"),
    [
        ((4097,), 1, "MiB", 4097, "2 MiB"),
        ((81920,) * 8, 1, "MiB", 655360, "160 MiB"),
        ((81920,) * 8, 100, "MiB", 6552, "160 MiB"),
        ((1024 * 4096, 1024), 1024, "GiB", 4097, "2 GiB"),
        ((40000, 80000), 10, "MiB", 12000, "30 MiB"),
    ],
)
def test_too_many_shares_of_memory_are_none(
    memories: tuple[int, ...], grain: int, unit: MemoryUnit, count: int, fits: str, golden: Golden
) -> None:
    """All of them are left, with the smallest grain that fits; and it does, where one unit less does not."""
    machine = sized(*memories)
    resources, left = list_resources(machine, by_memory(grain, unit))

    assert resources == ()
    assert [each.unit for each in left] == [f"GPU-{i}" for i in range(len(memories))]
    [why] = {each.reason for each in left}
    assert f" {count} " in as_shown(why)
    assert f" {fits} " in as_shown(why)
    golden(why)
    size = {"MiB": 1, "GiB": 1024}[unit]
    least = int(fits.split()[0]) * size
    assert len(list_resources(machine, by_memory(least, unit))[0][0].devices) <= 4096
    assert list_resources(machine, by_memory(least - size, unit))[0] == ()


def test_too_many_shares_of_memory_cost_nothing_else() -> None:
    """Whole GPUs and time slices are offered; 4,096 ids are not too many."""
    machine, slices = sized(4096, 4097, 4096), entry("gpu", 2, "slice", ("2",))
    settings = by_memory(1, "MiB", devices=("1",))
    resources, left = list_resources(
        machine, settings.but(sharing=settings.sharing.but(replicated_resources=(slices,)))
    )

    assert {each.name: len(each.devices) for each in resources} == {GPU: 1, "nvidia.com/slice": 2}
    assert [each.unit for each in left] == ["GPU-1"]
    assert len(list_resources(sized(4096), by_memory(1, "MiB"))[0][0].devices) == 4096


@pytest.mark.parametrize(
    ("capability", "replicas", "offered"),
    [
        ("6.1", 16, True),
        ("6.1", 17, False),
        ("7.0", 48, True),
        ("9.0", 48, True),
        ("12.0", 48, True),
        ("", 48, True),  # not told: most are newer
    ],
)
def test_mps_has_as_many_clients_as_the_gpu_can(capability: str, replicas: int, offered: bool, golden: Golden) -> None:
    """16 before Volta, 48 since; a GPU that cannot is left, and the other is shared."""
    old, new = (Gpu(index=i, uuid=f"GPU-{i}", memory_mib=16384) for i in range(2))
    machine = Machine(gpus=(old.but(compute_capability=capability), new.but(compute_capability="9.0")))
    sharing = Sharing((ReplicatedResource(GPU, replicas),), True, "mps")
    (resource,), left = list_resources(machine, Settings(sharing=sharing))

    assert (resource.uses_mps, resource.one_share_only) == (True, True)
    assert len(resource.devices) == replicas * (1 + offered)
    assert [each.unit for each in left] == ([] if offered else ["GPU-0"])
    for each in left:
        golden(each.reason)


def test_what_a_machine_cannot_have_is_told_once_for_all_its_gpus(golden: Golden) -> None:
    """By entry and reason; a GPU that is left for another reason is no fault of sharing."""
    machine = sized(512, 1024, 512)
    away = Gpu(index=3, uuid="GPU-3", memory_mib=4096, mig=Mig(enabled=True))

    wrong = describe_unsupported_sharing(machine.but(gpus=(*(machine.gpus or ()), away)), by_memory(1024))
    assert as_shown(wrong).startswith("GPU 0, 2: ")
    golden(wrong)
    assert describe_unsupported_sharing(sized(1024, 2048), by_memory(1024)) == ""


def test_memory_by_mps_is_of_any_number_of_shares() -> None:
    """Of one container's many shares there is one client, so their number says nothing."""
    settings = by_memory(64, "MiB")
    settings = settings.but(sharing=settings.sharing.but(mps_limits_memory=True))
    machine = Machine(gpus=(Gpu(index=0, uuid="GPU-0", memory_mib=16384, compute_capability="6.1"),))
    (resource,), left = list_resources(machine, settings)

    assert (len(resource.devices), resource.uses_mps, left) == (256, True, ())


@pytest.mark.parametrize(("distinct", "numa"), [(False, 1), (True, None)])
def test_kubelet_does_not_align_what_has_to_lie_apart(distinct: bool, numa: int | None) -> None:
    """It would take as many ids as it needs of one NUMA node, whichever GPUs they are of."""
    machine = Machine(gpus=(Gpu(index=0, uuid="GPU-0", numa=1, memory_mib=1024),))
    (slices,), _ = list_resources(
        machine, Settings(sharing=Sharing((ReplicatedResource(GPU, 2, distinct_gpus=distinct),)))
    )
    (memory,), _ = list_resources(machine, by_memory(1024))

    assert (slices.requires_distinct_gpus, {device.unit.numa for device in slices.devices}) == (distinct, {numa})
    assert {device.unit.numa for device in memory.devices} == {None}


@pytest.mark.parametrize(("gpus", "offered"), [(32, 32 * 1024), (33, 0)])
def test_more_shares_than_a_list_to_kubelet_has_room_for_are_none(gpus: int, offered: int, golden: Golden) -> None:
    """A list beyond gRPC's longest message would never arrive; what is not shared is offered all the same."""
    machine = Machine(gpus=(*sized(*[1024] * gpus).gpus, Gpu(index=99, uuid="GPU-z", model="T4")))  # type: ignore[misc]
    naming = NamingRule(pattern="T4", name="nvidia.com/t4")
    resources, left = list_resources(
        machine, Settings(gpus=(naming,), sharing=Sharing(replicated_resources=(entry("gpu", 1024),)))
    )

    counts = {each.name: len(each.devices) for each in resources}
    assert counts.get("nvidia.com/gpu", 0) == offered
    assert counts["nvidia.com/t4"] == 1
    assert len({each.unit for each in left}) == (0 if offered else gpus)
    for why in {each.reason for each in left}:
        golden(why)
