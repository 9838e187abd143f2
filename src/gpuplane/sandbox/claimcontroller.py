"""What kube-controller-manager does for claims, beside the sandbox's API server: claims of pods come and go with them.

- For a pod that names a template it makes a claim, and tells the pod the claim's name.
- A reservation ends with its pod. With the last one the claim's allocation ends, and the finalizer of the scheduler.
- A claim that was made for a pod goes when that pod is gone or done.

Sources: pkg/controller/resourceclaim/controller.go; a claim of a template as Kubernetes 1.36.2 made it. Left out:
events, claims of workloads, extended resources.
"""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import msgspec

from gpuplane.sandbox.apiserver.controllers import run_controller, send_as_client
from gpuplane.sandbox.apiserver.objects import Json, StatusError, parse_path
from gpuplane.sandbox.apiserver.server import ApiServer

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that says which claim of its pod it is."""
DELETE_PROTECTION_FINALIZER = "resource.kubernetes.io/delete-protection"
"""The scheduler sets it before it allocates a claim."""
GROUP_PATH = "/apis/resource.k8s.io/v1"
PODS_PATH, CLAIMS_PATH = parse_path("/api/v1/pods"), parse_path(f"{GROUP_PATH}/resourceclaims")


def run_claim_controller(server: ApiServer) -> AbstractAsyncContextManager[None]:
    """Do it after each request to the server, until the block ends."""
    return run_controller(server, settle_claims)


def settle_claims(server: ApiServer) -> bool:
    """Do all that there is to do now; whether there was something. A claim that the server refuses is not made."""
    wrote = False
    while _settle_once(server):
        wrote = True
    return wrote


def _settle_once(server: ApiServer) -> bool:
    pods = list(server.objects.list(PODS_PATH))
    made = [_make_claims(server, pod) for pod in pods if not _is_done(pod)]
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    return any([*made, *(_settle_claim(server, claim, by_uid) for claim in list(server.objects.list(CLAIMS_PATH)))])


def _make_claims(server: ApiServer, pod: Json) -> bool:
    """Make the claims of a pod that are not there; whether one was made or told."""
    wanted = [each for each in pod["spec"].get("resourceClaims") or () if each.get("resourceClaimTemplateName")]
    names = {each["name"]: _claim_for(server, pod, each) for each in wanted}
    statuses = [{"name": name, "resourceClaimName": claim} for name, claim in names.items() if claim]
    if statuses == ((pod.get("status") or {}).get("resourceClaimStatuses") or []):
        return False
    _send(
        server,
        "PATCH",
        f"{_object_path(pod, '/api/v1', 'pods')}/status",
        {"status": {"resourceClaimStatuses": statuses}},
    )
    return True


def _claim_for(server: ApiServer, pod: Json, wanted: Json) -> str | None:
    """The name of a pod's claim, which is made where it is not there; None where it cannot be made."""
    namespace, name, uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
    for each in server.objects.list(msgspec.structs.replace(CLAIMS_PATH, namespace=namespace)):
        if (_owner_uid(each), each["metadata"].get("annotations", {}).get(POD_CLAIM_NAME)) == (uid, wanted["name"]):
            return str(each["metadata"]["name"])
    space = f"{GROUP_PATH}/namespaces/{namespace}"
    path = parse_path(f"{space}/resourceclaimtemplates/{wanted['resourceClaimTemplateName']}")
    if not server.objects.has(path):
        return None
    template = server.objects.get(path)["spec"]
    metadata = {key: dict(template.get("metadata", {}).get(key) or {}) for key in ("labels", "annotations")}
    metadata["annotations"][POD_CLAIM_NAME] = wanted["name"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {**metadata, "generateName": f"{name}-{wanted['name']}-", "ownerReferences": [owner]},
        "spec": template["spec"],
    }
    try:
        return str(_send(server, "POST", f"{space}/resourceclaims", body)["metadata"]["name"])
    except StatusError:
        return None


def _settle_claim(server: ApiServer, claim: Json, pods: dict[str, Json]) -> bool:
    """End what has ended of a claim; whether there was something."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    path = _object_path(claim, GROUP_PATH, "resourceclaims")
    reserved = status.get("reservedFor") or []
    kept = [each for each in reserved if each["resource"] != "pods" or not _has_finished(pods.get(each["uid"]))]
    ended, marked = len(kept) < len(reserved), bool(metadata.get("deletionTimestamp"))
    if not kept and DELETE_PROTECTION_FINALIZER in metadata.get("finalizers", ()) and (ended or marked):
        _send(server, "PATCH", f"{path}/status", {"status": {"reservedFor": None, "allocation": None}})
        left = [each for each in metadata["finalizers"] if each != DELETE_PROTECTION_FINALIZER]
        _send(server, "PATCH", path, {"metadata": {"finalizers": left or None}})
    elif ended:
        _send(server, "PATCH", f"{path}/status", {"status": {"reservedFor": kept or None}})
    owner = _owner_uid(claim)
    if not kept and owner and not marked and _has_finished(pods.get(owner)):
        with suppress(StatusError):  # it went with its finalizer
            _send(server, "DELETE", path)
        return True
    return ended


def _owner_uid(claim: Json) -> str:
    """The UID of the pod for which a claim was made; "" of none."""
    owners: Iterator[Any] = iter(claim["metadata"].get("ownerReferences") or ())
    return next((str(each["uid"]) for each in owners if each["kind"] == "Pod" and each.get("controller")), "")


def _has_finished(pod: Json | None) -> bool:
    return pod is None or _is_done(pod)


def _is_done(pod: Json) -> bool:
    """Whether none of its containers runs or ever will."""
    marked = pod["metadata"].get("deletionTimestamp") and not (pod.get("spec") or {}).get("nodeName")
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or bool(marked)


def _object_path(found: Json, prefix: str, plural: str) -> str:
    return f"{prefix}/namespaces/{found['metadata']['namespace']}/{plural}/{found['metadata']['name']}"


def _send(server: ApiServer, method: str, path: str, body: Json | None = None) -> Json:
    return send_as_client(server, "kube-controller-manager", method, path, body)
