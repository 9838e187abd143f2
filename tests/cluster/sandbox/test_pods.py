"""Pods on played nodes, as an administrator of a real API server sees them."""

import asyncio
import re
from typing import Any

import pytest

from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.errors import ApiServerError
from tests.cluster.sandbox.world import NAMESPACE, PODS, Json, World, is_running, pod, state

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("played cluster"),
    pytest.mark.timeout(600),
]
GPU = "nvidia.com/gpu"
ON_T4: Json = {"nodeName": "t4-0"}
ON_HGX: Json = {"nodeName": "hgx-h100-0"}


async def until_offered(world: World, node: str, count: int) -> None:
    async def offered() -> bool:
        found = await world.get(f"/api/v1/nodes/{node}")
        return found is not None and found["status"]["allocatable"].get(GPU) == str(count)

    await world.until(offered)


async def test_a_node_is_ready_and_its_agent_offers_what_its_machine_has(world: World) -> None:
    await until_offered(world, "hgx-h100-0", 8)
    await until_offered(world, "t4-0", 1)
    node = await world.get("/api/v1/nodes/hgx-h100-0")
    assert node is not None
    conditions = {each["type"]: (each["status"], each["reason"]) for each in node["status"]["conditions"]}
    assert conditions["Ready"] == ("True", "KubeletReady")
    assert conditions["DiskPressure"] == ("False", "KubeletHasNoDiskPressure")
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{world.cluster.control_plane.version}"
    assert node["status"]["addresses"][0]["address"].startswith("10.")


async def test_a_pod_gets_gpus_and_says_so(world: World) -> None:
    await until_offered(world, "hgx-h100-0", 8)
    await world.apply(pod("gets", count=2))
    found = await world.until_pod("gets", is_running)
    [resources] = found["status"]["containerStatuses"][0]["allocatedResourcesStatus"]
    assert resources["name"] == GPU
    assert [each["health"] for each in resources["resources"]] == ["Healthy"] * 2
    assert found["metadata"]["annotations"]["gpuplane.io/played"] == "true"
    assert re.fullmatch(r"10\.\d+\.\d+\.\d+", found["status"]["podIP"])
    assert {(type, reason) for type, reason, _ in await world.events("gets")} == {
        ("Normal", "Pulled"),
        ("Normal", "Created"),
        ("Normal", "Started"),
        ("Normal", "Played"),
    }
    status, log = await world.text(f"{PODS}/gets/log")
    assert status == 200
    assert {"env NVIDIA_VISIBLE_DEVICES=void", "device /dev/nvidiactl"} <= set(log.splitlines())
    assert len([line for line in log.splitlines() if re.fullmatch(r"device /dev/nvidia\d+", line)]) == 2
    _, last = await world.text(f"{PODS}/gets/log?tailLines=1")
    assert last == log.splitlines()[-1] + "\n"
    await world.delete("gets")
    await world.until_gone("gets")


async def test_a_pod_that_the_node_cannot_run_is_rejected_in_kubelets_words(world: World) -> None:
    """Bound to the node without the scheduler, which would not have done it."""
    await until_offered(world, "t4-0", 1)
    big: Json = {"container": {"resources": {"requests": {"cpu": "1000"}}}}
    await world.apply(
        pod("two-gpus", count=2, **ON_T4),
        pod("much-cpu", **ON_T4, **big),
        pod("elsewhere", **ON_T4, nodeSelector={"rack": "r2"}),
    )
    unavailable = f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"
    wanted = {
        "two-gpus": ("UnexpectedAdmissionError", f"Allocate failed due to {unavailable}, which is unexpected"),
        "much-cpu": (
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 1000000, used: 20, capacity: 16000",
        ),
        "elsewhere": (
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    }
    for name, (reason, message) in wanted.items():
        found = await world.until_pod(name, lambda found: found["status"]["phase"] == "Failed")
        assert (found["status"]["reason"], found["status"]["message"]) == (reason, f"Pod was rejected: {message}")
        await world.until_told(name, *("Warning", reason, message))
        await world.delete(name)
        await world.until_gone(name)


async def test_how_containers_end_decides_what_becomes_of_a_pod(world: World) -> None:
    command = "command"
    await world.apply(
        pod("done", restartPolicy="Never", container={command: ["sleep", "0.2"]}),
        pod("failed", restartPolicy="Never", container={command: ["sh", "-c", "exit 3"]}),
        pod("init-fails", restartPolicy="Never", initContainers=[{"name": "i", "image": "a", command: ["false"]}]),
        pod("after-init", initContainers=[{"name": "i", "image": "a", command: ["sleep", "0.2"]}]),
        pod("crashes", container={command: ["sh", "-c", "sleep 0.1; exit 1"]}),
    )
    done = await world.until_pod("done", lambda found: found["status"]["phase"] == "Succeeded")
    assert state(done)["terminated"]["reason"] == "Completed"
    failed = await world.until_pod("failed", lambda found: found["status"]["phase"] == "Failed")
    assert (state(failed)["terminated"]["exitCode"], state(failed)["terminated"]["reason"]) == (3, "Error")
    await world.until_pod("init-fails", lambda found: found["status"]["phase"] == "Failed")
    after = await world.until_pod("after-init", is_running)
    assert after["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0

    crashed = await world.until_pod("crashes", lambda found: state(found).get("waiting", {}).get("message"))
    uid = crashed["metadata"]["uid"]
    waiting, last = state(crashed)["waiting"], crashed["status"]["containerStatuses"][0]["lastState"]
    assert waiting["reason"] == "CrashLoopBackOff"
    assert re.fullmatch(rf"back-off \d+s restarting failed container=main pod=crashes_{NAMESPACE}\({uid}\)",
                        waiting["message"])  # fmt: skip
    assert last["terminated"]["exitCode"] == 1
    await world.until_pod("crashes", lambda found: found["status"]["containerStatuses"][0]["restartCount"] >= 2)
    told = f"Back-off restarting failed container main in pod crashes_{NAMESPACE}({uid})"
    await world.until_told("crashes", *("Warning", "BackOff", told))
    for name in ("done", "failed", "init-fails", "after-init", "crashes"):
        await world.delete(name)
        await world.until_gone(name)


async def test_a_container_waits_for_what_it_refers_to(world: World) -> None:
    wanted = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "later", "key": "a"}}}]
    await world.apply(pod("waits", container={"env": wanted}))
    found = await world.until_pod("waits", lambda found: state(found).get("waiting", {}).get("message"))
    assert state(found)["waiting"] == {"reason": "CreateContainerConfigError", "message": 'configmap "later" not found'}
    await world.until_told("waits", *("Warning", "Failed", 'Error: configmap "later" not found'))
    metadata = {"name": "later", "namespace": NAMESPACE}
    await world.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "here"}})
    await world.until_pod("waits", is_running)
    _, log = await world.text(f"{PODS}/waits/log")
    assert "env A=here" in log.splitlines()
    await world.delete("waits")
    await world.until_gone("waits")


async def test_nothing_can_be_run_in_a_played_container(world: World) -> None:
    await world.apply(pod("played"))
    await world.until_pod("played", is_running)
    path = f"{PODS}/played/exec?command=ls&container=main&stdout=true"
    status, said = await world.text(path, "POST", Connection="Upgrade", Upgrade="SPDY/3.1")
    assert status >= 400
    assert "exec is not possible in a played pod" in said
    await world.delete("played", gracePeriodSeconds=0)
    await world.until_gone("played")


async def test_the_api_server_reaches_nodes_and_pods(world: World) -> None:
    assert await world.text("/api/v1/nodes/t4-0/proxy/healthz") == (200, "ok")
    assert (await world.text("/api/v1/nodes/t4-0/proxy/pods"))[0] == 200

    async def agent() -> Json | None:
        found = await world.client.get("/api/v1/namespaces/gpuplane/pods", Json)
        return next((each for each in found["items"] if each["spec"].get("nodeName") == "t4-0"), None)

    found = await world.until(agent)
    path = f"/api/v1/namespaces/gpuplane/pods/{found['metadata']['name']}:9410/proxy/healthz"

    async def answers() -> bool:
        return (await world.text(path))[0] == 200

    await world.until(answers)


async def test_a_fault_in_a_machine_file_takes_a_gpu_away(world: World) -> None:
    await until_offered(world, "t4-0", 1)
    await world.apply(pod("holds", count=1, **ON_T4))
    await world.until_pod("holds", is_running)
    machine = world.nodes["t4-0"].spec.machine
    before = machine.read_text()
    fault = "    faults: [{code: gpu-lost, message: fell off the bus}]\n"
    head, gpus, rest = before.partition("gpus:\n")
    first, newline, more = rest.partition("\n")
    aside = machine.with_suffix(".new")
    aside.write_text(f"{head}{gpus}{first}{newline}{fault}{more}")
    aside.replace(machine)
    await until_offered(world, "t4-0", 0)

    def is_unhealthy(found: Json) -> bool:
        [resources] = found["status"]["containerStatuses"][0].get("allocatedResourcesStatus") or [{"resources": []}]
        return [each["health"] for each in resources["resources"]] == ["Unhealthy"]

    await world.until_pod("holds", is_unhealthy)
    machine.write_text(before)
    await until_offered(world, "t4-0", 1)
    await world.delete("holds")
    await world.until_gone("holds")


async def test_a_pod_gets_a_gpu_by_a_claim(world: World) -> None:
    async def published() -> bool:
        slices = await world.client.get("/apis/resource.k8s.io/v1/resourceslices", Json)
        return any(each["spec"].get("nodeName") == "hgx-h100-0" for each in slices["items"])

    await world.until(published)
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-gpu", "namespace": NAMESPACE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    claims: Any = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    await world.apply(
        template,
        pod("claims", resourceClaims=claims, container={"resources": {"claims": [{"name": "gpu"}]}}),
    )
    found = await world.until_pod("claims", is_running)
    claim = found["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    path = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/{claim}"
    assert await world.get(path) is not None
    _, log = await world.text(f"{PODS}/claims/log")
    assert re.search(r"^device /dev/nvidia\d$", log, re.MULTILINE)
    await world.delete("claims")
    await world.until_gone("claims")

    async def gone() -> bool:
        return await world.get(path) is None

    await world.until(gone)


async def test_pods_run_on_while_kubelet_restarts(world: World) -> None:
    await until_offered(world, "hgx-h100-0", 8)
    await world.apply(pod("runs-on", count=1, **ON_HGX))
    before = await world.until_pod("runs-on", is_running)
    kubelet = world.nodes["hgx-h100-0"].kubelet

    def registered() -> int:
        return sum(call.method == "GetDevicePluginOptions" for call in kubelet.trace)

    count = registered()
    await world.nodes["hgx-h100-0"].restart_kubelet(kill=True)
    await kubelet.until(lambda: registered() == count + 1)
    annotations = {"metadata": {"annotations": {"gpuplane.io/restart-kubelet": "now"}}}
    await world.client.send("PATCH", "/api/v1/nodes/hgx-h100-0", annotations)
    await kubelet.until(lambda: registered() == count + 2)
    await until_offered(world, "hgx-h100-0", 8)
    after = await world.pod("runs-on")
    assert after is not None
    assert state(after) == state(before)
    await world.delete("runs-on")
    await world.until_gone("runs-on")


async def test_a_deployment_is_rolled_out_and_scaled(world: World) -> None:
    """Controllers see what they see on any cluster."""
    labels = {"app": "served"}
    template = {"metadata": {"labels": labels}, "spec": pod("x", count=1)["spec"]}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "served", "namespace": NAMESPACE}
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/served"
    await world.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})

    async def available(count: int) -> bool:
        status = ((await world.get(path)) or {}).get("status") or {}
        replicas = status.get("availableReplicas", 0), status.get("replicas", 0), status.get("updatedReplicas", 0)
        return replicas == (count, count, count)

    await world.until(lambda: available(3))
    spec["replicas"] = 1
    template["metadata"] = {"labels": labels, "annotations": {"try": "2"}}
    await world.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    await world.until(lambda: available(1))
    await world.client.send("DELETE", path)

    async def no_pods() -> bool:
        found = await world.client.get(f"{PODS}?labelSelector=app%3Dserved", Json)
        return not found["items"]

    await world.until(no_pods)


async def test_many_pods_come_and_go_at_once(world: World) -> None:
    """Forty pods of one GPU each for eight: none gets one that another has, and none is left behind."""
    await until_offered(world, "hgx-h100-0", 8)
    names = [f"many-{number}" for number in range(40)]
    short: Json = {"restartPolicy": "Never", "container": {"command": ["sleep", "0.3"]}}
    await world.apply(*(pod(name, count=1, **short) for name in names))
    for name in names:
        await world.until_pod(name, lambda found: found["status"]["phase"] in ("Succeeded", "Failed"))
    phases = [(await world.pod(name) or {})["status"]["phase"] for name in names]
    assert phases == ["Succeeded"] * len(names)
    await asyncio.gather(*(world.delete(name) for name in names))
    for name in names:
        await world.until_gone(name)
    assert not [key for node in world.nodes.values() for key in node.kubelet.pods if key.startswith("default/many")]


async def test_a_node_may_not_write_what_is_anothers(world: World) -> None:
    """Kubelets are what they are on a cluster: nodes, by the Node authorizer and NodeRestriction."""
    async with connect(world.nodes["t4-0"].spec.kubeconfig) as client:
        with pytest.raises(ApiServerError) as refused:
            await client.send("PATCH", "/api/v1/nodes/hgx-h100-0/status", {"status": {"capacity": {"a.b/c": "1"}}})
    assert refused.value.code == 403
