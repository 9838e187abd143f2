"""Time-slicing, as tables: which devices become how many ids of which resource."""

from typing import Any

import pytest

from gpuplane.core.resources.names import named
from gpuplane.model.config import Naming, Replication, Settings, Sharing
from gpuplane.model.machine import Gpu, Machine, Mig, MigDevice

UUID = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c"
MIG = Mig(
    enabled=True,
    devices=tuple(MigDevice(uuid=f"MIG-{n}", profile="1g.10gb", gpu_instance=n, slot=n) for n in range(2)),
)
MACHINE = Machine(
    gpus=(
        Gpu(index=0, uuid="GPU-a", model="A100"),
        Gpu(index=1, uuid="GPU-b", model="A100"),
        Gpu(index=2, uuid=UUID, model="T4"),
        Gpu(index=3, uuid="GPU-m", model="A100", mig=MIG),
    )
)


def share(*entries: Replication, **settings: Any) -> dict[str, str]:
    """Resource without its prefix → its ids in one line, on a machine with three whole GPUs and two MIG devices."""
    fields = {"mig_strategy": "mixed", "sharing": Sharing(resources=entries), **settings}
    resources, left = named(MACHINE, Settings(**fields))
    assert left == ()
    return {each.name.removeprefix("nvidia.com/"): " ".join(device.id for device in each.devices) for each in resources}


def entry(name: str, replicas: int, rename: str = "", devices: Any = None) -> Replication:
    """An entry with names in short."""
    return Replication(f"nvidia.com/{name}", replicas, rename and f"nvidia.com/{rename}", devices)


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
        # a shared name is not shared again
        ([entry("gpu", 2, "mig-1g.10gb", 1), entry("mig-1g.10gb", 1, "y")], None),
    ],
)
def test_entries_share_out_the_devices_of_a_resource(
    entries: list[Replication], resources: dict[str, str] | None
) -> None:
    """Ids are the unit's with ::n after it, in the order of the units; what no entry selects stays as it was."""
    expected = resources or {"mig-1g.10gb": "GPU-a::0 GPU-a::1", "gpu": f"GPU-b {UUID}", "y": "MIG-0 MIG-1"}

    assert share(*entries) == expected


def test_names_by_pattern_are_shared_by_those_names() -> None:
    """Sharing comes after naming."""
    gpus = (Naming("A100", "nvidia.com/a100"),)

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
    sharing = Sharing(resources=(entry("gpu", replicas),), fail_requests_greater_than_one=fail)
    gpus, mig = named(MACHINE, Settings(mig_strategy="mixed", sharing=sharing))[0]

    assert (gpus.shared, gpus.one_share_only) == (shared, one_share_only)
    assert (mig.shared, mig.one_share_only) == (False, False)
