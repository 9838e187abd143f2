"""Mistakes in the partitions of a machine file are told with their lines, before anything is made of them."""

import pytest

from gpuplane.base.strict import InvalidInput
from gpuplane.node.hardware.described.machinefile import read_machine

MACHINE = """\
driver: {{version: 580.95.05, cuda: "13.0"}}
gpus:
  - index: 0
    uuid: GPU-0
    minor: 0
    model: NVIDIA A100-SXM4-80GB
    memory_mib: 81920
    mig:
      enabled: true
      profiles: [{profiles}]
      instances: [{instances}]
"""
ONE = "{id: 19, name: 1g.10gb, slices: 1, size: 1, starts: [0, 1], count: 7, memory_mib: 9728, compute_profiles: []}"
TWO = "{id: 14, name: 2g.20gb, slices: 2, size: 2, starts: [0, 2], count: 3, memory_mib: 19968, compute_profiles: [{id: 0, slices: 1, count: 2}]}"  # noqa: E501


@pytest.mark.parametrize(
    ("profiles", "instances", "line", "problem"),
    [
        (ONE.replace("size: 1", "size: 0"), "", 10, "0 is not possible: write 1 or more"),
        (ONE.replace("starts: [0, 1]", "starts: [-1]"), "", 10, "-1 is not a memory slice: they count from 0"),
        (ONE.replace("starts: [0, 1]", "starts: []"), "", 10, "it can begin nowhere"),
        (f"{ONE}, {ONE}", "", 10, "profile 19 is there 2 times"),
        (TWO.replace("slices: 1, count: 2", "slices: 3, count: 1"), "", 10, "3 of the 2 slices of 2g.20gb"),
        ("", "{id: 1, profile: 99, start: 0, size: 1}", 11, "99 is no profile of this card; it has 19 (1g.10gb)"),
        (ONE, "{id: 1, profile: 14, start: 0, size: 2}", 11, "14 is no profile of this card; it has 19 (1g.10gb)"),
        (ONE, "{id: 1, profile: 19, start: 5, size: 1}", 11, "1g.10gb cannot begin at memory slice 5; it can at 0, 1"),
        (ONE, "{id: 1, profile: 19, start: 0, size: 2}", 11, "1g.10gb has 1 memory slices, not 2"),
        (
            f"{ONE}, {TWO}",
            "{id: 1, profile: 19, start: 1, size: 1}, {id: 2, profile: 14, start: 0, size: 2}",
            11,
            "memory slice 1 is in GPU instance 1, too: write another start",
        ),
        (ONE, "{id: 1, profile: 19, start: 0, size: 1}, {id: 1, profile: 19, start: 1, size: 1}", 11, "2 times"),
        (
            TWO,
            "{id: 1, profile: 14, start: 0, size: 2, compute_instances: [{id: 0, slices: 2}]}",
            11,
            "2g.20gb has no compute instances of 2: 1",
        ),
        (
            TWO,
            "{id: 1, profile: 14, start: 0, size: 2, compute_instances: [{id: 0, slices: 1}, {id: 0, slices: 1}]}",
            11,
            "compute instance 0 is there 2 times",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line(profiles: str, instances: str, line: int, problem: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_machine(MACHINE.format(profiles=profiles, instances=instances).encode(), "m.yaml")

    assert f"m.yaml:{line}: " in str(refused.value)
    assert problem in str(refused.value)
