"""What we say to an API server, a real one keeps as we say it: slices, status of claims, conditions and Events."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gpuplane.cli.kit.observed import observed_snapshot
from gpuplane.kubernetes.client import connect
from gpuplane.node.agent.node import Node
from gpuplane.node.apiserver.claims import ClaimReader
from gpuplane.node.apiserver.claimstatus import keep_claim_status
from gpuplane.node.apiserver.events import EventKey, SentEvent, send_event
from gpuplane.node.core.dra.deviceconditions import MAX_MESSAGE, claim_conditions
from gpuplane.node.core.dra.publishing import differing_fields, manifest
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.core.kinds.table import FAULTS
from gpuplane.node.core.reports.nodecondition import MAX_MESSAGE_CHARACTERS
from gpuplane.node.hardware.described.profiles import profile_names
from gpuplane.node.model.config import DraSettings, Settings, TaintEffect
from gpuplane.node.model.facts import (
    ClaimPrepareRequested,
    ConfigLoaded,
    DevicesObserved,
    DrainRequested,
    FaultOccurred,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Device, DeviceList, Fault
from gpuplane.node.model.resourceslices import ResourceSlice
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import NodeEvent
from tests.cluster.controlplane import Client, ControlPlane, Json
from tests.deploy.kustomize import DEPLOY
from tests.node.core.dra.nodes import DRA, after, claim, node, written
from tests.texts import as_shown

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]
RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
EVENTS = "/api/v1/namespaces/default/events"
LONGEST_NODE = ".".join(("n" * 63, "n" * 63, "n" * 63, "n" * 61))
"""The name of a Node has at most 253 characters."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    async with Client(control_plane) as admin:
        yield admin


async def at_once(each_of: Iterable[Any]) -> list[Any]:
    """A few requests at a time."""
    free = asyncio.Semaphore(8)

    async def one(each: Any) -> Any:
        async with free:
            return await each

    return await asyncio.gather(*map(one, each_of))


# ResourceSlices


def slices(snapshot: Snapshot, name: str = "n1") -> Iterator[ResourceSlice]:
    found = resource_slices(snapshot, name)
    assert found
    yield from found


async def differing(admin: Client, wanted: ResourceSlice) -> str:
    """What the server does not keep of a slice, as our publisher sees it; or why it refuses it."""
    sent: Json = msgspec.json.decode(msgspec.json.encode(manifest(wanted, owner="uid")))
    status, answer = await admin.apply(sent, dryRun="All", fieldValidation="Strict")
    if status >= 300:
        return f"{wanted.name}: {answer['message']}"
    fields = differing_fields(sent["spec"], answer["spec"])
    return f"{wanted.name}: {fields}" if fields else ""


async def all_kept(admin: Client, wanted: Iterable[ResourceSlice]) -> None:
    found = await at_once(differing(admin, each) for each in wanted)
    assert found
    assert [each for each in found if each] == []


def described(profile: str) -> Snapshot:
    """A machine of a profile, which serves claims."""
    return after(observed_snapshot(profile, None, Path("/")), ConfigLoaded(DRA))


async def test_the_slices_of_every_profile(admin: Client) -> None:
    """Also on a Node with the longest name."""
    names = ("n1", LONGEST_NODE)
    await all_kept(
        admin, (each for profile in profile_names() for name in names for each in slices(described(profile), name))
    )


@pytest.mark.parametrize("effect", ["None", "NoSchedule", "NoExecute"])
async def test_the_taints_of_every_fault(admin: Client, effect: TaintEffect) -> None:
    """With each effect that can be configured."""
    dra = DraSettings(enabled=True, unhealthy=effect, degraded=effect, drained=effect)
    start = after(node(), ConfigLoaded(Settings(dra=dra)))
    tainted = [
        after(start, FaultOccurred(code=code, gpu="GPU-0", message="it is so", at=100.0)) for code in FAULTS.entries
    ]
    tainted.append(after(start, DrainRequested("GPU-0", Drain(reason="fan"))))
    wanted = [each for snapshot in tainted for each in slices(snapshot) if any(one.taints for one in each.devices)]
    assert len({taint.key for each in wanted for one in each.devices for taint in one.taints}) > 3
    await all_kept(admin, wanted)


async def test_a_device_with_as_many_taints_as_there_can_be(admin: Client) -> None:
    faults = [FaultOccurred(code=code, gpu="GPU-0", message="it is so", at=100.0) for code in FAULTS.entries]
    wanted = list(slices(after(node(), *faults, DrainRequested("GPU-0", Drain(reason="fan")))))
    assert max(len(one.taints) for each in wanted for one in each.devices) > 4
    await all_kept(admin, wanted)


async def test_a_device_that_is_no_gpu(admin: Client) -> None:
    """Sick and well."""
    sick = (Fault("device-node-missing", "/dev/fuse: no such file"),)
    kvm, fuse = (
        Device(id=name, kind="device-node", device_nodes=(f"/dev/{name}",), numa=0, faults=faults)
        for name, faults in (("kvm", ()), ("fuse", sick))
    )
    seen = DevicesObserved("device-node", DeviceList((kvm, fuse)))
    await all_kept(admin, slices(after(after(node(), seen), seen, now=300.0)))


# Claims and Events


def conditions(claim: Json) -> list[tuple[str, str, str, str]]:
    """What the status of a claim says of its only device."""
    devices = claim.get("status", {}).get("devices") or ()
    keys = "type", "status", "reason", "message"
    return [tuple(one[key] for key in keys) for each in devices for one in each["conditions"]]


async def test_the_status_of_a_claim(control_plane: ControlPlane, admin: Client) -> None:
    """A healthy device, a sick one, one that is drained, and a message of the greatest length."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    body = {"metadata": {"name": "told"}, "spec": {"devices": {"requests": requests}}}
    uid = (await admin.ask("POST", CLAIMS, body))["metadata"]["uid"]
    result = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n1/gpu-0", "device": "gpu-0"}
    await admin.patch(f"{CLAIMS}/told", {"status": {"allocation": {"devices": {"results": [result]}}}}, "status")
    kept = Node(written(after(node(), ClaimPrepareRequested(claim(uid, 0, name="told")))), now=lambda: 100.0)
    writer = asyncio.create_task(keep_claim_status(kept, ClaimReader(control_plane.kubeconfig)))

    async def as_said() -> bool:
        [(_, wanted)] = claim_conditions(kept.snapshot)[uid]
        found = conditions(await admin.ask("GET", f"{CLAIMS}/told"))
        return found == [(each.type, each.status, each.reason, as_shown(each.message)) for each in wanted]

    await admin.until(as_said)
    for fact, state in (
        (DrainRequested("GPU-0", Drain(reason="fan")), "True"),
        (FaultOccurred(code="xid-79", gpu="GPU-0", message="x" * (MAX_MESSAGE + 1), at=100.0), "False"),
    ):
        kept.apply(fact)
        await admin.until(as_said)
        assert conditions(await admin.ask("GET", f"{CLAIMS}/told"))[1][1] == state
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    await admin.ask("DELETE", f"{CLAIMS}/told")


async def test_an_event_is_made_and_counted_up(control_plane: ControlPlane, admin: Client) -> None:
    """About a Node with the longest name, with the longest message."""
    event = NodeEvent(devices=("GPU-0",), type="Warning", reason="GPUUnhealthy", message="x" * MAX_MESSAGE_CHARACTERS)
    sent: dict[EventKey, SentEvent] = {}
    async with connect(control_plane.kubeconfig) as client:
        for at in (100.0, 101.0):
            await send_event(client, LONGEST_NODE, event, sent, at)
    [found] = (await admin.ask("GET", EVENTS, fieldSelector=f"involvedObject.name={LONGEST_NODE}"))["items"]
    assert (found["count"], found["reason"], found["message"]) == (2, event.reason, event.message)
    await admin.ask("DELETE", f"{EVENTS}/{found['metadata']['name']}")


async def test_the_conditions_of_an_agent_that_is_gone(admin: Client) -> None:
    """By the patch of deploy/README.md they go, and no other: nobody else would take them away."""
    [patch] = re.findall(r"kubectl patch node .*\n\s+(-p '.*')", (DEPLOY / "README.md").read_text())
    types = ("GPUProblem", "Ready", "gpuplane.io/GPUReady", "gpuplane.io/MIGReady")
    node = "/api/v1/nodes/uninstalled"
    await admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": "uninstalled"}})
    said = {"conditions": [{"type": each, "status": "True"} for each in types], "capacity": {"cpu": "8"}}
    await admin.patch(node, {"status": said}, "status")
    strategic = "application/strategic-merge-patch+json"  # kubectl's own choice
    answer = await admin.ask("PATCH", f"{node}/status", msgspec.json.decode(shlex.split(patch)[1]), strategic)
    await admin.ask("DELETE", node)

    assert [each["type"] for each in answer["status"]["conditions"]] == ["Ready"]
    assert answer["status"]["capacity"] == {"cpu": "8"}
