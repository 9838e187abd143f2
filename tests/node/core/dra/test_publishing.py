"""What is sent to the API server: what differs, in the right order, and nothing else."""

import copy
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from gpuplane.kubernetes.quantities import is_same_quantity, parse_quantity
from gpuplane.node.core.dra.publishing import (
    Answer,
    changes,
    differing_fields,
    dropped_gates,
    manifest,
    publishable,
    slice_spec,
)
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.model.facts import ClaimPrepareRequested, DrainRequested
from gpuplane.node.model.health import Drain
from gpuplane.node.model.resourceslices import DeviceTaint, KeptSlice, ResourceSlice, ServerAbilities
from gpuplane.node.model.snapshot import Snapshot
from tests.node.core.dra.nodes import after, claim, node

OWNER = "6b200a72-5c1e-4f0d-9d3a-2f6e1b7c8d90"
AT = "2026-11-22T04:49:00Z"
FORGETFUL, KEEPING = ServerAbilities(keeps_taints=False), ServerAbilities(keeps_taints=True)


def slices(snapshot: Snapshot | None = None) -> tuple[ResourceSlice, ...]:
    found = resource_slices(snapshot or node(), "n1")
    assert found is not None
    return found


def kept(wanted: ResourceSlice, owner: str = OWNER, generation: int = 1, **fields: Any) -> KeptSlice:
    """The slice as a server has it: JSON, with the times of taints."""
    spec = msgspec.json.decode(msgspec.json.encode(slice_spec(wanted, None, generation)))
    for device in spec.get("devices", ()):
        for taint in device.get("taints", ()):
            taint["timeAdded"] = AT
    return KeptSlice(name=wanted.name, uid="u", version="7", owner=owner, spec={**spec, **fields})


def all_kept(wanted: tuple[ResourceSlice, ...]) -> dict[str, KeptSlice]:
    return {each.name: kept(each) for each in wanted}


def drained(*gpus: str) -> Snapshot:
    return after(node(), *(DrainRequested(each, Drain(reason="fan")) for each in gpus))


def test_what_is_as_it_shall_be_is_not_sent() -> None:
    """Whatever its generation, the times of its taints, and how a quantity is written."""
    wanted = slices(drained("GPU-1"))
    found = all_kept(wanted)
    assert changes(wanted, found, {}, OWNER).is_nothing
    name = wanted[1].name
    spec = copy.deepcopy(dict(found[name].spec))
    spec["pool"]["generation"] = 9
    spec["devices"][0]["capacity"]["memory"]["value"] = "83516416Ki"
    assert changes(wanted, {**found, name: found[name].but(spec=spec)}, {}, OWNER).is_nothing


@pytest.mark.parametrize(
    "edit",
    [
        lambda spec: spec["devices"][0]["attributes"].pop("uuid"),
        lambda spec: spec["devices"][0]["attributes"].update(more={"int": 1}),
        lambda spec: spec["devices"][0]["capacity"]["memory"].update(value="81558Mi"),
        lambda spec: spec["devices"][0].update(taints=[{"key": "a/b", "effect": "NoSchedule"}]),
        lambda spec: spec["devices"][0].update(allowMultipleAllocations=True),
        lambda spec: spec["devices"].append({"name": "another"}),
        lambda spec: spec.pop("devices"),
        lambda spec: spec["pool"].update(resourceSliceCount=2),
    ],
)
def test_whatever_somebody_edits_is_seen(edit: Any) -> None:
    """And sent again, with the generation that the pool has."""
    wanted = slices()
    found = all_kept(wanted)
    name = wanted[2].name
    spec = copy.deepcopy(dict(found[name].spec))
    spec["pool"]["generation"] = 4
    edit(spec)
    todo = changes(wanted, {**found, name: found[name].but(spec=spec)}, {}, OWNER)
    assert (todo.obsolete, todo.changed, todo.new) == ((), (name,), ())
    assert todo.specs[name]["pool"] == {"name": "n1/gpu-2", "generation": 4, "resourceSliceCount": 1}


def test_the_owner_is_our_node() -> None:
    """One that was made again has another UID."""
    wanted = slices()
    found = {**all_kept(wanted), wanted[0].name: kept(wanted[0], owner="another")}
    assert changes(wanted, found, {}, OWNER).changed == (wanted[0].name,)
    [owner] = manifest(wanted[0], owner=OWNER)["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": OWNER, "controller": True}


def test_a_new_slice_of_a_pool_is_of_a_newer_generation() -> None:
    """What is obsolete of the pool goes before; a pool that is new begins with 1."""
    wanted = slices()
    old = kept(wanted[0].but(name="of-before"), generation=5)
    todo = changes(wanted, {"of-before": old}, {}, OWNER)
    assert todo.obsolete == (old,)
    assert todo.new == tuple(each.name for each in wanted)
    assert [todo.specs[each.name]["pool"]["generation"] for each in wanted] == [6, 1, 1, 1]


def test_times_of_taints_are_sent_back() -> None:
    """Of those that are as they were; another value is another taint."""
    [wanted] = [each for each in slices(drained("GPU-1")) if each.pool == "n1/gpu-1"]
    assert slice_spec(wanted, kept(wanted), 1)["devices"][0]["taints"] == [
        {"key": "gpuplane.io/drained", "value": "drained", "effect": "NoSchedule", "timeAdded": AT}
    ]
    other = wanted.but(
        devices=(wanted.devices[0].but(taints=(DeviceTaint("gpuplane.io/drained", "NoSchedule", "other"),)),)
    )
    assert "timeAdded" not in slice_spec(wanted, kept(other), 1)["devices"][0]["taints"][0]


def test_what_a_server_drops_is_not_sent_again() -> None:
    """Until we want something else, or somebody edits it."""
    wanted = slices(drained("GPU-1"))
    found = all_kept(wanted)
    name = "n1-gpu.nvidia.com-gpu-1"
    without = copy.deepcopy(dict(found[name].spec))
    del without["devices"][0]["taints"]
    found[name] = found[name].but(spec=without)
    answers = {name: Answer(slice_spec(wanted[1], None, 1), without)}
    assert changes(wanted, found, {}, OWNER).changed == (name,)
    assert changes(wanted, found, answers, OWNER).is_nothing
    assert changes(slices(), found, answers, OWNER).is_nothing  # now it is as it shall be
    edited = copy.deepcopy(without)
    edited["devices"][0]["attributes"]["type"] = {"string": "mig"}
    assert changes(wanted, {**found, name: found[name].but(spec=edited)}, answers, OWNER).changed == (name,)


def test_a_device_whose_taint_is_dropped_is_withdrawn() -> None:
    """Unless a claim has it. Its slice stays, so that its pool is complete."""
    wanted = slices(after(drained("GPU-1", "GPU-2"), ClaimPrepareRequested(claim("u1", 2))))
    assert [bool(each.devices) for each in publishable(wanted, FORGETFUL)] == [True, False, True, True]
    assert publishable(wanted, KEEPING) == wanted
    assert "devices" not in slice_spec(publishable(wanted, FORGETFUL)[1], None, 1)


def test_a_server_that_refuses_soft_taints_gets_the_others() -> None:
    """Before Kubernetes 1.35 there was no effect None."""
    soft, hard = DeviceTaint("a/b", "None"), DeviceTaint("a/c", "NoSchedule")
    [first, *_] = slices()
    wanted = first.but(devices=(first.devices[0].but(taints=(hard, soft)),))
    [found] = publishable([wanted], ServerAbilities(takes_soft_taints=False))
    assert found.devices[0].taints == (hard,)


def test_fields_are_named_with_their_gate() -> None:
    """For people, and for whoever switches it on."""
    sent = {"devices": [{"name": "gpu-0", "taints": [{"key": "a"}], "attributes": {"x": {"int": 1}}}]}
    fields = differing_fields(sent, {"devices": [{"name": "gpu-0", "attributes": {"x": {"int": 2}}}]})
    assert fields == ("devices[gpu-0].taints", "devices[gpu-0].attributes.x.int")
    assert dropped_gates(fields) == ("DRADeviceTaints",)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("1024Ki", "1Mi"), ("0.5", "500m"), ("1e3", "1e3"), ("12E6", "12E6"), ("1.5Gi", "1536Mi"), ("0.0001", "100u"),
        ("0.5Gi", "512Mi"), ("1000k", "1M"), ("1.25", "1250m"), ("+7", "+7"), ("00010", "00010"), ("5.", "5."),
        (".5", "500m"), ("1n", "1n"), ("1024Mi", "1Gi"), ("2048Gi", "2Ti"), ("1Ei", "1Ei"),
    ],
)  # fmt: skip
def test_a_server_writes_quantities_otherwise(sent: str, kept: str) -> None:
    """As Kubernetes 1.36.2 answered."""
    assert parse_quantity(sent) is not None
    assert is_same_quantity(sent, kept)


@pytest.mark.parametrize("text", ["", "Gi", "1Zi", "1 Gi", "1,5", "--1", "1e", "0x10", "1" * 50])
def test_what_is_no_quantity(text: str) -> None:
    assert parse_quantity(text) is None


def test_quantities_that_differ() -> None:
    assert not is_same_quantity("80Gi", "80G")
    assert not is_same_quantity("1", None)
    assert parse_quantity("2E") == Decimal(2) * 10**18
    assert parse_quantity("2E1") == 20
