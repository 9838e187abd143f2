"""The startup taint of our Node: lifted when the node's devices are served.

Whoever makes the node puts it there, so that no pod comes before the GPUs can be had: an autoscaler's template, or
`kubelet --register-with-taints`. We lift it while the condition `gpuplane.io/GPUReady` is "True", and never put it on.

`spec.taints` is one list to the API server (atomic for server-side apply), which others write too. So it is changed by
a JSON patch that tests the entry's key before it removes it: if the list has changed since it was read, nothing
happens, and it is read again.
"""

from typing import TYPE_CHECKING, Any

from gpuplane.kubernetes.objects import ApiNode
from gpuplane.node.apiserver.keeper import node_settings
from gpuplane.node.apiserver.node import NODES_PATH
from gpuplane.node.core.reports.readycondition import ready_condition
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import STARTUP_TAINT_PART

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient


class StartupTaint:
    """What `keeper.keep` keeps: a Node of this name without the taint, once its devices are served."""

    part = STARTUP_TAINT_PART
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

    async def write(self, client: "ApiClient", wanted: str) -> str:
        spec = (await client.get(self._path, ApiNode)).spec
        operations: list[dict[str, Any]] = []
        for place, taint in reversed([*enumerate(spec.taints or ())]):
            if taint.key == wanted:
                path = f"/spec/taints/{place}"
                test = {"op": "test", "path": f"{path}/key", "value": wanted}
                operations += (test, {"op": "remove", "path": path})
        if operations:
            await client.send("PATCH", self._path, operations, patch="json")
        return f"Node {self._name} has no taint {wanted}: its devices are served"

    async def remove(self, client: "ApiClient") -> None:
        """There is nothing of ours: the taint is not put on again."""
