"""The scheduler beside the sandbox's API server: it writes down what is decided, as kube-scheduler does.

A claim gets the scheduler's finalizer, then its allocation and its reservation in one write; the pod gets its node by a
binding, once every claim is ready for it; a pod that fits nowhere gets a condition that says why. Pods without claims,
and those of other schedulers, are left alone.

Source: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go of 1.36 (bindClaim).
"""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

import msgspec

from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.sandbox.apiserver.controllers import run_controller, send_as_client
from gpuplane.sandbox.apiserver.objects import Json, format_time, parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.claimcontroller import DELETE_PROTECTION_FINALIZER
from gpuplane.sandbox.scheduler.claims import Allocation, Consumer, ResourceClaim
from gpuplane.sandbox.scheduler.objects import Kind, from_object, to_object
from gpuplane.sandbox.scheduler.scheduling import Cluster, Decision, decide, find_claims, is_ready_to_bind
from gpuplane.sandbox.scheduler.slices import DeviceClass, ResourceSlice

SCHEDULER_NAME = "default-scheduler"
GROUP_PATH = "/apis/resource.k8s.io/v1"
REASON_BY_OUTCOME = {"unschedulable": "Unschedulable", "failed": "SchedulerError"}
"""Outcome → the reason of the condition PodScheduled."""


def run_scheduler(server: ApiServer) -> AbstractAsyncContextManager[None]:
    """Schedule pods after each request to the server, until the block ends. Raises MissingLibrary at its end."""
    return run_controller(server, schedule_pods)


def schedule_pods(server: ApiServer) -> bool:
    """Decide on each pod that has no node, in the order in which they were made; whether something was written."""
    wrote = False
    for found in sorted(_waiting_pods(server), key=lambda each: int(each["metadata"]["resourceVersion"])):
        wrote = _schedule(server, from_object(found, ApiPod), found) or wrote
    return wrote


def _waiting_pods(server: ApiServer) -> list[Json]:
    return [
        each
        for each in server.objects.list(parse_path("/api/v1/pods"))
        if each["spec"].get("resourceClaims")
        and not each["spec"].get("nodeName")
        and not each["metadata"].get("deletionTimestamp")
        and each["spec"].get("schedulerName", SCHEDULER_NAME) == SCHEDULER_NAME
        and (each.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]


def _schedule(server: ApiServer, pod: ApiPod, found: Json) -> bool:
    cluster = Cluster(
        _read_all(server, "/api/v1/nodes", ApiNode),
        _read_all(server, f"{GROUP_PATH}/resourceslices", ResourceSlice),
        _read_all(server, f"{GROUP_PATH}/deviceclasses", DeviceClass),
        _read_all(server, f"{GROUP_PATH}/resourceclaims", ResourceClaim),
    )
    decision = decide(cluster, pod)
    if decision.outcome == "waiting":
        return False
    if decision.outcome != "scheduled":
        return _report_unschedulable(server, pod, found, decision)
    claims = find_claims(cluster, pod) or ()
    kept = [_reserve(server, each, pod, decision.allocations.get(each.metadata.name)) for each in claims]
    if not all(is_ready_to_bind(claim) for claim, _ in kept):
        return any(wrote for _, wrote in kept)
    body = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": decision.node}}
    _send(server, "POST", f"{_pod_path(pod)}/binding", {**body, "metadata": {"name": pod.metadata.name}})
    return True


def _reserve(
    server: ApiServer, claim: ResourceClaim, pod: ApiPod, allocation: Allocation | None
) -> tuple[ResourceClaim, bool]:
    """Allocate a claim where it is not, and reserve it for a pod: as it is then, and whether it was written."""
    consumer = Consumer("pods", pod.metadata.name, pod.metadata.uid)
    if allocation is None and any(each.uid == pod.metadata.uid for each in claim.status.reserved_for):
        return claim, False
    path = f"{GROUP_PATH}/namespaces/{claim.metadata.namespace}/resourceclaims/{claim.metadata.name}"
    finalizers = claim.metadata.finalizers or []
    if allocation is not None and DELETE_PROTECTION_FINALIZER not in finalizers:
        _send(server, "PATCH", path, {"metadata": {"finalizers": [*finalizers, DELETE_PROTECTION_FINALIZER]}})
    status: Json = {"reservedFor": [to_object(each) for each in (*claim.status.reserved_for, consumer)]}
    if allocation is not None:
        now = format_time(datetime.now(UTC))
        status["allocation"] = to_object(msgspec.structs.replace(allocation, allocation_timestamp=now))
    return from_object(_send(server, "PATCH", f"{path}/status", {"status": status}), ResourceClaim), True


def _report_unschedulable(server: ApiServer, pod: ApiPod, found: Json, decision: Decision) -> bool:
    """Say in the pod's status why it has no node, and drop the allocation that keeps it from all; whether it wrote."""
    conditions = (found.get("status") or {}).get("conditions") or []
    reason = REASON_BY_OUTCOME[decision.outcome]
    told = [(each.get("reason"), each.get("message")) for each in conditions if each["type"] == "PodScheduled"]
    if decision.deallocate:
        path = f"{GROUP_PATH}/namespaces/{pod.metadata.namespace}/resourceclaims/{decision.deallocate}/status"
        _send(server, "PATCH", path, {"status": {"allocation": None}})
    if told == [(reason, decision.message)]:
        return bool(decision.deallocate)
    others = [each for each in conditions if each["type"] != "PodScheduled"]
    new = {"type": "PodScheduled", "status": "False", "reason": reason, "message": decision.message}
    new["lastTransitionTime"] = format_time(datetime.now(UTC))
    _send(server, "PATCH", f"{_pod_path(pod)}/status", {"status": {"conditions": [*others, new]}})
    return True


def _pod_path(pod: ApiPod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _read_all(server: ApiServer, path: str, kind: type[Kind]) -> tuple[Kind, ...]:
    return tuple(from_object(each, kind) for each in server.objects.list(parse_path(path)))


def _send(server: ApiServer, method: str, path: str, body: Json) -> Json:
    return send_as_client(server, "kube-scheduler", method, path, body)
