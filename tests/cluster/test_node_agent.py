"""The node agent at a real control plane, with the rights that ship, of a pod that the DaemonSet controller made."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from gpuplane.node.kubelet.protocols import dra_v1_pb2 as pb
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet
from tests.cluster.controlplane import Client, ControlPlane, Json, conditions
from tests.deploy.kustomize import DEPLOY, apply, build
from tests.node.agent.test_claims import plugin, prepare, unprepare
from tests.node.kubelet.dra.kubelet import DRIVER, Watcher, kubelet_root

NODE, NODES = "/api/v1/nodes/n1", "/api/v1/nodes"
RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS, PODS = f"{RESOURCES}/namespaces/default/resourceclaims", "/api/v1/namespaces/default/pods"
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/gpuplane"
COMPONENTS = ("dra", "mig-config", "node-labels", "pod-labels", "startup-taint")
NOT_OF_KUBERNETES = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]
UUIDS = tuple(f"GPU-00000000-0000-0000-0000-{n:012}" for n in range(4))


def shipped(overlay: str, *components: str) -> list[Json]:
    """The objects of an overlay with these components."""
    objects = build(DEPLOY / "overlays" / overlay)
    for each in components:
        objects = apply(DEPLOY / "components" / each, objects)
    return objects


def machine(lost: int | None = None) -> str:
    """Four GPUs on two NUMA nodes."""
    gpus = "".join(
        f"  - {{index: {n}, minor: {n}, uuid: {uuid}, model: NVIDIA H100, memory_mib: 81559, numa: {n // 2},"
        f" pci: '0000:{n + 1:02x}:00.0', device_nodes: [/dev/nvidia{n}]"
        f"{', faults: [{code: gpu-lost, message: it has fallen off the bus}]' if n == lost else ''}}}\n"
        for n, uuid in enumerate(UUIDS)
    )
    return (
        "driver_file_layout: debian\nshared_nodes: [/dev/nvidiactl, /dev/nvidia-uvm]\n"
        f"driver: {{version: 580.95.05, cuda: '13.0'}}\ngpus:\n{gpus}"
    )


class Site:
    """A Node of the cluster, kubelet's sockets, and an agent that runs with the token of its pod there."""

    def __init__(self, control_plane: ControlPlane, admin: Client, root: Path) -> None:
        self.control_plane, self.admin, self.root = control_plane, admin, root
        self.token = ""
        self.watcher: Watcher

    def describe(self, lost: int | None = None) -> None:
        new = self.root / "machine.new"
        new.write_text(machine(lost))
        new.replace(self.root / "machine.yaml")

    async def join(self) -> None:
        """As a new node of a pool joins: with its startup taint, Ready, and chosen by the DaemonSet."""
        labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": "n1"}
        taints = [{"key": TAINT, "effect": "NoSchedule"}]
        await self.admin.ask("POST", NODES, {"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": taints}})
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": "2100-01-01T00:00:00Z",
        }
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        told = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        await self.admin.patch(NODE, {"status": told}, "status")

    async def keep_alive(self) -> None:
        """As kubelet does: without it the node is not ready after 40 s."""
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        metadata = {"name": "n1", "namespace": "kube-node-lease"}
        while True:
            with suppress(httpx2.HTTPError):  # it is restarted
                renewed = f"{datetime.now(UTC):%FT%T.%fZ}"
                spec = {"holderIdentity": "n1", "leaseDurationSeconds": 40, "renewTime": renewed}
                await self.admin.apply({**lease, "metadata": metadata, "spec": spec})
            await asyncio.sleep(5)

    async def pod_token(self) -> str:
        """The token of the agent's pod on this Node, as kubelet asks for it."""
        space = "/api/v1/namespaces/gpuplane"

        async def pods() -> Any:
            found = (await self.admin.ask("GET", f"{space}/pods", fieldSelector="spec.nodeName=n1"))["items"]
            return found and found[0]["metadata"]

        pod = await self.admin.until(pods)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
        asked = {"spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}}
        answer = await self.admin.ask("POST", f"{space}/serviceaccounts/gpuplane-agent/token", asked)
        return str(answer["status"]["token"])

    def agent(self, environment: dict[str, str]) -> Agent:
        (self.root / "kubeconfig").write_text(self.control_plane.kubeconfig_of(self.token))
        (self.root / "config.yaml").write_text("version: v1\nhealth: {probePeriod: 200ms}\n")
        return Agent(
            "--machine", self.root / "machine.yaml", "--config", self.root / "config.yaml", "--kubelet-root", self.root,
            "--state-dir", self.root / "state", "--cdi-dir", self.root / "cdi", "--node-name", "n1",
            "--kubeconfig", self.root / "kubeconfig",
            environment=environment,
        )  # fmt: skip

    async def node(self) -> Json:
        return await self.admin.ask("GET", NODE)

    async def devices(self) -> dict[str, Json]:
        """UUID → what is published of each GPU."""
        slices = await self.admin.ask("GET", f"{RESOURCES}/resourceslices", fieldSelector=f"spec.driver={DRIVER}")
        found = [device for each in slices["items"] for device in each["spec"].get("devices") or ()]
        return {each["attributes"]["uuid"]["string"]: each for each in found}

    async def claim(self, name: str, *requests: Json, constraints: tuple[Json, ...] = ()) -> None:
        """A claim, and a pod that uses it."""
        spec = {"devices": {"requests": list(requests), "constraints": list(constraints)}}
        await self.admin.ask("POST", CLAIMS, {"metadata": {"name": name}, "spec": spec})
        uses = {"name": "c", "image": "x", "resources": {"claims": [{"name": name}]}}
        pod = {"containers": [uses], "resourceClaims": [{"name": name, "resourceClaimName": name}]}
        await self.admin.ask("POST", PODS, {"metadata": {"name": name}, "spec": pod})

    async def allocated(self, name: str) -> Json:
        """The claim, once the scheduler has allocated it."""

        async def found() -> Any:
            claim = await self.admin.ask("GET", f"{CLAIMS}/{name}")
            return claim.get("status", {}).get("allocation") and claim

        claim: Json = await self.admin.until(found)
        return claim

    async def end(self, name: str) -> None:
        """The pod has ended, and nobody needs the claim any more."""
        await self.admin.ask("DELETE", f"{PODS}/{name}", gracePeriodSeconds="0")
        await self.admin.ask("DELETE", f"{CLAIMS}/{name}")

    async def until_taints(self, device: str, *keys: str) -> None:
        async def as_wanted() -> bool:
            found = (await self.devices()).get(device, {}).get("taints") or ()
            return {each["key"] for each in found} == set(keys)

        await self.admin.until(as_wanted)


def request(name: str, count: int = 1, device_class: str = DRIVER) -> Json:
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count}}


def results(claim: Json) -> dict[str, list[str]]:
    """Request → the devices that it was given."""
    found: dict[str, list[str]] = {}
    for each in claim["status"]["allocation"]["devices"]["results"]:
        found.setdefault(each["request"], []).append(each["device"])
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(control_plane: ControlPlane) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Client(control_plane))
        site = Site(control_plane, admin, await stack.enter_async_context(kubelet_root()))
        site.describe()
        objects = shipped("host", *COMPONENTS)
        for each in objects:
            await accepted(admin, each)
        await site.join()
        alive = asyncio.create_task(site.keep_alive())
        stack.callback(alive.cancel)
        site.token = await site.pod_token()
        [daemonset] = [each for each in objects if each["kind"] == "DaemonSet"]
        variables = daemonset["spec"]["template"]["spec"]["containers"][0]["env"]
        await stack.enter_async_context(Kubelet(site.root))
        site.watcher = await stack.enter_async_context(Watcher(site.root))
        await stack.enter_async_context(
            site.agent({each["name"]: each["value"] for each in variables if each.get("value")})
        )
        yield site


async def accepted(admin: Client, found: Json, **params: str) -> None:
    """The API server takes an object."""
    status, answer = await admin.apply(found, **params)
    assert status < 300, f"{found['kind']} {found['metadata']['name']}: {answer.get('message')}"


@pytest.mark.parametrize("overlay", ["host", "nvidia-runtime", "described"])
async def test_all_that_ships_is_accepted(site: Site, overlay: str) -> None:
    """An overlay with each component that it offers, in its order. Nobody serves the kinds of Prometheus' operator."""
    offered = re.findall(
        r"\.\./\.\./components/([a-z-]+)", (DEPLOY / "overlays" / overlay / "kustomization.yaml").read_text()
    )
    assert len(offered) > 10
    before: list[Json] = []
    for n in range(len(offered) + 1):
        objects = shipped(overlay, *offered[:n])
        for each in objects:
            if each not in before and each["kind"] not in NOT_OF_KUBERNETES:
                await accepted(site.admin, each, dryRun="All")
        before = objects


async def test_the_policies_are_of_the_right_types(site: Site) -> None:
    """By the server's own check of their expressions."""
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    async def checked() -> Any:
        found = (await site.admin.ask("GET", policies))["items"]
        ours = [each for each in found if each["metadata"]["name"].startswith("gpuplane")]
        return all("typeChecking" in each.get("status", {}) for each in ours) and ours

    found = await site.admin.until(checked)
    assert {each["metadata"]["name"]: each["status"]["typeChecking"] for each in found} == {
        "gpuplane-agent-own-node": {},
        "gpuplane-agent-own-slices": {},
    }


async def test_a_node_joins(site: Site) -> None:
    """Its conditions are written, it is labelled, its devices are published, and its startup taint is gone."""

    told = {("GPUProblem", "False"), ("gpuplane.io/GPUReady", "True")}

    async def usable() -> Any:
        node = await site.node()
        tainted = TAINT in {each["key"] for each in node["spec"].get("taints") or ()}
        return not tainted and conditions(node).items() >= told and node

    node = await site.admin.until(usable)
    assert node["metadata"]["labels"]["nvidia.com/gpu.count"] == "4"
    assert {*await site.devices()} == {*UUIDS}


async def test_the_rights_of_an_agent_end_at_its_node(site: Site) -> None:
    """With its own token it moves no other node, not its own capacity, and no devices of another."""
    await site.admin.ask("POST", NODES, {"metadata": {"name": "n2"}})
    slice_of_another = {
        "metadata": {"generateName": "n2-"},
        "spec": {
            "driver": DRIVER,
            "nodeName": "n2",
            "pool": {"name": "n2/x", "generation": 1, "resourceSliceCount": 1},
        },
    }
    merge = "application/merge-patch+json"
    async with Client(site.control_plane, site.token) as agent:
        tried = [
            await agent.tried("PATCH", f"{NODES}/n2", {"metadata": {"labels": {"nvidia.com/gpu.count": "9"}}}, merge),
            await agent.tried("PATCH", f"{NODE}/status", {"status": {"capacity": {"nvidia.com/gpu": "9"}}}, merge),
            await agent.tried("PATCH", NODE, {"metadata": {"labels": {"nvidia.com/mig.config": "all"}}}, merge),
            await agent.tried("POST", f"{RESOURCES}/resourceslices", slice_of_another),
            await agent.tried("GET", "/api/v1/secrets"),
        ]
    assert [status for status, _ in tried] == [403] * len(tried), tried


async def test_a_claim_of_a_gpu_and_a_nic_of_one_numa_node(site: Site) -> None:
    """The scheduler matches our attribute with another driver's; the agent prepares what it chose."""
    nic = {"name": "nic0", "attributes": {"resource.kubernetes.io/numaNode": {"int": 1}}}
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    slice_ = {"driver": "nic.example.com", "nodeName": "n1", "pool": pool, "devices": [nic]}
    chosen = {"selectors": [{"cel": {"expression": "device.driver == 'nic.example.com'"}}]}
    await site.admin.ask("POST", f"{RESOURCES}/resourceslices", {"metadata": {"name": "nic"}, "spec": slice_})
    await site.admin.ask(
        "POST", f"{RESOURCES}/deviceclasses", {"metadata": {"name": "nic.example.com"}, "spec": chosen}
    )
    near = {"requests": ["gpu", "nic"], "matchAttribute": "resource.kubernetes.io/numaNode"}
    await site.claim("near", request("gpu"), request("nic", device_class="nic.example.com"), constraints=(near,))
    claim = await site.allocated("near")

    [device] = results(claim)["gpu"]
    assert device in {each["name"] for uuid, each in (await site.devices()).items() if uuid in UUIDS[2:]}
    named = pb.Claim(namespace="default", name="near", uid=claim["metadata"]["uid"])
    async with plugin(site.watcher) as service:
        [prepared] = (await prepare(service, named)).claims[named.uid].devices
        assert prepared.device_name == device

        async def told() -> Any:
            found = await site.admin.ask("GET", f"{CLAIMS}/near")
            return [each for each in found["status"].get("devices") or () if each["driver"] == DRIVER]

        [status] = await site.admin.until(told)
        assert status["device"] == device
        await site.end("near")
        assert await unprepare(service, named) == [""]


async def test_a_lost_gpu_is_allocated_to_nobody(site: Site) -> None:
    """Nor while the API server is away, which is told of it when it is back."""
    site.describe(lost=0)
    await site.until_taints(UUIDS[0], f"{DRIVER}/gpu-lost")
    await site.claim("three", request("gpu", 3))
    lost = (await site.devices())[UUIDS[0]]["name"]
    assert lost not in results(await site.allocated("three"))["gpu"]
    await site.end("three")

    await asyncio.to_thread(site.control_plane.run, "restart", "kube-apiserver")
    site.describe()
    await site.until_taints(UUIDS[0])
