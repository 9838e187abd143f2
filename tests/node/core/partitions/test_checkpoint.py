"""What is saved is restored as it was, and files of nvidia-mig-parted are read."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.partitions.checkpoint import format_checkpoint, layouts_of_checkpoint, parse_checkpoint
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuLayout, PlacedInstance
from tests.node.core.partitions.gpus import DISPLAY, PROFILES, a_gpu, an_a100

MIXED = an_a100(0, ("1g.10gb+me", 6, (1,)), ("1g.20gb", 4, ()), ("3g.40gb", 0, (2, 1)))
KNOWN = {f"GPU-{i}": PROFILES for i in range(4)}


def restored(data: bytes, *gpus: Gpu) -> Any:
    """The layouts, where nothing is wrong."""
    layouts, problems = layouts_of_checkpoint(parse_checkpoint(data, "f"), gpus, KNOWN)
    assert not problems
    return layouts


def a_file(*instances: dict[str, Any], mode: int = 1, uuid: str = "GPU-0") -> bytes:
    """A file of nvidia-mig-parted with one GPU."""
    device = {"UUID": uuid, "MigMode": mode, "GpuInstances": list(instances) or None}
    return json.dumps({"Version": "v1", "MigState": {"Devices": [device]}}).encode()


def instance(profile: int, start: int, size: int, *compute: int, engines: int = 0) -> dict[str, Any]:
    """As types.GpuInstanceState is written."""
    parts = [{"ProfileID": each, "EngProfileID": engines} for each in compute]
    return {"ProfileID": profile, "Placement": {"Start": start, "Size": size}, "ComputeInstances": parts or None}


def test_each_instance_comes_back_to_its_place() -> None:
    """With its compute instances. A GPU outside MIG mode comes back to that; one that has no MIG is left out."""
    saved = format_checkpoint([MIXED, an_a100(1, enabled=False), an_a100(2), a_gpu(3, DISPLAY, mig=False)])
    assert restored(saved, MIXED, an_a100(1), an_a100(2)) == {
        "GPU-0": GpuLayout(
            mig_enabled=True,
            mig_devices={"1c.3g.40gb": 1, "1g.10gb+me": 1, "2c.3g.40gb": 1},
            placed=(
                PlacedInstance("1g.10gb+me", 6, (1,)),
                PlacedInstance("1g.20gb", 4, ()),
                PlacedInstance("3g.40gb", 0, (2, 1)),
            ),
            replaces_foreign=True,
        ),
        "GPU-1": GpuLayout(mig_enabled=False, replaces_foreign=True),
        "GPU-2": GpuLayout(mig_enabled=True, placed=(), replaces_foreign=True),
    }


def test_the_file_is_that_of_mig_parted() -> None:
    """Its keys, the constants of NVML for profiles (not the numbers of the card), and a version."""
    assert json.loads(format_checkpoint([MIXED])) == {
        "Version": "v1",
        "MigState": {
            "Devices": [
                {
                    "UUID": "GPU-0",
                    "MigMode": 1,
                    "GpuInstances": [
                        {
                            "ProfileID": 7,
                            "Placement": {"Start": 6, "Size": 1},
                            "ComputeInstances": [{"ProfileID": 0, "EngProfileID": 0}],
                        },
                        {"ProfileID": 9, "Placement": {"Start": 4, "Size": 2}, "ComputeInstances": []},
                        {
                            "ProfileID": 2,
                            "Placement": {"Start": 0, "Size": 4},
                            "ComputeInstances": [
                                {"ProfileID": 1, "EngProfileID": 0},
                                {"ProfileID": 0, "EngProfileID": 0},
                            ],
                        },
                    ],
                }
            ]
        },
    }


def test_a_file_of_an_older_mig_parted_is_read() -> None:
    """It wrote `ProfileId`, and Go writes `null` for an empty list."""
    data = a_file(instance(4, 0, 8, 4), instance(0, 0, 1)).replace(b"ProfileID", b"ProfileId")
    layouts = restored(data, an_a100(0))
    assert layouts["GPU-0"].placed == (PlacedInstance("7g.80gb", 0, (7,)), PlacedInstance("1g.10gb", 0, ()))
    assert restored(b'{"Version": "v1", "MigState": {"Devices": null}}', an_a100(0)) == {}


@pytest.mark.parametrize(
    ("data", "gpus"),
    [
        (a_file(uuid="GPU-9"), (MIXED,)),
        (a_file(), (a_gpu(0, DISPLAY, mig=False),)),
        (a_file(instance(6, 0, 6)), (MIXED,)),
        (a_file(instance(99, 0, 1)), (MIXED,)),
        (a_file(instance(2, 1, 4, 2)), (MIXED,)),
        (a_file(instance(2, 0, 3, 2)), (MIXED,)),
        (a_file(instance(0, 0, 1, 99)), (MIXED,)),
        (a_file(instance(0, 0, 1, 0, engines=1)), (MIXED,)),
        (a_file(instance(1, 0, 2, 1, 1)), (MIXED,)),
    ],
)
def test_what_the_machine_cannot_have_is_a_problem(data: bytes, gpus: tuple[Gpu, ...]) -> None:
    """Another GPU, one without MIG, a profile, a place or a compute instance that there is not."""
    _, problems = layouts_of_checkpoint(parse_checkpoint(data, "f"), gpus, KNOWN)
    assert len(problems) == 1


def test_what_the_driver_does_not_tell_is_not_saved() -> None:
    """A file without it would restore a GPU without instances."""
    gpu = an_a100(0)
    assert gpu.mig is not None
    for mig in (gpu.mig.but(instances=None), MIXED.mig.but(profiles=()) if MIXED.mig else None):
        with pytest.raises(ValueError, match="driver"):
            format_checkpoint([gpu.but(mig=mig)])


@given(st.binary(max_size=100) | st.sampled_from([b'{"Version": "v2"}', b'{"Version": "v1", "MigState": {"X": 1}}']))
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    """With its line."""
    with pytest.raises(InvalidInput):
        parse_checkpoint(data, "f")
