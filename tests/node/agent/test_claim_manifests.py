"""The manifests that we ship for claims, from `kubectl create` to the containers' edits.

Everything between is there: the API server, what the controllers and the scheduler write, kubelet, and a real agent on
a described DGX A100, whose first GPU is /dev/nvidia2.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.claimcontroller import run_claim_controller
from gpuplane.sandbox.kubelet import Kubelet, RunningPod, pod_from_object
from gpuplane.sandbox.kubelet.dra.apisource import ApiClaims
from gpuplane.sandbox.scheduler.scheduler import run_scheduler
from tests.deploy.test_image import ROOT
from tests.node.kubelet.dra.kubelet import kubelet_root, until

from .test_claims_through_kubelet import TIMES

Json = dict[str, Any]
EXAMPLES, CLASS = ROOT / "deploy/examples/dra", ROOT / "deploy/components/dra/deviceclass.yaml"
PROFILE = ROOT / "src/gpuplane/node/hardware/described/profiles/dgx-a100.yaml"
GROUP, EIGHT = "/apis/resource.k8s.io/v1", 8
GPU_NODE = re.compile(r"/dev/nvidia(\d+)")
PLURALS = {"DeviceClass": "deviceclasses", "ResourceClaim": "resourceclaims", "Pod": "pods", "Namespace": "namespaces"}
PLURALS |= {"ResourceClaimTemplate": "resourceclaimtemplates"}


class Cluster:
    """A cluster of one node."""

    def __init__(self, root: Path, server: ApiServer) -> None:
        self.root, self.server, self.machine = root, server, root / "machine.yaml"
        (root / "config.yaml").write_text("version: v1\ndra: {enabled: true}\n")
        (root / "kubeconfig").write_text(server.kubeconfig())
        labels = {"kubernetes.io/arch": "amd64"}
        server.put(
            "/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": labels}}
        )
        self.machine.write_text(PROFILE.read_text())
        self.agent = Agent(
            "--machine", self.machine, "--config", root / "config.yaml", "--kubelet-root", root, "--state-dir",
            root / "state", "--cdi-dir", root / "cdi", "--node-name", "n1", "--kubeconfig", root / "kubeconfig",
        )  # fmt: skip
        self.kubelet: Kubelet

    async def create(self, path: Path) -> list[str]:
        """Create what a file has, as kubectl does; the paths of its pods."""
        pods = []
        async with httpx2.AsyncClient(
            base_url=self.server.url, headers=self.server.authorization, trust_env=False
        ) as client:
            for found in yaml.safe_load_all(path.read_text()):
                space = f"/namespaces/{found['metadata'].get('namespace', 'default')}"
                prefix = f"/apis/{found['apiVersion']}" if "/" in found["apiVersion"] else f"/api/{found['apiVersion']}"
                scope = "" if found["kind"] in ("DeviceClass", "Namespace") else space
                place = f"{prefix}{scope}/{PLURALS[found['kind']]}"
                answer = await client.post(place, params={"fieldValidation": "Strict"}, json=found)
                assert answer.status_code == 201, answer.text
                if found["kind"] == "Pod":
                    pods.append(f"{place}/{found['metadata']['name']}")
        return pods

    async def run(self, path: str) -> RunningPod:
        """A pod, once it is bound, and all its containers run."""
        await self.server.until(lambda: bool(self.get(path)["spec"].get("nodeName")))
        found = pod_from_object(self.get(path))
        running = await self.kubelet.run(found)
        await self.kubelet.until(lambda: running.started == {each.name for each in found.containers}, 60)
        return running

    async def delete(self, path: str) -> None:
        async with httpx2.AsyncClient(
            base_url=self.server.url, headers=self.server.authorization, trust_env=False
        ) as client:
            assert (await client.delete(path)).status_code == 200

    def get(self, path: str) -> Json:
        return self.server.objects.get(parse_path(path))

    def all(self, plural: str) -> list[Json]:
        return list(self.server.objects.list(parse_path(f"{GROUP}/{plural}")))

    def reservations(self) -> list[Json]:
        """For whom claims are reserved."""
        statuses = [each.get("status") or {} for each in self.all("resourceclaims")]
        return [one for status in statuses for one in status.get("reservedFor") or ()]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        root = await stack.enter_async_context(kubelet_root())
        server = await stack.enter_async_context(ApiServer())
        cluster = Cluster(root, server)
        claims = await stack.enter_async_context(ApiClaims(server.url, "n1", server.token))
        cluster.kubelet = Kubelet(root, claims=claims, cdi_dirs=root / "cdi", dra_times=TIMES)
        await stack.enter_async_context(cluster.kubelet)
        await stack.enter_async_context(cluster.agent)
        await stack.enter_async_context(run_claim_controller(root / "kubeconfig"))
        await stack.enter_async_context(run_scheduler(root / "kubeconfig"))
        assert await cluster.create(CLASS) == []
        await until(lambda: len(cluster.all("resourceslices")) == EIGHT)
        await cluster.kubelet.until(lambda: bool(cluster.kubelet.dra.plugins.by_driver))
        yield cluster


def gpus(running: RunningPod) -> Mapping[str, list[int]]:
    """Container → the minors of the GPUs that it sees."""
    return {
        name: sorted(int(each[1]) for node in made.device_nodes if (each := GPU_NODE.fullmatch(node.path)))
        for name, made in running.created.items()
    }


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("one-gpu", {"main": [2]}),
        ("shared-claim", {"one": [2], "other": [2]}),
        ("training", {"main": [2, 3]}),  # below one PCIe root
        ("best-available", {"main": [2]}),  # no Hopper: the second alternative
        ("monitor", {"main": [0, 1, 2, 3, 4, 5, 6, 7]}),
    ],
)
async def test_an_example(cluster: Cluster, example: str, expected: Mapping[str, list[int]]) -> None:
    [path] = await cluster.create(EXAMPLES / f"{example}.yaml")
    running = await cluster.run(path)

    assert gpus(running) == expected
    [claim] = cluster.all("resourceclaims")
    count = len(claim["status"]["allocation"]["devices"]["results"])
    await cluster.server.until(lambda: ready(cluster) == [True] * count)
    await cluster.kubelet.end(running.pod.key)
    await cluster.delete(path)
    await cluster.server.until(lambda: not cluster.reservations())
    await until(lambda: not list((cluster.root / "state/claims").glob("*")))
    assert not list((cluster.root / "cdi").glob("*claim*"))


def ready(cluster: Cluster) -> list[bool]:
    """What the claims' status says of each device."""
    return [
        condition["status"] == "True"
        for claim in cluster.all("resourceclaims")
        for device in (claim.get("status") or {}).get("devices") or ()
        for condition in device["conditions"]
        if condition["type"] == "Ready"
    ]


async def test_every_example_is_tried() -> None:
    """But the one that needs a gate that is off."""
    tried = {"one-gpu", "shared-claim", "training", "best-available", "monitor", "gpu-and-kvm"}
    assert {each.stem for each in EXAMPLES.glob("*.yaml")} == tried | {"maintenance"}


async def test_a_claim_of_a_gpu_and_of_another_kind_of_device(cluster: Cluster) -> None:
    """Each container sees the device whose request it names."""
    new = cluster.machine.with_suffix(".new")
    kvm = "{id: kvm, kind: device-node, device_nodes: [/dev/kvm], numa: 0}"
    new.write_text(f"{cluster.machine.read_text()}\ndevices:\n  - {kvm}\n")
    new.replace(cluster.machine)
    await until(lambda: len(cluster.all("resourceslices")) == EIGHT + 1)
    [path] = await cluster.create(EXAMPLES / "gpu-and-kvm.yaml")
    running = await cluster.run(path)

    assert gpus(running) == {"train": [2], "vm": []}
    assert "/dev/kvm" not in [each.path for each in running.created["train"].device_nodes]
    assert "/dev/kvm" in [each.path for each in running.created["vm"].device_nodes]
    await cluster.server.until(lambda: ready(cluster) == [True, True])
    await cluster.kubelet.end(running.pod.key)
    await cluster.delete(path)
    await cluster.server.until(lambda: not cluster.reservations())
    await until(lambda: not list((cluster.root / "state/claims").glob("*")))


async def test_a_sick_gpu_is_passed_over_but_by_who_may_look_at_all(cluster: Cluster) -> None:
    """The first GPU is lost."""
    lost = "    index: 0\n    faults: [{code: gpu-lost, message: it has fallen off the bus}]\n"
    new = cluster.machine.with_suffix(".new")
    new.write_text(cluster.machine.read_text().replace("    index: 0\n", lost))
    new.replace(cluster.machine)
    await until(lambda: "NoSchedule" in {taint["effect"] for taint in taints(cluster)})
    [one] = await cluster.create(EXAMPLES / "one-gpu.yaml")
    [monitor] = await cluster.create(EXAMPLES / "monitor.yaml")

    assert gpus(await cluster.run(one)) == {"main": [3]}
    assert gpus(await cluster.run(monitor)) == {"main": [*range(EIGHT)]}


def taints(cluster: Cluster) -> list[Json]:
    return [
        taint
        for each in cluster.all("resourceslices")
        for device in each["spec"]["devices"]
        for taint in device.get("taints") or ()
    ]
