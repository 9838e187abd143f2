"""Described GPUs at a real control plane: a pool's DaemonSet, its pod on a Node, a pod with a GPU, and a fault.

The test plays kubelet for the Node: it starts the pod that the DaemonSet controller made as a process, with its
arguments, environment and ConfigMaps, beside an embedded kubelet.
"""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.nodeuuids import with_uuids_of_node
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.kubelet import Kubelet, pod_from_object
from tests.cluster.controlplane import Client, ControlPlane, Json, conditions
from tests.deploy.kustomize import DEPLOY, build
from tests.node.kubelet.dra.kubelet import kubelet_root

NAME = "described-1"
NODE, SPACE = f"/api/v1/nodes/{NAME}", "/api/v1/namespaces/gpuplane"
PODS, GPU = "/api/v1/namespaces/default/pods", "nvidia.com/gpu"
PAGE = (DEPLOY.parent / "docs/described-gpus.md").read_text()
FILE = "/etc/gpuplane/machines/machine.yaml"
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuplane"}}
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]


def pool() -> list[Json]:
    """The pool of deploy/examples, whose names are its own, with the file of its ConfigMap in place of a profile."""
    objects = build(DEPLOY / "examples/described-pool")
    [agent] = [each for each in objects if each["kind"] == "DaemonSet"]
    for each in agent["spec"]["template"]["spec"]["containers"][0]["env"]:
        each |= {"value": FILE} if each["name"] == "MACHINE" else {}
    return objects


class Site:
    """A Node without a GPU, and what kubelet does there."""

    def __init__(self, control_plane: ControlPlane, admin: Client, root: Path) -> None:
        self.control_plane, self.admin, self.root = control_plane, admin, root
        self.kubelet: Kubelet

    async def join(self) -> None:
        labels = {"gpuplane.io/machine": "t4", "kubernetes.io/hostname": NAME}
        await self.admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": NAME, "labels": labels}})
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": "2100-01-01T00:00:00Z",
        }
        await self.tell_capacity(0, 0, conditions=[ready])

    async def tell_capacity(self, capacity: int, allocatable: int, **status: Any) -> None:
        """As kubelet writes it when its device manager has counted."""
        usual = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        told = {"capacity": usual | {GPU: str(capacity)}, "allocatable": usual | {GPU: str(allocatable)}}
        await self.admin.patch(NODE, {"status": told | status}, "status")

    async def pod(self) -> Json:
        """The agent's pod on this Node, once the scheduler has bound it."""

        async def bound() -> Any:
            found = await self.admin.ask("GET", f"{SPACE}/pods", fieldSelector=f"spec.nodeName={NAME}")
            return found["items"]

        [pod] = await self.admin.until(bound)
        found: Json = pod
        return found

    async def token(self, pod: Json) -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        asked = {"spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}}
        account = pod["spec"]["serviceAccountName"]
        answer = await self.admin.ask("POST", f"{SPACE}/serviceaccounts/{account}/token", asked)
        return str(answer["status"]["token"])

    async def mount(self, pod: Json) -> None:
        """The ConfigMaps of the pod, where the agent will see them; again after each change."""
        places = {each["name"]: each["mountPath"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
        for volume in pod["spec"]["volumes"]:
            if "configMap" in volume:
                found = await self.admin.ask("GET", f"{SPACE}/configmaps/{volume['configMap']['name']}")
                for key, text in found["data"].items():
                    new = self.here(f"{places[volume['name']]}/{key}.new")
                    new.parent.mkdir(parents=True, exist_ok=True)
                    new.write_text(text)
                    new.replace(new.with_suffix(""))

    def here(self, path: str) -> Path:
        """Where this test has what the pod mounts at a path."""
        return self.root / path.removeprefix("/var/lib/kubelet").lstrip("/")

    def agent(self, pod: Json, token: str) -> Agent:
        """The pod's process."""
        [container] = pod["spec"]["containers"]
        env = {each["name"]: each.get("value", NAME) for each in container["env"]}
        (self.root / "kubeconfig").write_text(self.control_plane.kubeconfig_of(token))
        words = [expanded(each, env) for each in container["args"] if not each.startswith("--metrics-address=")]
        paths = [re.sub("(?<==)/.*", lambda path: str(self.here(path[0])), each) for each in words]
        seen = {name: str(self.here(value)) if value.startswith("/") else value for name, value in env.items()}
        return Agent(*paths, "--kubeconfig", self.root / "kubeconfig", environment=seen)

    async def apply(self, objects: list[Json]) -> None:
        for each in objects:
            status, answer = await self.admin.apply(each)
            assert status < 300, f"{each['kind']} {each['metadata']['name']}: {answer.get('message')}"

    async def until_problem(self, status: str) -> None:
        async def told() -> bool:
            return conditions(await self.admin.ask("GET", NODE)).get("GPUProblem") == status

        await self.admin.until(told)


def own_uuids() -> set[str]:
    """Those of this Node: another one has others."""
    file = read_machine((DEPLOY / "overlays/described/machine.yaml").read_bytes(), "machine.yaml")
    here, elsewhere = ({gpu.uuid for gpu in with_uuids_of_node(file, each).gpus or ()} for each in (NAME, "other"))
    assert not here & elsewhere
    return here


def expanded(word: str, env: Mapping[str, str]) -> str:
    """As kubelet expands the arguments of a container."""
    return re.sub(r"\$\((\w+)\)", lambda name: env[name[1]], word)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(control_plane: ControlPlane) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Client(control_plane))
        site = Site(control_plane, admin, await stack.enter_async_context(kubelet_root()))
        await site.apply([NAMESPACE, *pool()])
        await site.join()
        pod = await site.pod()
        await site.mount(pod)
        site.kubelet = await stack.enter_async_context(Kubelet(site.root))
        await stack.enter_async_context(site.agent(pod, await site.token(pod)))
        yield site
        for each in pool():
            await admin.delete(each)
        await admin.ask("DELETE", NODE)


async def test_a_pod_gets_a_described_gpu(site: Site) -> None:
    """The pod of the page: scheduled for the GPUs that the Node tells, and given its environment and stand-ins."""
    await site.kubelet.until_capacity(GPU, 2, 2)
    await site.tell_capacity(2, 2)
    [text] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    wanted = yaml.safe_load(text)
    name = wanted["metadata"]["name"]
    await site.admin.ask("POST", PODS, wanted)

    async def bound() -> Any:
        found = await site.admin.ask("GET", f"{PODS}/{name}")
        return found["spec"].get("nodeName") and found

    found = await site.admin.until(bound)
    assert found["spec"]["nodeName"] == NAME
    got = (await site.kubelet.run(pod_from_object(found))).response()
    assert got.envs["NVIDIA_VISIBLE_DEVICES"] in own_uuids()
    assert {(each.host_path, each.read_only) for each in got.mounts} == {("/dev/null", True)}
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} < {each.container_path for each in got.mounts}
    assert not got.devices
    await site.kubelet.end(f"default/{name}")
    await site.admin.ask("DELETE", f"{PODS}/{name}", gracePeriodSeconds="0")


async def test_a_fault_comes_and_goes_with_the_configmap(site: Site) -> None:
    """The edit of the page, and the manifests again: without a restart, with the rights that ship."""
    [command] = re.findall(r"sed '(s/.*?/)' deploy/overlays/described/machine.yaml > broken.yaml", PAGE)
    _, old, new, _ = command.split("/")
    broken = [
        each | {"data": {"machine.yaml": each["data"]["machine.yaml"].replace(old, new)}}
        for each in pool()
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] == "gpuplane-machines-t4"
    ]
    pod = await site.pod()
    await site.until_problem("False")
    await site.apply(broken)
    await site.mount(pod)
    await site.kubelet.until_capacity(GPU, 2, 1)
    await site.until_problem("True")

    await site.apply(pool())
    await site.mount(pod)
    await site.kubelet.until_capacity(GPU, 2, 2)
    await site.until_problem("False")
