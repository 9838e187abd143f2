"""Metrics and health over HTTP."""

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from gpuplane.agent.node import Node
from gpuplane.agent.status import STUCK, Status, status
from gpuplane.model.config import Settings
from gpuplane.model.facts import Configured, Listed, Looked, Stood
from gpuplane.model.machine import Fault, Gpu, Machine
from gpuplane.model.snapshot import Condition, Snapshot

GPUS = (Gpu(index=0, uuid="GPU-a"), Gpu(index=1, uuid="GPU-b", faults=(Fault("gpu-lost", "gone"),)))


def ready() -> Node:
    """A node whose one resource kubelet reads."""
    node = Node(Snapshot())
    for fact in (Looked(Machine(gpus=GPUS)), Configured(Settings()), Listed((), 0.0)):
        node.tell(fact)
    node.tell(Stood("plugin/nvidia.com/gpu", Condition("ok")))
    return node


@asynccontextmanager
async def serving(node: Node) -> AsyncIterator[str]:
    """The status pages of a node, at the URL that this gives."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    task = asyncio.create_task(status(node, "127.0.0.1", port))
    await asyncio.sleep(0)
    yield f"http://127.0.0.1:{port}"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def get(url: str) -> tuple[int, str]:
    """(HTTP status, body)."""

    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    return await asyncio.to_thread(fetch)


async def test_ready_means_that_kubelet_reads_every_resource() -> None:
    """Ready with the plugin's condition ok; unready, with the reason, before."""
    async with serving(ready()) as url:
        assert await get(f"{url}/readyz") == (200, "ok\n")
    async with serving(Node(Snapshot())) as url:
        assert await get(f"{url}/readyz") == (503, "the machine has not been looked at yet\n")
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/nope"))[0] == 404


async def test_an_absent_driver_is_ready_with_the_reason_as_a_metric() -> None:
    """Nothing to advertise and the reason known: restarting the agent would cure nothing."""
    node = Node(Snapshot())
    node.tell(Looked(Machine(faults=(Fault("driver-absent", "no libnvidia-ml.so.1"),))))
    async with serving(node) as url:
        assert await get(f"{url}/readyz") == (200, "ok\n")
        body = (await get(f"{url}/metrics"))[1]

    assert 'gpuplane_waiting{reason="driver-absent: no libnvidia-ml.so.1"} 1.0' in body


async def test_the_metrics_are_prometheus_text() -> None:
    """Every family parses, and the figures are the snapshot's."""
    async with serving(ready()) as url:
        body = (await get(f"{url}/metrics"))[1]
    families = {family.name: family for family in text_string_to_metric_families(body)}

    devices = {sample.labels["health"]: sample.value for sample in families["gpuplane_devices"].samples}
    assert devices == {"healthy": 1, "unhealthy": 1}
    assert families["gpuplane_ready"].samples[0].value == 1


def test_a_stuck_event_loop_is_not_alive() -> None:
    """Liveness is the event loop's own turn, and nothing else."""
    pages = Status()
    assert pages.page("/healthz")[0].startswith("200")
    pages.made -= STUCK + 1

    assert pages.page("/healthz")[0].startswith("503")
