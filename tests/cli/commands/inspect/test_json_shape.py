"""The shape of `gpuplane inspect --json`: what programs rely on."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.reports.inspection.report import build_inspection, health_inspection, inspection_without_times
from gpuplane.node.model.config import ReplicatedResource, Settings, Sharing
from gpuplane.node.model.control import NodeState
from gpuplane.node.model.encoding import format_json
from gpuplane.node.model.facts import (
    AllocateAnswered,
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    FaultOccurred,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import DeviceHealth, Drain
from gpuplane.node.model.inspection import Device, Inspection, Node
from gpuplane.node.model.machine import Driver, Fault, Gpu, Machine, Mig, MigDevice
from gpuplane.node.model.sharelayout import TIME_SLICES
from gpuplane.node.model.snapshot import Allocation, DriverRelease
from gpuplane.node.model.status import CONFIG_PART, Status
from tests import golden
from tests.cli.commands.inspect.pictures import ABOUT, WALL, inspected, picture, shares, ward
from tests.cli.commands.inspect.test_terminal_page import NODES

GOLDEN = Path(__file__).parent / "golden"
PAGE = Path(__file__).parents[4] / "docs/inspect.md"


def rich() -> NodeState:
    """Something of everything: a shared GPU that two pods hold, one that is ill, MIG devices, what is drained, absent
    and not offered."""
    machine = Machine(
        driver=Driver(version="580.95.05", cuda="13.0"),
        gpus=(
            Gpu(index=0, uuid="GPU-0", model="NVIDIA L40S", memory_mib=46068, pci="0000:03:00.0", numa=0),
            Gpu(index=1, uuid="GPU-1", model="NVIDIA L40S", memory_mib=46068, pci="0000:04:00.0", numa=1),
            Gpu(
                index=2, uuid="GPU-2", model="NVIDIA A100-SXM4-80GB", memory_mib=81920, pci="0000:63:00.0",
                mig=Mig(enabled=True, devices=(
                    MigDevice(uuid="MIG-0", profile="3g.40gb", gpu_instance=1, mig_index=0, memory_mib=40192),
                    MigDevice(uuid="MIG-1", profile="1c.3g.40gb", gpu_instance=2, mig_index=1, memory_mib=40192),
                )),
            ),
            Gpu(index=3, faults=(Fault("query-failed", "nvmlDeviceGetUUID: UNKNOWN"),)),
        ),
    )  # fmt: skip
    sharing = Sharing(replicated_resources=(ReplicatedResource("nvidia.com/gpu", 2, rename="nvidia.com/gpu.shared"),))
    held = (
        Allocation(
            "nvidia.com/gpu.shared", ("GPU-0::0",), PodRef.parse("ml/train/main"), share_layout=TIME_SLICES.encoded
        ),
        Allocation("nvidia.com/mig-1g.5gb", ("MIG-9",), PodRef.parse("ml/old/main")),
    )
    return picture(
        ConfigLoaded(Settings(mig_strategy="mixed", sharing=sharing)),
        AllocationsListed(held, 0.0),
        MachineObserved(machine),
        AllocateAnswered("nvidia.com/gpu.shared", ("GPU-0::1",)),
        FaultOccurred(code="xid-79", gpu="GPU-1", message="GPU has fallen off the bus.", at=12.0),
        DrainRequested("MIG-0", Drain(reason="fan is loud", since=13.0, until=7300.0, until_wall_clock=1.0)),
        DriverReleaseRequested(DriverRelease(until=350.0, reason="firmware")),
        StatusChanged(CONFIG_PART, Status("failing", "c.yaml:2: no such key")),
    )


def plain(value: object) -> Any:
    """A document as a program reads it."""
    return json.loads(msgspec.json.encode(value))


@pytest.mark.parametrize("name", ["inspect", "inspect-health"])
def test_the_document_is_the_golden_one(name: str) -> None:
    """A change of the shape changes golden/*.json, docs/inspect.md and CHANGELOG.md."""
    whole = inspected(rich())
    document = format_json(whole if name == "inspect" else health_inspection(whole))

    golden.compare(GOLDEN / f"{name}.json", document.decode(), "The shape is a promise, see docs/stability.md")


@pytest.mark.parametrize("node", NODES)
def test_every_key_is_always_there(node: str) -> None:
    """Also where there is nothing to say; and what there is has the types that are told."""
    document, kept = plain(inspected(NODES[node])), json.loads((GOLDEN / "inspect.json").read_text())

    assert document.keys() == kept.keys()
    for part in ("devices", "resources", "parts", "not_offered"):
        assert all(each.keys() == kept[part][0].keys() for each in document[part]), part
    assert msgspec.json.decode(msgspec.json.encode(document), type=Inspection) == inspected(NODES[node])


def test_times_are_moments_in_utc() -> None:
    """By the clock of the wall at the asking, whatever the agent's clock counts from. To the second."""
    document = plain(inspected(rich()))

    assert document["time"] == "2027-01-15T08:00:00Z"
    assert document["agent"]["started"] == "2027-01-15T07:59:00Z"
    assert document["release"]["until"] == "2027-01-15T08:04:10Z"
    times = re.findall(r'"(?:time|since|until|started)":"([^"]*)"', msgspec.json.encode(document).decode())
    assert len(times) > 5
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", each) for each in times)
    assert build_inspection(rich(), ABOUT, WALL + 60.2).time == datetime.fromisoformat("2027-01-15T08:01:00+00:00")


def test_a_device_and_the_node_say_all_that_a_diagnosis_says() -> None:
    """So that `inspect health` has no less than there is."""
    told = {field.encode_name for field in msgspec.structs.fields(DeviceHealth)} - {"device", "index"}

    assert told <= set(Device.__struct_fields__)
    assert told <= set(Node.__struct_fields__)


def test_health_is_a_part_of_the_whole_document() -> None:
    """The same keys with the same values."""
    whole = plain(inspected(rich()))

    assert plain(health_inspection(inspected(rich()))).items() <= whole.items()


def test_counts_are_those_that_kubelet_is_told() -> None:
    """Each id of a resource is healthy or not; what is held is counted by its name."""
    for node in NODES.values():
        whole = inspected(node)
        for resource in whole.resources:
            ids = [id for device in whole.devices if device.resource == resource.name for id in device.ids]
            assert (resource.devices, resource.healthy) == (len(ids), sum(id.healthy for id in ids))


def test_what_kubelet_has_not_said_is_null() -> None:
    """Not an empty list: nobody knows whether somebody holds it."""
    unasked = inspected(picture(ConfigLoaded(Settings()), MachineObserved(Machine(gpus=(Gpu(index=0, uuid="GPU-0"),)))))

    assert [device.holders for device in unasked.devices] == [None]
    assert unasked.waiting_reason


def test_nothing_new_is_the_same_whenever_it_is_asked() -> None:
    """So a watch writes only what has changed: a fault, a grant, another agent; not the time, not a file on disk."""
    before = ward()
    assert inspection_without_times(before, ABOUT) == inspection_without_times(before.but(now=9999.0), ABOUT)
    again = before.but(snapshot=before.snapshot.but(generation=99))
    assert inspection_without_times(before, ABOUT) == inspection_without_times(again, ABOUT)
    assert inspection_without_times(before, ABOUT) != inspection_without_times(before, ABOUT.but(started_at=41.0))
    assert inspection_without_times(before, ABOUT) != inspection_without_times(
        ward(DrainRequested("GPU-4", None), AllocateAnswered("nvidia.com/gpu", ("GPU-0",))), ABOUT
    )
    assert inspection_without_times(shares(), ABOUT) != inspection_without_times(shares("another"), ABOUT)


def test_the_page_tells_every_key() -> None:
    """In its tables or beside them."""
    told = set(re.findall(r"`(\w+)`", PAGE.read_text()))

    assert set(re.findall(r'^ +"(\w+)":', (GOLDEN / "inspect.json").read_text(), re.M)) <= told
