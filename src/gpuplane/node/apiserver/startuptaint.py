"""The startup taint of our Node: lifted when the node's devices are served.

Whoever makes the node puts it there, so that no pod comes before the GPUs can be had: an autoscaler's template, or
`kubelet --register-with-taints`. We lift it while the condition `gpuplane.io/GPUReady` is "True", and never put it on.

`spec.taints` is one list to the API server (atomic for server-side apply), which others write too. So it is changed by
a JSON patch that tests the very entry before it removes it: if the list has changed since it was read, nothing happens,
and it is read again.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from gpuplane.node.apiserver.keeper import node_settings
from gpuplane.node.apiserver.node import NODES_PATH
from gpuplane.node.core.reports.readycondition import ready_condition
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import STARTUP_TAINT

if TYPE_CHECKING:
    from httpx2 import AsyncClient


class _Spec(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None


class _Node(msgspec.Struct):
    spec: _Spec | None = None


class StartupTaint:
    """What `keeper.keep` keeps: a Node of this name without the taint, once its devices are served."""

    part = STARTUP_TAINT
    rights = "deploy/components/startup-taint"
    was_ours = False
    is_urgent = False

    def __init__(self, name: str) -> None:
        self._name, self._path = name, f"{NODES_PATH}/{name}"

    def is_wanted(self, snapshot: Snapshot) -> bool:
        return bool(node_settings(snapshot).startup_taint)

    def inputs(self, snapshot: Snapshot) -> object:
        said = ready_condition(snapshot)
        return said is not None and said.status == "True"

    async def derive(self, snapshot: Snapshot) -> str | None:
        """The key of the taint that has to go; None while the devices are not served."""
        return node_settings(snapshot).startup_taint if self.inputs(snapshot) else None

    async def write(self, client: "AsyncClient", wanted: str) -> str:
        from gpuplane.kubernetes.client.connection import JSON_PATCH, get_object, send_object

        spec = (await get_object(client, self._path, _Node)).spec or _Spec()
        operations: list[dict[str, Any]] = []
        for place, taint in reversed([*enumerate(spec.taints or ())]):
            if taint.get("key") == wanted:
                path = f"/spec/taints/{place}"
                operations += ({"op": "test", "path": path, "value": taint}, {"op": "remove", "path": path})
        if operations:
            await send_object(client, "PATCH", self._path, operations, JSON_PATCH)
        return f"Node {self._name} has no taint {wanted}: its devices are served"

    async def remove(self, client: "AsyncClient") -> None:
        """There is nothing of ours: the taint is not put on again."""
