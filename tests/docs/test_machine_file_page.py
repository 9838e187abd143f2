"""docs/machine-file.md is the reference: it names every key and every profile, and its examples can be read."""

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from gpuplane.base import strict
from gpuplane.node.hardware.described.profiles import profile_names
from gpuplane.node.hardware.nvidia.driver.devicenodes import DRIVER_NAMES
from gpuplane.node.model.machine import (
    Device,
    DeviceNodeStat,
    Driver,
    DriverFile,
    DriverFiles,
    DriverLibrary,
    FabricClique,
    Fault,
    Gpu,
    GpuProcess,
    Incident,
    InjectedFailure,
    Link,
    MachineFile,
    Mig,
    MigAttributes,
    MigDevice,
    Vgpu,
)
from gpuplane.node.model.telemetry import Curve, DescribedLoad

PAGE = (Path(__file__).parents[2] / "docs/machine-file.md").read_text()
SECTIONS: dict[str, type[msgspec.Struct]] = {
    "The machine": MachineFile,
    "`driver`": Driver,
    "`driver.files`": DriverFiles,
    "`driver.files.libraries[]`": DriverLibrary,
    "`driver.files.files[]` and `sockets[]`": DriverFile,
    "`numbers`": DeviceNodeStat,
    "`gpus[]`": Gpu,
    "`gpus[].links[]`": Link,
    "`gpus[].mig`": Mig,
    "`gpus[].mig.devices[]`": MigDevice,
    "`gpus[].mig.devices[].attributes`": MigAttributes,
    "`gpus[].fabric`": FabricClique,
    "`vgpu`": Vgpu,
    "`devices[]`": Device,
    "`faults[]`": Fault,
    "`failures[]`": InjectedFailure,
    "`incidents[]`": Incident,
    "`processes[]`": GpuProcess,
    "`load[]`": DescribedLoad,
    "curves in `load[].readings`": Curve,
}


def rows(section: str) -> dict[str, str]:
    """The rows of a section's table by key."""
    text = PAGE.split(f"### {section}\n")[1].split("\n#")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.M))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_a_row(section: str) -> None:
    """No more, no fewer, and those that must be there are marked."""
    fields = msgspec.structs.fields(SECTIONS[section])

    assert sorted(rows(section)) == sorted(field.encode_name for field in fields)
    assert {key for key, row in rows(section).items() if "*required*" in row} == {
        field.encode_name for field in fields if field.required
    }


def test_the_table_of_nodes_is_the_rules_table() -> None:
    """Every driver's name stands there."""
    text = PAGE.split("## Device nodes\n")[1].split("\n## ")[0]

    assert set(re.findall(r"`([\w-]+)`", text)) >= set(DRIVER_NAMES)


@pytest.mark.parametrize("example", re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S))
def test_examples_can_be_read(example: str) -> None:
    """As machine files, strictly."""
    assert strict.load_yaml_as(example.encode(), MachineFile, "example.yaml")


def test_examples_can_be_followed_one_after_the_other() -> None:
    """A key stands once in a file, so what an example shows of a list holds what those before it have put there."""
    lists: dict[str, list[object]] = {}
    for said, example in re.findall(r"^(\S[^\n]*)\n\n```yaml\n(.*?)^```$", PAGE.split("\n## ")[-1], re.M | re.S):
        for key, shown in yaml.safe_load(example).items():
            there = [] if said == "the other:" else lists.get(key, [])
            assert shown[: len(there)] == there, key
            lists[key] = shown

    assert {"gpus", "incidents", "processes", "failures"} <= set(lists)


def test_every_profile_is_listed() -> None:
    """In the table at the top."""
    assert sorted(re.findall(r"^\| `([\w-]+)` \| .* × |^\| `(workstation)`", PAGE, re.M)) == sorted(
        ("", name) if name == "workstation" else (name, "") for name in profile_names()
    )
