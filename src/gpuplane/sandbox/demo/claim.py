"""A scene: a pod gets a GPU by a claim, from the manifest to the container's edits.

It has an agent, a kubelet, an API server and what a cluster does for claims, of its own: controller and scheduler.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import Json, parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.claimcontroller import run_claim_controller
from gpuplane.sandbox.demo.stage import GPU, Scene, SceneFailed, Stage
from gpuplane.sandbox.kubelet import Kubelet, pod_from_object
from gpuplane.sandbox.kubelet.dra.apisource import ApiClaims
from gpuplane.sandbox.scheduler.cel import MissingLibrary, check_library
from gpuplane.sandbox.scheduler.scheduler import run_scheduler

DRIVER, NODE_NAME = "gpu.nvidia.com", "demo"
GROUP_PATH = "/apis/resource.k8s.io/v1"
SLICES_PATH = f"{GROUP_PATH}/resourceslices"
CLAIMS_PATH, PODS_PATH = f"{GROUP_PATH}/namespaces/default/resourceclaims", "/api/v1/namespaces/default/pods"

DEVICE_CLASS: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {
        "selectors": [
            {"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"}}
        ]
    },
}
CLAIM_TEMPLATE: Json = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one-gpu", "namespace": "default"},
    "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}}},
}
POD_OBJECT: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "containers": [{"name": "main", "image": "cuda", "resources": {"claims": [{"name": "gpu"}]}}],
    },
}


async def play(stage: Stage) -> Scene:
    """Raises SceneFailed."""
    try:
        check_library()
        lines = await _give_by_claim(stage.root / "claims", stage.machine, stage.count)
    except MissingLibrary as missing:
        lines = {"not played": str(missing)}
    except TimeoutError as error:
        raise SceneFailed(f"the pod did not get a GPU by its claim: {error}") from None
    return Scene("A pod gets a GPU by a claim (Dynamic Resource Allocation)", lines)


async def _give_by_claim(root: Path, machine: Path, count: int) -> Mapping[str, str]:
    """What happened, as lines for people. `count`: GPUs of the machine that are whole. Raises TimeoutError."""
    root.mkdir()
    (root / "config.yaml").write_text("version: v1\ndra: {enabled: true}\n")
    kubeconfig = root / "kubeconfig"
    async with ApiServer() as server, ApiClaims(server.url, NODE_NAME, server.token) as claims:
        kubeconfig.write_text(server.kubeconfig())
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}}
        server.put(f"/api/v1/nodes/{NODE_NAME}", node)
        agent = Agent(
            "--machine", machine, "--config", root / "config.yaml", "--kubelet-root", root / "k", "--state-dir",
            root / "s", "--cdi-dir", root / "cdi", "--node-name", NODE_NAME, "--kubeconfig", kubeconfig,
        )  # fmt: skip
        async with (
            run_claim_controller(kubeconfig),
            run_scheduler(kubeconfig),
            Kubelet(root / "k", cdi_dirs=root / "cdi", claims=claims) as kubelet,
            agent,
        ):
            await kubelet.until_capacity(GPU, count, count)
            await server.until(lambda: count_gpus(server) == count)
            server.put(f"{GROUP_PATH}/deviceclasses/{DRIVER}", DEVICE_CLASS)
            server.put(f"{GROUP_PATH}/namespaces/default/resourceclaimtemplates/one-gpu", CLAIM_TEMPLATE)
            server.put(f"{PODS_PATH}/train", POD_OBJECT)
            await server.until(lambda: bool(_pod(server)["spec"].get("nodeName")))
            claim = pod_from_object(_pod(server)).claims[0].claim
            [got] = _claim(server, claim)["status"]["allocation"]["devices"]["results"]
            await kubelet.until(lambda: bool(kubelet.dra.plugins.by_driver.get(DRIVER)))
            running = await kubelet.run(pod_from_object(_pod(server)))
            await kubelet.until(lambda: "main" in running.started)
            paths = [each.path for each in running.created["main"].device_nodes]
            await kubelet.until_capacity(GPU, count, count - 1)
            await server.until(lambda: _ready(server, claim))
            await kubelet.end("default/train")
            server.put(f"{PODS_PATH}/train", None)
            await server.until(lambda: not server.objects.has(parse_path(f"{CLAIMS_PATH}/{claim}")))
            await kubelet.until_capacity(GPU, count, count)
    return {
        "the node publishes": f"{count} GPUs as devices of {DRIVER}, each in a pool of its own",
        "a pod names a claim": f"{claim}, made of a template",
        "the scheduler allocates": f"{got['pool']} to it, and binds the pod to {NODE_NAME}",
        "the container gets": ", ".join(path for path in paths if path[-1:].isdigit()),
        "meanwhile": f"{GPU}: {count}, allocatable {count - 1}; the claim's status says Ready",
        "and when the pod is gone": f"no claim, and {GPU}: {count}",
    }


def count_gpus(server: ApiServer) -> int:
    """How many GPUs are published. The machine may have devices of other types, in slices of the same driver."""
    devices = (each for found in server.objects.list(parse_path(SLICES_PATH)) for each in found["spec"]["devices"])
    return sum(device["attributes"]["type"] == {"string": "gpu"} for device in devices)


def _pod(server: ApiServer) -> Json:
    return server.objects.get(parse_path(f"{PODS_PATH}/train"))


def _claim(server: ApiServer, name: str) -> Json:
    return server.objects.get(parse_path(f"{CLAIMS_PATH}/{name}"))


def _ready(server: ApiServer, claim: str) -> bool:
    """Whether the status of the claim says that its device is ready."""
    devices: list[dict[str, Any]] = _claim(server, claim).get("status", {}).get("devices") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for one in devices for each in one["conditions"])
