"""Claims of whole GPUs through real agents: from the API server to the container's edits, over crashes and upgrades."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuplane.node.kubelet.protocols import dra_v1_pb2 as pb
from gpuplane.node.kubelet.protocols.dra_v1_pb2_grpc import DRAPluginStub
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Kubelet
from tests.node.kubelet.dra.kubelet import DRIVER, Watcher, connected, kubelet_root, until

GPU, NODE = "nvidia.com/gpu", "/api/v1/nodes/n1"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
UIDS = ("0b5d1b2c-8a3e-4d5f-9c6b-7e8f9a0b1c2d", "1c6e2c3d-9b4f-4e60-8d7c-8f90ab1c2d3e")
LINES = [
    f"  - {{index: {n}, minor: {n}, device_nodes: [/dev/nvidia{n}],"
    f" uuid: GPU-00000000-0000-0000-0000-{n:012}, model: H100, memory_mib: 81559}}"
    for n in range(4)
]
NODES = "shared_nodes: [/dev/nvidiactl, /dev/nvidia-uvm]"
LOST = "faults: [{code: gpu-lost, message: it has fallen off the bus}]"
Json = dict[str, Any]


class Site:
    """A node: its kubelet's directory, its API server, its machine file."""

    def __init__(self, root: Path, server: ApiServer) -> None:
        self.root, self.server, self.machine = root, server, root / "machine.yaml"
        (root / "config.yaml").write_text("version: v1\ndra: {enabled: true}\n")
        (root / "kubeconfig").write_text(server.kubeconfig())
        server.put(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
        self.describe()

    def describe(self, lost: int | None = None) -> None:
        """Write the machine file, perhaps with a GPU that is lost."""
        lines = [line if n != lost else line.replace("}", f", {LOST}}}") for n, line in enumerate(LINES)]
        new = self.machine.with_suffix(".new")
        new.write_text(
            "\n".join(
                ["driver_file_layout: debian", NODES, "driver: {version: 580.95.05, cuda: '13.0'}", "gpus:", *lines, ""]
            )
        )
        new.replace(self.machine)

    def agent(self, *more: object) -> Agent:
        return Agent(
            "--machine", self.machine, "--config", self.root / "config.yaml", "--kubelet-root", self.root,
            "--state-dir", self.root / "state", "--cdi-dir", self.root / "cdi", "--node-name", "n1",
            "--kubeconfig", self.root / "kubeconfig", *more,
        )  # fmt: skip

    def slices(self) -> Mapping[str, Json]:
        """Device → what is published of it."""
        found = self.server.objects.list(parse_path(SLICES))
        return {device["name"]: device for each in found for device in each["spec"].get("devices") or ()}

    def taints(self, device: str) -> set[tuple[str, str]]:
        """Keys and effects of a device's taints."""
        return {(each["key"], each["effect"]) for each in self.slices().get(device, {}).get("taints") or ()}

    def create(self, name: str, *results: Json, config: list[Json] | None = None) -> pb.Claim:
        """A claim that the scheduler has allocated these devices."""
        path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"
        requests = [{"name": each["request"], "exactly": {"deviceClassName": DRIVER}} for each in results]
        devices: Json = {"results": list(results), **({"config": config} if config else {})}
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": requests}},
            "status": {
                "allocation": {"devices": devices},
                "reservedFor": [{"resource": "pods", "name": "train", "uid": "pod-uid"}],
            },
        }
        self.server.put(path, claim)
        return pb.Claim(namespace="default", name=name, uid=self.claim(name)["metadata"]["uid"])

    def claim(self, name: str) -> Json:
        """A claim, as the API server has it."""
        return self.server.objects.get(parse_path(f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"))

    def files(self) -> list[str]:
        """All that is on disk of claims."""
        return sorted(
            each.name for each in (*(self.root / "cdi").glob("*claim*"), *(self.root / "state/claims").glob("*"))
        )


def result(gpu: int, request: str = "gpu", **more: Any) -> Json:
    """A result of an allocation."""
    device = f"gpu-00000000-0000-0000-0000-{gpu:012}"
    return {"request": request, "driver": DRIVER, "pool": f"n1/{device}", "device": device, **more}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with kubelet_root() as root, ApiServer() as server:
        yield Site(root, server)


@asynccontextmanager
async def plugin(watcher: Watcher) -> AsyncIterator[Any]:
    """The service that kubelet knows."""
    await until(lambda: bool(watcher.registered))
    [info] = watcher.registered.values()
    async with connected(info.endpoint) as channel:
        yield DRAPluginStub(channel)


@asynccontextmanager
async def ended(agent: Agent) -> AsyncIterator[Agent]:
    """An agent that has ended after the block, however that ends."""
    await agent.start()
    try:
        yield agent
    finally:
        await agent.kill()


async def prepare(service: Any, *claims: pb.Claim) -> pb.NodePrepareResourcesResponse:
    request = pb.NodePrepareResourcesRequest(claims=claims)
    return await service.NodePrepareResources(request, wait_for_ready=True)  # type: ignore[no-any-return]


async def unprepare(service: Any, *claims: pb.Claim) -> list[str]:
    """The errors of an Unprepare."""
    request = pb.NodeUnprepareResourcesRequest(claims=claims)
    answer = await service.NodeUnprepareResources(request, wait_for_ready=True)
    return [answer.claims[each.uid].error for each in claims]


async def test_a_claim_lives_through_a_crash_and_a_lost_gpu(site: Site) -> None:
    """The same answer, the same edits; meanwhile the device plugin does not offer its GPU, and the slice keeps it."""
    device = "gpu-00000000-0000-0000-0000-000000000001"
    nic = {"request": "nic", "driver": "nic.example.com", "pool": "n1", "device": "eth0"}
    async with Kubelet(site.root) as kubelet, Watcher(site.root) as watcher, ended(site.agent()) as agent:
        await site.server.until(lambda: len(site.slices()) == 4)
        claim = site.create("train", result(1), nic)
        async with plugin(watcher) as service:
            first = await prepare(service, claim)
        [prepared] = first.claims[claim.uid].devices
        assert (prepared.pool_name, prepared.device_name) == (f"n1/{device}", device)
        assert list(prepared.request_names) == ["gpu"]
        assert list(prepared.cdi_device_ids) == [f"k8s.{DRIVER}/claim={claim.uid}-{device}"]
        spec = json.loads((site.root / f"cdi/k8s.{DRIVER}-claim_{claim.uid}.json").read_bytes())
        assert [each["name"] for each in spec["devices"]] == [f"{claim.uid}-{device}"]
        assert "NVIDIA_VISIBLE_DEVICES=void" in spec["containerEdits"]["env"]
        await kubelet.until_capacity(GPU, 4, 3)
        await site.server.until(lambda: bool(site.claim("train")["status"].get("devices")))

        await agent.kill()
        site.describe(lost=1)
        async with site.agent():
            await site.server.until(lambda: (f"{DRIVER}/gpu-lost", "NoSchedule") in site.taints(device))
            assert len(site.slices()) == 4
            async with plugin(watcher) as service:
                again = await prepare(service, claim)
                assert again.SerializeToString(deterministic=True) == first.SerializeToString(deterministic=True)
                assert json.loads((site.root / f"cdi/k8s.{DRIVER}-claim_{claim.uid}.json").read_bytes()) == spec
                assert await unprepare(service, claim) == [""]
            assert site.files() == []
            site.describe()
            await kubelet.until_capacity(GPU, 4, 4, deadline=60)
            await site.server.until(lambda: site.taints(device) == set())


async def test_each_claim_of_a_pod_has_its_own_answer(site: Site) -> None:
    """Good ones are prepared beside those that are refused, each with its code."""
    mig = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "MigDeviceConfig"}
    wrong = [{"source": "FromClaim", "requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": mig}}]
    async with Kubelet(site.root) as kubelet, Watcher(site.root) as watcher, site.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        claims = {
            "good": site.create("good", result(0)),
            "taken": site.create("taken", result(0)),
            "admin": site.create("admin", result(0, adminAccess=True)),
            "unknown": site.create("unknown", {**result(0), "pool": "n1/gpu-x", "device": "gpu-x"}),
            "config": site.create("config", result(1), config=wrong),
            "others": site.create("others", {**result(1), "driver": "other.example.com"}),
            "missing": pb.Claim(namespace="default", name="missing", uid="2f3e"),
            "another": pb.Claim(namespace="default", name="good", uid="2f3f"),
        }
        async with plugin(watcher) as service:
            await prepare(service, claims["good"])
            answer = await prepare(service, *claims.values())
            codes = {name: answer.claims[each.uid].error.partition(":")[0] for name, each in claims.items()}
            assert codes == {
                "good": "",
                "taken": "claim-device-in-use",
                "admin": "",
                "unknown": "claim-device-unknown",
                "config": "claim-config-invalid",
                "others": "claim-not-allocated",
                "missing": "claim-not-found",
                "another": "claim-not-found",
            }
            assert await unprepare(service, *claims.values()) == [""] * len(claims)
        assert site.files() == []


async def test_an_upgrade_keeps_the_claims(site: Site) -> None:
    """The new agent stands by, takes over when the old one ends, and answers the same."""
    agent = site.agent("--pod-uid", UIDS[0])
    async with Kubelet(site.root) as kubelet, Watcher(site.root) as watcher, ended(agent) as old:
        await kubelet.until_capacity(GPU, 4, 4)
        claim = site.create("train", result(2))
        async with plugin(watcher) as service:
            first = await prepare(service, claim)
        async with site.agent("--pod-uid", UIDS[1]) as new:
            await new.until_says("ready to take over")
            await old.stop()
            await until(lambda: [UIDS[1] in path.name for path in watcher.registered] == [True])
            async with plugin(watcher) as service:
                again = await prepare(service, claim)
                assert again.SerializeToString(deterministic=True) == first.SerializeToString(deterministic=True)
                await kubelet.until_capacity(GPU, 4, 3)
                assert await unprepare(service, claim) == [""]
    assert site.files() == []
