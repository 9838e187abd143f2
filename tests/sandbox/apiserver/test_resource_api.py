"""resource.k8s.io in the sandbox's API server: what the recorded requests do not show. Sources: the field's code."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import Device, DeviceAttribute, DeviceTaint, ResourcePool, ResourceSliceSpec
from lightkube.resources.resource_v1 import ResourceClaim, ResourceSlice

from gpuplane.sandbox.apiserver.server import ApiServer

Json = dict[str, Any]
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
HEAD = {"apiVersion": "resource.k8s.io/v1"}
POLICY = {"default": "1", "validRange": {"min": "1", "step": "0"}}
SHARED = {"name": "d", "allowMultipleAllocations": True, "capacity": {"m": {"value": "8", "requestPolicy": POLICY}}}
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "d"}
OF_DEVICE = {"driver": "gpu.example.com", "pool": "p", "device": "d", "conditions": []}


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


async def ask(server: ApiServer, method: str, path: str, body: Any = None, kind: str = "json") -> httpx2.Response:
    headers = {"Content-Type": f"application/{kind}"}
    async with httpx2.AsyncClient(base_url=server.url, headers={**headers, **server.authorization}) as http:
        return await http.request(method, path, json=body)


def slice_of(*devices: Json, **more: Any) -> Json:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool, "devices": list(devices), **more}
    return {**HEAD, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}


def claim(**request: Any) -> Json:
    asked = {"name": "gpu", "exactly": {"deviceClassName": "gpu", **request}}
    return {**HEAD, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": {"devices": {"requests": [asked]}}}


RICH = {
    "name": "d",
    "attributes": {"type": {"string": "gpu"}},
    "capacity": {"m": {"value": "80Gi", "requestPolicy": {"default": "1Gi"}}},
    "allowMultipleAllocations": True,
    "consumesCounters": [{"counterSet": "gpu", "counters": {"m": {"value": "80Gi"}}}],
    "taints": [{"key": "example.com/t", "effect": "NoSchedule"}],
    "bindingConditions": ["example.com/ready"],
    "bindingFailureConditions": ["example.com/failed"],
}
PLAIN = {"name": "d", "attributes": {"type": {"string": "gpu"}}, "capacity": {"m": {"value": "80Gi"}}}


@pytest.mark.parametrize(
    ("release", "switched_off", "dropped"),
    [
        ("1.36", (), set()),
        ("1.35", (), RICH.keys() - PLAIN.keys()),
        ("1.34", (), RICH.keys() - PLAIN.keys()),
        ("1.36", ("DRADeviceTaints",), {"taints"}),
        ("1.36", ("DRAConsumableCapacity",), {"allowMultipleAllocations"}),
    ],
)
async def test_fields_of_gates_that_are_off_are_dropped(
    release: str, switched_off: tuple[str, ...], dropped: set[str]
) -> None:
    """Without a word: the device stays published, as an ordinary one that one claim has for itself."""
    async with ApiServer(emulates=release, switched_off=switched_off) as server:
        made = await ask(server, "POST", f"{GROUP}/resourceslices", slice_of(RICH))
        version = (await ask(server, "GET", "/version")).json()

    [device] = made.json()["spec"]["devices"]
    assert (made.status_code, RICH.keys() - device.keys()) == (201, dropped)
    assert ("requestPolicy" in device["capacity"]["m"]) is ("allowMultipleAllocations" in device)
    assert (version["minor"], version["emulationMinor"]) == ("36", release.removeprefix("1."))
    assert "warning" not in made.headers


async def test_gates_of_claims_and_classes() -> None:
    async with ApiServer(emulates="1.34") as server:
        spec = {"extendedResourceName": "example.com/gpu", "selectors": [{"cel": {"expression": "true"}}]}
        body = {**HEAD, "kind": "DeviceClass", "metadata": {"name": "c"}, "spec": spec}
        of_class = (await ask(server, "POST", f"{GROUP}/deviceclasses", body)).json()["spec"]
        body = claim(tolerations=[{"operator": "Exists"}], capacity={"requests": {"m": "1Gi"}}, count=2)
        [request] = (await ask(server, "POST", CLAIMS, body)).json()["spec"]["devices"]["requests"]

    assert of_class == {"selectors": [{"cel": {"expression": "true"}}]}
    assert request["exactly"] == {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}


async def test_what_an_object_has_it_keeps() -> None:
    """A field that was kept while its gate was on stays when somebody writes the object afterwards."""
    async with ApiServer(switched_off=("DRADeviceTaints",)) as server:
        taint = {"key": "example.com/t", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
        server.put(f"{GROUP}/resourceslices/s", slice_of({"name": "d", "taints": [taint]}))
        patch = {"metadata": {"labels": {"a": "b"}}}
        kept = await ask(server, "PATCH", f"{GROUP}/resourceslices/s", patch, "merge-patch+json")
    assert kept.json()["spec"]["devices"] == [{"name": "d", "taints": [taint]}]


@pytest.mark.parametrize(
    ("release", "gate", "text"), [("1.33", "DRADeviceTaints", "1.34, 1.35, 1.36"), ("1.34", "DRATaints", "DRATaints")]
)
def test_what_cannot_be_emulated(release: str, gate: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ApiServer(emulates=release, switched_off=(gate,))


async def test_a_step_of_zero_is_refused(server: ApiServer) -> None:
    """It panics the real server. Whoever publishes it has to be told, and the sandbox goes on."""
    refused = (await ask(server, "POST", f"{GROUP}/resourceslices", slice_of(SHARED))).json()
    assert [each["field"] for each in refused["details"]["causes"]] == [
        "spec.devices[0].capacity[m].requestPolicy.validRange.step"
    ]


async def test_the_status_of_a_device_needs_its_allocation(server: ApiServer) -> None:
    """It is refused for a device that never was allocated, and goes without a word with the allocation."""
    await ask(server, "POST", CLAIMS, claim())
    status = {"status": {"devices": [OF_DEVICE]}}
    never = await ask(server, "PATCH", f"{CLAIMS}/c/status", status, "merge-patch+json")
    allocated = {"status": {"allocation": {"devices": {"results": [RESULT]}}, "devices": [OF_DEVICE]}}
    with_it = await ask(server, "PATCH", f"{CLAIMS}/c/status", allocated, "merge-patch+json")
    freed = {"status": {"allocation": None}}
    without = await ask(server, "PATCH", f"{CLAIMS}/c/status", freed, "merge-patch+json")

    assert (never.status_code, never.json()["details"]["causes"][0]["field"]) == (422, "status.devices[0]")
    assert with_it.json()["status"]["devices"] == [{**OF_DEVICE, "conditions": None}]
    assert (without.status_code, without.json()["status"]) == (200, {})


async def test_a_finalizer_holds_a_claim(server: ApiServer) -> None:
    """A deletion marks it; it goes when the last finalizer goes."""
    await ask(server, "POST", CLAIMS, {**claim(), "metadata": {"name": "c", "finalizers": ["example.com/f"]}})
    await ask(server, "DELETE", f"{CLAIMS}/c")
    held = await ask(server, "GET", f"{CLAIMS}/c")
    await ask(server, "PATCH", f"{CLAIMS}/c", {"metadata": {"finalizers": None}}, "merge-patch+json")

    assert "deletionTimestamp" in held.json()["metadata"]
    assert (await ask(server, "GET", f"{CLAIMS}/c")).status_code == 404


@pytest.mark.parametrize(
    ("path", "change", "text"),
    [
        (f"{GROUP}/resourceslices", {"apiVersion": "resource.k8s.io/v1beta1"}, "does not match the expected API"),
        (f"{GROUP}/resourceslices", {"spec": {"devices": "none"}}, "cannot unmarshal string into Go struct field"),
        (f"{GROUP}/resourceslices", {"spec": []}, "cannot unmarshal array into Go struct field"),
        (f"{GROUP}/resourceslices", {"metadata": {"labels": {"a": 1}}}, "ObjectMeta.metadata.labels of type string"),
        (CLAIMS, {"metadata": {"namespace": "other"}}, "the namespace of the provided object"),
    ],
)  # fmt: skip
async def test_what_is_no_object_of_its_kind(server: ApiServer, path: str, change: Json, text: str) -> None:
    body = claim() if path == CLAIMS else slice_of()
    refused = await ask(server, "POST", path, {**body, **change})
    assert (refused.status_code, refused.json()["reason"]) == (400, "BadRequest")
    assert text in refused.json()["message"]


async def test_discovery(server: ApiServer) -> None:
    """v1 alone is served, as by default; old manifests get a 404."""
    group = (await ask(server, "GET", "/apis/resource.k8s.io")).json()
    assert [each["version"] for each in group["versions"]] == ["v1"]
    old = await ask(server, "GET", "/apis/resource.k8s.io/v1beta1")
    assert (old.status_code, old.json()["message"]) == (404, "the server could not find the requested resource")


async def test_a_client_of_the_field(server: ApiServer, tmp_path: Path) -> None:
    """lightkube, typed: create, list by fields, server-side apply, delete; and what is refused is an ApiError."""
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    client = AsyncClient(KubeConfig.from_file(path), field_manager="tests")
    device = Device(name="d", attributes={"type": DeviceAttribute(string="gpu")})
    spec = ResourceSliceSpec(driver="gpu.example.com", nodeName="n1", pool=ResourcePool(1, "p", 1), devices=[device])
    made = await client.create(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec))
    assert made.metadata
    assert (made.metadata.generation, [each.name for each in made.spec.devices or ()]) == (1, ["d"])

    device.taints = [DeviceTaint(effect="NoSchedule", key="example.com/t")]
    applied = await client.apply(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec), force=True)
    [kept] = applied.spec.devices or []
    assert kept.taints
    assert kept.taints[0].timeAdded is not None
    found = [each.metadata async for each in client.list(ResourceSlice, fields={"spec.nodeName": "n1"})]
    assert [each and (each.name, each.generation) for each in found] == [("s", 2)]

    spec.driver = "other.example.com"
    with pytest.raises(ApiError, match="field is immutable") as refused:
        await client.apply(ResourceSlice(metadata=ObjectMeta(name="s"), spec=spec), force=True)
    assert refused.value.status.code == 422
    with pytest.raises(ApiError, match="not found"):
        await client.get(ResourceClaim, "c", namespace="default")
    await client.delete(ResourceSlice, "s")
    assert [each async for each in client.list(ResourceSlice)] == []
    await client.close()
