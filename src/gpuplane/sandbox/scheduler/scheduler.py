"""A scheduler for a cluster that has no kube-scheduler: it writes down what `scheduling.py` decides.

A claim gets the scheduler's finalizer, then its allocation and its reservation in one write; then the pod gets its node
by a binding. A pod that fits nowhere gets a condition that says why.

Source: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go of 1.36 (bindClaim).
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.sandbox.claimcontroller import DELETE_PROTECTION_FINALIZER
from gpuplane.sandbox.controllers import change, list_objects, run_controller
from gpuplane.sandbox.scheduler.objects import (
    Allocation,
    DeviceClass,
    Json,
    ResourceClaim,
    ResourceSlice,
    from_objects,
    to_object,
)
from gpuplane.sandbox.scheduler.scheduling import Cluster, Placement, Unschedulable, decide

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

SCHEDULER_NAME = "default-scheduler"
GROUP_PATH = "/apis/resource.k8s.io/v1"
TAINTED_TEXT, NOT_SELECTED_TEXT = (
    "node(s) had untolerated taint(s)",
    "node(s) didn't match Pod's node affinity/selector",
)
CLAIM_ELSEWHERE_TEXT, CANNOT_ALLOCATE_TEXT = "resourceclaim not available on the node", "cannot allocate all claims"


def run_scheduler(kubeconfig: Path, name: str = SCHEDULER_NAME) -> AbstractAsyncContextManager[None]:
    """Schedule the pods that name this scheduler, until the block ends. Raises MissingLibrary at its end."""

    async def settle(client: "ApiClient") -> None:
        await schedule_pods(client, name)

    return run_controller(kubeconfig, settle)


async def schedule_pods(client: "ApiClient", name: str = SCHEDULER_NAME) -> None:
    """Decide on each pod that has no node, the oldest first. Raises ApiServerError."""
    pods = await list_objects(client, "/api/v1/pods")
    waiting = [each for each in pods if _is_waiting(each, name)]
    if not waiting:
        return
    claims = await list_objects(client, f"{GROUP_PATH}/resourceclaims")
    there = Cluster(
        from_objects(await list_objects(client, "/api/v1/nodes"), ApiNode),
        slices=from_objects(await list_objects(client, f"{GROUP_PATH}/resourceslices"), ResourceSlice),
        classes=from_objects(await list_objects(client, f"{GROUP_PATH}/deviceclasses"), DeviceClass),
    )
    for pod in sorted(waiting, key=lambda each: str(each["metadata"].get("creationTimestamp"))):
        held = {"pods": from_objects(pods, ApiPod), "claims": from_objects(claims, ResourceClaim)}
        try:
            placement = decide(msgspec.structs.replace(there, **held), from_objects([pod], ApiPod)[0])
        except Unschedulable as why:
            await _tell(client, pod, why)
        else:
            if placement is not None:
                await _bind(client, pod, placement, claims)
                pods = await list_objects(client, "/api/v1/pods")
                claims = await list_objects(client, f"{GROUP_PATH}/resourceclaims")


def _is_waiting(pod: Json, name: str) -> bool:
    return (
        not pod["spec"].get("nodeName")
        and not pod["metadata"].get("deletionTimestamp")
        and not pod["spec"].get("schedulingGates")
        and pod["spec"].get("schedulerName", SCHEDULER_NAME) == name
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    )


async def _bind(client: "ApiClient", pod: Json, placement: Placement, claims: Sequence[Json]) -> None:
    """Allocate the claims of a pod, reserve them for it, and give it its node."""
    made = {
        each["name"]: each.get("resourceClaimName") for each in pod.get("status", {}).get("resourceClaimStatuses") or ()
    }
    wanted = pod["spec"].get("resourceClaims") or ()
    names = {each.get("resourceClaimName") or made.get(each["name"]) for each in wanted}
    space = pod["metadata"]["namespace"]
    for each in claims:
        if each["metadata"]["namespace"] == space and each["metadata"]["name"] in names:
            await _reserve(client, each, pod, placement.allocations.get(f"{space}/{each['metadata']['name']}"))
    target = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": placement.node}}
    body = {**target, "metadata": {"name": pod["metadata"]["name"]}}
    await client.send("POST", f"{_pod_path(pod)}/binding", body)


async def _reserve(client: "ApiClient", claim: Json, pod: Json, allocation: Allocation | None) -> None:
    """Allocate a claim where it is not, and reserve it for a pod."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    path = f"{GROUP_PATH}/namespaces/{metadata['namespace']}/resourceclaims/{metadata['name']}"
    reserved = status.get("reservedFor") or []
    uid = pod["metadata"]["uid"]
    if not any(each["uid"] == uid for each in reserved):
        reserved = [*reserved, {"resource": "pods", "name": pod["metadata"]["name"], "uid": uid}]
    new = {**status, "reservedFor": reserved} | ({"allocation": to_object(allocation)} if allocation else {})
    finalizers = metadata.get("finalizers") or []
    if allocation is not None and DELETE_PROTECTION_FINALIZER not in finalizers:
        value = [*finalizers, DELETE_PROTECTION_FINALIZER]
        await change(client, path, claim, {"op": "add", "path": "/metadata/finalizers", "value": value})
        claim = await client.get(path, Json)
    if new != status:
        await change(client, f"{path}/status", claim, {"op": "add", "path": "/status", "value": new})


async def _tell(client: "ApiClient", pod: Json, why: Unschedulable) -> None:
    """Say in the pod's status why it has no node, once."""
    told = [each for each in (pod.get("status") or {}).get("conditions") or () if each["type"] == "PodScheduled"]
    if [(each.get("reason"), each.get("message")) for each in told] == [(why.reason, f"{why}")]:
        return
    new = {"type": "PodScheduled", "status": "False", "reason": why.reason, "message": f"{why}"}
    new["lastTransitionTime"] = f"{datetime.now(UTC):%FT%TZ}"
    await client.send("PATCH", f"{_pod_path(pod)}/status", {"status": {"conditions": [new]}})


def _pod_path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
