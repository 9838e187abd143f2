"""What kube-controller-manager does for claims, in a cluster that has none: claims of pods come and go with them.

- For a pod that names a template it makes a claim, and tells the pod the claim's name.
- A reservation ends with its pod. With the last one the claim's allocation ends, and the finalizer of the scheduler.
- A claim that was made for a pod goes when that pod is gone or done.

Sources: pkg/controller/resourceclaim/controller.go; a claim of a template as Kubernetes 1.36.2 made it. Left out:
events, claims of workloads, extended resources.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.sandbox.controllers import Json, change, list_objects, run_controller

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that says which claim of its pod it is."""
DELETE_PROTECTION_FINALIZER = "resource.kubernetes.io/delete-protection"
"""The scheduler sets it before it allocates a claim."""
GROUP_PATH = "/apis/resource.k8s.io/v1"


def run_claim_controller(kubeconfig: Path) -> AbstractAsyncContextManager[None]:
    """Do it until the block ends."""
    return run_controller(kubeconfig, settle_claims)


async def settle_claims(client: "ApiClient") -> None:
    """Do all that there is to do now. A claim that the server refuses is not made. Raises ApiServerError."""
    claims = await list_objects(client, f"{GROUP_PATH}/resourceclaims")
    pods = await list_objects(client, "/api/v1/pods")  # after the claims: a claim's pod is older than it
    for pod in pods:
        if not _is_done(pod):
            await _make_claims(client, pod, claims)
    by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    for claim in claims:
        await _settle_claim(client, claim, by_uid)


async def _make_claims(client: "ApiClient", pod: Json, claims: Sequence[Json]) -> None:
    """Make the claims of a pod that are not there, and tell it of them."""
    wanted = [each for each in pod["spec"].get("resourceClaims") or () if each.get("resourceClaimTemplateName")]
    known = {
        each["metadata"].get("annotations", {}).get(POD_CLAIM_NAME): str(each["metadata"]["name"])
        for each in claims
        if _owner_uid(each) == pod["metadata"]["uid"]
    }
    for each in wanted:
        if each["name"] not in known:
            with suppress(ApiServerError):  # there is no such template, or its claim is refused
                known[each["name"]] = await _make_claim(client, pod, each)
    statuses = [
        {"name": each["name"], "resourceClaimName": known[each["name"]]} for each in wanted if each["name"] in known
    ]
    if statuses != ((pod.get("status") or {}).get("resourceClaimStatuses") or []):
        status = {"status": {"resourceClaimStatuses": statuses}}
        await client.send("PATCH", f"{_object_path(pod, '/api/v1', 'pods')}/status", status)


async def _make_claim(client: "ApiClient", pod: Json, wanted: Json) -> str:
    """The name of a new claim of a pod. Raises ApiServerError."""
    namespace, name, uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
    space = f"{GROUP_PATH}/namespaces/{namespace}"
    found = await client.get(f"{space}/resourceclaimtemplates/{wanted['resourceClaimTemplateName']}", Json)
    metadata = {key: dict(found["spec"].get("metadata", {}).get(key) or {}) for key in ("labels", "annotations")}
    metadata["annotations"][POD_CLAIM_NAME] = wanted["name"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {**metadata, "generateName": f"{name}-{wanted['name']}-", "ownerReferences": [owner]},
        "spec": found["spec"]["spec"],
    }
    made = await client.send("POST", f"{space}/resourceclaims", body, shape=Json)
    return str(made["metadata"]["name"])


async def _settle_claim(client: "ApiClient", claim: Json, pods: dict[str, Json]) -> None:
    """End what has ended of a claim."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    path = _object_path(claim, GROUP_PATH, "resourceclaims")
    reserved, finalizers = status.get("reservedFor") or [], metadata.get("finalizers") or []
    kept = [each for each in reserved if each["resource"] != "pods" or not _has_finished(pods.get(each["uid"]))]
    ended, marked, owner = len(kept) < len(reserved), bool(metadata.get("deletionTimestamp")), _owner_uid(claim)
    goes = not kept and bool(owner) and not marked and _has_finished(pods.get(owner))
    if not kept and DELETE_PROTECTION_FINALIZER in finalizers and (ended or marked or goes):
        await change(client, f"{path}/status", claim, {"op": "add", "path": "/status", "value": {}})
        left = [each for each in finalizers if each != DELETE_PROTECTION_FINALIZER]
        claim = await client.get(path, Json)
        await change(client, path, claim, {"op": "add", "path": "/metadata/finalizers", "value": left})
    elif ended:
        value = {**status, "reservedFor": kept}
        await change(client, f"{path}/status", claim, {"op": "add", "path": "/status", "value": value})
    if goes:
        with suppress(ApiServerError):  # it went with its finalizer
            await client.send("DELETE", path)


def _owner_uid(claim: Json) -> str:
    """The UID of the pod for which a claim was made; "" of none."""
    owners = claim["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each["kind"] == "Pod" and each.get("controller")), "")


def _has_finished(pod: Json | None) -> bool:
    return pod is None or _is_done(pod)


def _is_done(pod: Json) -> bool:
    """Whether none of its containers runs or ever will."""
    marked = pod["metadata"].get("deletionTimestamp") and not (pod.get("spec") or {}).get("nodeName")
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or bool(marked)


def _object_path(found: Json, prefix: str, plural: str) -> str:
    return f"{prefix}/namespaces/{found['metadata']['namespace']}/{plural}/{found['metadata']['name']}"
