"""What a played node asks of its API server."""

from typing import Any

import pytest

from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node import api as node_api
from gpuplane.sandbox.node.api import FORBIDDEN, NodeApi


class Forbidding:
    """A client that is forbidden something so often."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def get(self, path: str, shape: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise ApiServerError("no relationship found between node 'n1' and this object", code=FORBIDDEN)
        return {"data": {"a": "b"}}


async def test_the_node_authorizer_may_know_of_a_pod_later_than_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_api, "SECONDS_BETWEEN_TRIES", 0.0)
    client: Any = Forbidding(times=2)
    assert await NodeApi(client, "n1").fetch("configmap", "ns", "c") == {"a": b"b"}
    client.times = 1000
    with pytest.raises(KubeletError, match="no relationship found"):
        await NodeApi(client, "n1").get_claim("ns", "c")
