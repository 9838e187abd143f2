"""Claims and pods of an API server: the embedded kubelet beside the sandbox's own, over HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer, InjectedFailure
from gpuplane.sandbox.kubelet import Container, ContainerClaim, Kubelet, Pod, PodClaim, pod_from_object
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.kubelet.dra.apisource import ApiClaims

from .site import TIMES
from .toyplugin import DRIVER, POOL, ToyPlugin

GROUP = "/apis/resource.k8s.io/v1"
CLAIM = f"{GROUP}/namespaces/dra-lab/resourceclaims/one"
POD = "/api/v1/namespaces/dra-lab/pods/p-one"
USES = {"name": "c", "resources": {"claims": [{"name": "g", "request": "gpu"}], "limits": {"lab.io/dev": "2"}}}
SPEC: dict[str, Any] = {"containers": [USES], "resourceClaims": [{"name": "g", "resourceClaimName": "one"}]}


def slice_of(node: str, driver: str) -> dict[str, Any]:
    pool = {"name": POOL, "generation": 1, "resourceSliceCount": 1}
    return {"spec": {"nodeName": node, "driver": driver, "pool": pool, "devices": [{"name": "g4"}]}}


async def test_a_claim_goes_from_the_api_server_to_the_container(root: Path) -> None:
    async with ApiServer() as server:
        made = server.put(
            POD, {"spec": {**SPEC, "containers": [{"name": "c", "resources": {"claims": [{"name": "g"}]}}]}}
        )
        assert made is not None
        mine = pod_from_object(made)
        result = {"request": "gpu", "driver": DRIVER, "pool": POOL, "device": "g4"}
        status = {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": mine.name, "uid": mine.uid}],
        }
        requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
        server.put(CLAIM, {"spec": {"devices": {"requests": requests}}, "status": status})
        async with (
            ApiClaims(server.url, "node-a", server.token) as claims,
            Kubelet(root, claims=claims, dra_times=TIMES, cdi_dirs=root / "cdi") as kubelet,
        ):
            plugin = ToyPlugin(root)
            await plugin.start()
            await plugin.until_registered()
            await kubelet.run(mine)
            await kubelet.until(lambda: kubelet.pods[mine.key].started == {"c"})

            assert kubelet.pods[mine.key].created["c"].env == ("GOT_g4=one",)
            await plugin.stop()


async def test_slices_go_by_node_and_driver(root: Path) -> None:
    async with ApiServer() as server, ApiClaims(server.url, "node-a", server.token) as claims:
        for name, node, driver in (("a", "node-a", DRIVER), ("b", "node-a", "other.io"), ("c", "node-b", DRIVER)):
            server.put(f"{GROUP}/resourceslices/{name}", slice_of(node, driver))

        await claims.delete_slices(DRIVER)
        assert names(server) == ["b", "c"]
        await claims.delete_slices("")
        assert names(server) == ["c"]


async def test_slices_are_deleted_as_soon_as_the_api_server_lets_them_be(root: Path) -> None:
    async with ApiServer() as server, ApiClaims(server.url, "node-a", server.token) as claims:
        server.put(f"{GROUP}/resourceslices/a", slice_of("node-a", DRIVER))
        server.failures = [
            InjectedFailure("DELETE *", times=2, code=500),
            InjectedFailure("DELETE *", drop_connection=True),
        ]
        async with asyncio.timeout(60), Kubelet(root, claims=claims, dra_times=TIMES), server.changed:
            await server.changed.wait_for(lambda: names(server) == [])


async def test_what_the_api_server_says_is_what_the_pod_is_told() -> None:
    async with ApiServer() as server, ApiClaims(server.url, "node-a", server.token) as claims:
        with pytest.raises(KubeletError, match=r'resourceclaims\.resource\.k8s\.io "one" not found'):
            await claims.get_claim("dra-lab", "one")
    async with ApiClaims("http://127.0.0.1:1", "node-a") as nobody:
        with pytest.raises(KubeletError):
            await nobody.get_claim("dra-lab", "one")


def test_a_pod_object_says_what_its_containers_claim() -> None:
    found = {
        "metadata": {"name": "p-one", "namespace": "dra-lab", "uid": "u1"},
        "spec": {
            **SPEC,
            "resourceClaims": [*SPEC["resourceClaims"], *({"name": n, "resourceClaimTemplateName": "t"} for n in "xy")],
            "initContainers": [{"name": "first"}, {"name": "beside", "restartPolicy": "Always"}],
        },
        "status": {"resourceClaimStatuses": [{"name": "x", "resourceClaimName": "p-one-x-6vknc"}]},
    }
    mine = (PodClaim("g", "one"), PodClaim("x", "p-one-x-6vknc", True), PodClaim("y", "", True))
    uses = Container("c", {"lab.io/dev": 2}, (ContainerClaim("g", "gpu"),))

    assert pod_from_object(found) == Pod(
        "p-one", (uses,), (Container("first"), Container("beside")), frozenset({"beside"}), "dra-lab", "u1", mine
    )


def names(server: ApiServer) -> list[str]:
    return sorted(each["metadata"]["name"] for each in server.objects.list(parse_path(f"{GROUP}/resourceslices")))
