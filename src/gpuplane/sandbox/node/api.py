"""What a played node asks of its API server and writes there, as the user `system:node:NAME`."""

import asyncio
from base64 import b64decode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.sandbox.changes import finish_despite_cancellation
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node.environment import Kind
from gpuplane.sandbox.node.objects import Json, NodeObject, PodObject

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
TRIES_OF_FORBIDDEN, SECONDS_BETWEEN_TRIES = 20, 0.1
CLAIMS_GROUP_PATH = "/apis/resource.k8s.io/v1"
PLAYED = "gpuplane.io/played"
"""The annotation of a pod in which no program runs."""


class NodeApi:
    """Requests of one node. It is a `ClaimSource` too. What a pod asks for is not cut off when kubelet ends, or the pod
    does: that would leave a socket open."""

    def __init__(self, client: "ApiClient", node_name: str) -> None:
        self.client, self.node_name = client, node_name

    # what pods refer to

    async def fetch(self, kind: Kind, namespace: str, name: str) -> Mapping[str, bytes] | None:
        """The data of a ConfigMap or Secret; None where there is none. Raises KubeletError."""
        try:
            found = await self._get_referenced(f"/api/v1/namespaces/{namespace}/{kind}s/{name}")
        except ApiServerError as error:
            if error.code == NOT_FOUND:
                return None
            raise _kubelet_error(error) from None
        if kind == "secret":
            return {key: b64decode(value) for key, value in (found.get("data") or {}).items()}
        text = {key: value.encode() for key, value in (found.get("data") or {}).items()}
        return text | {key: b64decode(value) for key, value in (found.get("binaryData") or {}).items()}

    async def make_token(self, pod: PodObject, audience: str, seconds: int) -> str:
        """A token of a pod's service account, which ends with the pod. Raises KubeletError."""
        account = pod.spec.get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [audience] if audience else [],
                "expirationSeconds": seconds,
                "boundObjectRef": bound,
            },
        }
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/serviceaccounts/{account}/token"
        try:
            asked = self.client.send("POST", path, body, shape=dict[str, Any])
            return str((await finish_despite_cancellation(asked))["status"]["token"])
        except ApiServerError as error:
            raise KubeletError(f"failed to fetch token: {_kubelet_error(error)}") from None

    # claims

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Raises KubeletError."""
        try:
            path = f"{CLAIMS_GROUP_PATH}/namespaces/{namespace}/resourceclaims/{name}"
            return await self._get_referenced(path)
        except ApiServerError as error:
            raise _kubelet_error(error) from None

    async def _get_referenced(self, path: str) -> Json:
        """An object that a pod of this node refers to. The Node authorizer knows of a new pod a little later than this
        node does, and forbids it until then. Raises ApiServerError."""
        for _ in range(TRIES_OF_FORBIDDEN):
            try:
                return await finish_despite_cancellation(self.client.get(path, dict[str, Any]))
            except ApiServerError as error:
                if error.code != FORBIDDEN:
                    raise
                await asyncio.sleep(SECONDS_BETWEEN_TRIES)
        return await finish_despite_cancellation(self.client.get(path, dict[str, Any]))

    async def delete_slices(self, driver: str) -> None:
        """Raises KubeletError."""
        selector = f"spec.nodeName={self.node_name}" + (f",spec.driver={driver}" if driver else "")
        try:
            path = f"{CLAIMS_GROUP_PATH}/resourceslices"
            await self.client.send("DELETE", path, parameters={"fieldSelector": selector})
        except ApiServerError as error:
            raise _kubelet_error(error) from None

    # pods

    async def write_status(self, pod: PodObject, status: Json, is_played: bool) -> PodObject | None:
        """The pod with this status; None where it is gone, or another one has its name. Raises ApiServerError."""
        metadata: Json = {"uid": pod.metadata.uid}
        if is_played:
            metadata["annotations"] = {PLAYED: "true"}
        try:
            body = {"metadata": metadata, "status": _replacing_addresses(status)}
            return await self.client.send("PATCH", f"{pod.path}/status", body, shape=PodObject)
        except ApiServerError as error:
            if error.code in (NOT_FOUND, CONFLICT):
                return None
            raise

    async def delete(self, pod: PodObject) -> None:
        """Remove a pod whose containers have ended. Raises ApiServerError."""
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.metadata.uid}}
        try:
            await self.client.send("DELETE", pod.path, options)
        except ApiServerError as error:
            if error.code not in (NOT_FOUND, CONFLICT):
                raise

    async def write_event(self, event: Json) -> None:
        """A new Event, or one that counts up. Raises ApiServerError."""
        path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
        if event["count"] > 1:
            again = {key: event[key] for key in ("count", "lastTimestamp", "message")}
            try:
                await self.client.send("PATCH", f"{path}/{event['metadata']['name']}", again)
                return
            except ApiServerError as error:
                if error.code != NOT_FOUND:  # the API server forgets Events after an hour
                    raise
        await self.client.send("POST", path, event)

    # the node

    async def register(self, node: Json) -> NodeObject:
        """The Node object, made where there is none. Raises ApiServerError."""
        try:
            return await self.client.send("POST", "/api/v1/nodes", node, shape=NodeObject)
        except ApiServerError as error:
            if error.code != CONFLICT:
                raise
        return await self.client.get(f"/api/v1/nodes/{self.node_name}", NodeObject)

    async def write_node_status(self, status: Json) -> NodeObject:
        """The Node object with this status. Raises ApiServerError."""
        path = f"/api/v1/nodes/{self.node_name}/status"
        return await self.client.send("PATCH", path, {"status": status}, shape=NodeObject)

    async def renew_lease(self, lease: Json) -> None:
        """Raises ApiServerError."""
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        try:
            await self.client.send("PATCH", f"{path}/{self.node_name}", {"spec": lease["spec"]})
        except ApiServerError as error:
            if error.code != NOT_FOUND:
                raise
            await self.client.send("POST", path, lease)


def _replacing_addresses(status: Json) -> Json:
    """A strategic merge patch adds to these lists, unless it says that it replaces them."""
    lists: Json = {key: [{"$patch": "replace"}, *status[key]] for key in ("podIPs", "hostIPs") if key in status}
    return {**status, **lists}


def _kubelet_error(error: ApiServerError) -> KubeletError:
    return KubeletError(error.server_message or str(error))
