"""What the scheduler and the controller of claims write, at the sandbox's API server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gpuplane.kubernetes.client import connect
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.claimcontroller import DELETE_PROTECTION_FINALIZER, run_claim_controller
from gpuplane.sandbox.scheduler.scheduler import run_scheduler, schedule_pods

Json = dict[str, Any]
GROUP, PODS = "/apis/resource.k8s.io/v1", "/api/v1/namespaces/default/pods"
CLAIM = f"{GROUP}/namespaces/default/resourceclaims/c"
DRIVER = "gpu.example.com"


def publish(server: ApiServer, *devices: Json, node: str = "a") -> None:
    spec = {"driver": DRIVER, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
    server.put(f"{GROUP}/resourceslices/{node}", {"metadata": {"name": node}, "spec": {**spec, "devices": [*devices]}})


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A node with two GPUs, a class, and a claim of one."""
    async with ApiServer() as server:
        server.put("/api/v1/nodes/a", {"metadata": {"name": "a"}})
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        server.put(f"{GROUP}/deviceclasses/gpu", {"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}})
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
        server.put(CLAIM, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
        publish(server, {"name": "gpu-0"}, {"name": "gpu-1"})
        yield server


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    return tmp_path / "kubeconfig"


async def schedule(kubeconfig: Path) -> None:
    async with connect(kubeconfig) as client:
        await schedule_pods(client)


def pod(server: ApiServer, name: str = "p", **spec: Any) -> Json:
    wanted = {"resourceClaims": [{"name": "g", "resourceClaimName": "c"}], **spec}
    made = server.put(f"{PODS}/{name}", {"metadata": {"name": name, "namespace": "default"}, "spec": wanted})
    assert made is not None
    return made


def get(server: ApiServer, path: str) -> Json:
    return server.objects.get(parse_path(path))


def condition(server: ApiServer, name: str = "p") -> Json:
    """What the pod's status says of its scheduling."""
    conditions = get(server, f"{PODS}/{name}")["status"]["conditions"]
    [found] = [each for each in conditions if each["type"] == "PodScheduled"]
    return {key: value for key, value in found.items() if "Time" not in key}


async def test_a_claim_is_allocated_and_reserved_before_its_pod_is_bound(server: ApiServer, kubeconfig: Path) -> None:
    made = pod(server)
    await schedule(kubeconfig)

    claim, bound = get(server, CLAIM), get(server, f"{PODS}/p")
    [result] = claim["status"]["allocation"]["devices"]["results"]
    assert (result["pool"], result["device"], result["request"]) == ("a", "gpu-0", "gpu")
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": made["metadata"]["uid"]}]
    assert claim["metadata"]["finalizers"] == [DELETE_PROTECTION_FINALIZER]
    assert bound["spec"]["nodeName"] == "a"
    assert condition(server) == {"type": "PodScheduled", "status": "True"}
    assert int(claim["metadata"]["resourceVersion"]) < int(bound["metadata"]["resourceVersion"])


async def test_a_second_pod_shares_the_claim(server: ApiServer, kubeconfig: Path) -> None:
    for name in ("p", "q"):
        pod(server, name)
    await schedule(kubeconfig)

    assert [each["name"] for each in get(server, CLAIM)["status"]["reservedFor"]] == ["p", "q"]
    assert get(server, f"{PODS}/q")["spec"]["nodeName"] == "a"


async def test_a_pod_that_fits_nowhere_is_told_once_and_bound_when_it_fits(server: ApiServer, kubeconfig: Path) -> None:
    publish(server)
    pod(server)
    await schedule(kubeconfig)
    said = condition(server)
    assert (said["reason"], said["message"]) == (
        "Unschedulable",
        "0/1 nodes are available: 1 cannot allocate all claims.",
    )
    version = server.objects.version
    await schedule(kubeconfig)
    assert server.objects.version == version

    publish(server, {"name": "gpu-7"})
    await schedule(kubeconfig)
    assert condition(server)["status"] == "True"


async def test_a_selector_that_fails_is_an_error_of_the_scheduler(server: ApiServer, kubeconfig: Path) -> None:
    selector = {"cel": {"expression": "device.attributes['x.io'].nothing == 1"}}
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "selectors": [selector]}}]
    server.put(CLAIM, {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}})
    pod(server)
    await schedule(kubeconfig)
    assert condition(server)["reason"] == "SchedulerError"


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"schedulerName": "other"}, {}),
        ({"nodeName": "z"}, {}),
        ({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, {}),
        ({}, {"phase": "Failed"}),
        ({"resourceClaims": [{"name": "g", "resourceClaimName": "absent"}]}, {}),
    ],
)
async def test_whom_it_leaves_alone(server: ApiServer, kubeconfig: Path, spec: Json, status: Json) -> None:
    made = pod(server, **spec)
    server.put(f"{PODS}/p", {**made, "status": status})
    version = server.objects.version
    await schedule(kubeconfig)
    assert server.objects.version == version


async def test_beside_the_controller_of_claims(server: ApiServer, kubeconfig: Path) -> None:
    """A pod whose claim is made of a template; also after the API server was away."""
    template = {"metadata": {"name": "t"}, "spec": {"spec": get(server, CLAIM)["spec"]}}
    server.put(f"{GROUP}/namespaces/default/resourceclaimtemplates/t", template)
    wanted = {"metadata": {"name": "p"}, "spec": {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}}
    async with (
        run_claim_controller(kubeconfig),
        run_scheduler(kubeconfig),
        httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as client,
    ):
        await server.stop()
        await server.start()
        assert (await client.post(PODS, json=wanted)).status_code == 201
        await server.until(lambda: bool(get(server, f"{PODS}/p")["spec"].get("nodeName")))
        again = await client.post(f"{PODS}/p/binding", json={"target": {"kind": "Node", "name": "z"}})
        assert (again.status_code, again.json()["reason"]) == (409, "Conflict")
        assert (await client.post(f"{PODS}/p/binding", json={"target": {}})).status_code == 400
        assert (await client.post(f"{PODS}/absent/binding", json={"target": {"name": "a"}})).status_code == 404
        assert (await client.delete(f"{PODS}/p")).status_code == 200
        await server.until(lambda: len(list(server.objects.list(parse_path(f"{GROUP}/resourceclaims")))) == 1)
