"""Dynamic Resource Allocation: how soon a claim is prepared, what that costs, and what it leaves.

Kubelet's part is a bare gRPC client on the driver's socket; the API server is the sandbox's, with plain HTTP.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil

from bench.idle import pss
from bench.rig import EIGHT, GPU, described, running
from bench.row import Measure, Row
from gpuplane.node.kubelet.protocols import dra_v1_pb2 as pb
from gpuplane.node.kubelet.protocols.dra_v1_pb2_grpc import DRAPluginStub
from gpuplane.sandbox.agent import Agent
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet import Kubelet

DRIVER, NODE = "gpu.nvidia.com", "/api/v1/nodes/n1"
CONFIG = "version: v1\ndra: {enabled: true}\n"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CALLS, CLAIMS, SETTLES, MANY, STARTS = 1000, 300, 2000, 12_000, 10
REST = 0.1
"""Seconds between two claims: 200 a minute are one each 0.3 s."""
IDLE = 60.0
"""Seconds."""


class Bench(NamedTuple):
    """An agent that serves claims, its kubelet's calls, and its API server."""

    plugin: Any
    server: ApiServer
    agent: Agent
    root: Path
    uuids: tuple[str, ...]


@asynccontextmanager
async def serving(profile: str = EIGHT) -> AsyncIterator[Bench]:
    """An agent that has registered its driver."""
    with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
        root = Path(directory)
        async with ApiServer() as server:
            flags = _flags(server, root)
            uuids = tuple(gpu.uuid for gpu in described(profile).gpus or ())
            async with (
                running(profile, len(uuids), *flags, config=CONFIG) as (kubelet, agent, _),
                plugin_of(kubelet) as plugin,
            ):
                yield Bench(plugin, server, agent, root, uuids)


def _flags(server: ApiServer, root: Path) -> tuple[object, ...]:
    server.put(NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    (root / "kubeconfig").write_text(server.kubeconfig())
    return "--node-name", "n1", "--kubeconfig", root / "kubeconfig", "--cdi-dir", root / "cdi"


@asynccontextmanager
async def plugin_of(kubelet: Kubelet) -> AsyncIterator[Any]:
    """The driver's service, once it answers."""
    socket = kubelet.root / "plugins" / DRIVER / "dra.sock"
    async with asyncio.timeout(30):
        while not socket.exists():  # noqa: ASYNC110 (its agent is another process)
            await asyncio.sleep(0.005)
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        plugin = DRAPluginStub(channel)
        await plugin.NodePrepareResources(pb.NodePrepareResourcesRequest(), wait_for_ready=True)
        yield plugin


def create(server: ApiServer, name: str, uuid: str) -> pb.Claim:
    """A claim that the scheduler has allocated a GPU."""
    device = uuid.lower()
    result = {"request": "gpu", "driver": DRIVER, "pool": f"n1/{device}", "device": device}
    path = f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{name}"
    server.put(
        path,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]}},
            "status": {
                "allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "train", "uid": "1"}],
            },
        },
    )
    return pb.Claim(namespace="default", name=name, uid=server.objects.get(parse_path(path))["metadata"]["uid"])


async def prepare(plugin: Any, claim: pb.Claim) -> pb.NodePrepareResourceResponse:
    """Prepare a claim. Raises RuntimeError where it is refused."""
    answer = await plugin.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=[claim]))
    if answer.claims[claim.uid].error:
        raise RuntimeError(answer.claims[claim.uid].error)
    return answer.claims[claim.uid]  # type: ignore[no-any-return]


async def unprepare(plugin: Any, claim: pb.Claim) -> None:
    """Unprepare a claim. Raises RuntimeError where that fails."""
    answer = await plugin.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=[claim]))
    if answer.claims[claim.uid].error:
        raise RuntimeError(answer.claims[claim.uid].error)


async def seconds(call: Callable[[], Awaitable[object]]) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    await call()
    return time.perf_counter() - began


async def preparing() -> list[Row]:
    """Prepare of a claim for a whole GPU"""
    first, again = list[float](), list[float]()
    async with serving() as bench:
        empty = [
            await seconds(lambda: bench.plugin.NodePrepareResources(pb.NodePrepareResourcesRequest()))
            for _ in range(CALLS)
        ]
        for number in range(CLAIMS):
            claim = create(bench.server, f"claim-{number}", bench.uuids[number % len(bench.uuids)])
            first.append(await seconds(lambda claim=claim: prepare(bench.plugin, claim)))  # type: ignore[misc]
            again.append(await seconds(lambda claim=claim: prepare(bench.plugin, claim)))  # type: ignore[misc]
            await unprepare(bench.plugin, claim)
            await asyncio.sleep(REST)
        requests = [each for each in bench.server.requests if "/resourceclaims/" in each]
    bare, new, known = (statistics.median(each) * 1e3 for each in (empty, first, again))
    p99 = sorted(first)[int(len(first) * 0.99)] * 1e3
    how = f"{new:.2f} ms over {bare:.2f} ms; {CLAIMS} claims, each fetched and written to disk; again: {known:.2f} ms"
    return [
        Row("Prepare of a new claim / an empty call, p50", new / bare, 4.0, "×", how),
        Row("Prepare of a claim that is prepared / an empty call, p50", known / bare, 4.0, "×"),
        Row("Prepare of a new claim, p99", p99, 15.0, "ms", f"max {max(first) * 1e3:.1f} ms"),
        Row("requests to the API server for each claim", len(requests) / CLAIMS, 4.0, "requests", "GET and its status"),
    ]


async def publishing() -> list[Row]:
    """from a look at 16 GPUs to their slices, and an idle minute after that"""
    times = []
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
            root, machine = Path(directory), Path(directory) / "machine.yaml"
            machine.write_text("gpus: []\n")
            async with ApiServer() as server:
                flags = _flags(server, root)
                (root / "config.yaml").write_text(CONFIG)
                async with (
                    Kubelet(root / "k") as kubelet,
                    Agent("--machine", machine, "--config", root / "config.yaml", "--kubelet-root", root / "k",
                          "--state-dir", root / "s", *flags),
                    plugin_of(kubelet),
                ):  # fmt: skip
                    await asyncio.sleep(1.0)
                    new = machine.with_suffix(".new")
                    new.write_text("".join(["gpus:\n", *(_gpu(n) for n in range(16))]))
                    new.replace(machine)
                    await kubelet.until_capacity(GPU, 16, 16, deadline=30)
                    began = time.perf_counter()
                    await server.until(lambda server=server: len(slices(server)) == 16)  # type: ignore[misc]
                    times.append(time.perf_counter() - began)
    figure = statistics.median(times) * 1e3
    how = f"after kubelet has them; median of {STARTS}, max {max(times) * 1e3:.0f} ms"
    return [Row("slices of 16 GPUs published after the look", figure, 200, "ms", how), await _idle()]


def slices(server: ApiServer) -> list[Mapping[str, Any]]:
    """What is published."""
    return list(server.objects.list(parse_path(SLICES)))


def _gpu(number: int) -> str:
    uuid = f"GPU-00000000-0000-0000-0000-{number:012}"
    return f"  - {{index: {number}, uuid: {uuid}, model: NVIDIA H100 80GB HBM3, memory_mib: 81559}}\n"


async def _idle() -> Row:
    async with serving() as bench:
        await bench.server.until(lambda: len(slices(bench.server)) == len(bench.uuids))
        await asyncio.sleep(5.0)
        before = len(bench.server.requests)
        await asyncio.sleep(IDLE)
        asked = [each for each in bench.server.requests[before:] if "resource.k8s.io" in each]
    return Row("writes and requests of DRA while nothing changes", len(asked), 0, "requests", f"in {IDLE:.0f} s")


async def costs() -> list[Row]:
    """memory and start with DRA, beside the same without"""
    memory: dict[bool, list[float]] = {True: [], False: []}
    starts: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(STARTS):
        for dra in (True, False):
            with tempfile.TemporaryDirectory(prefix="gpuplane-bench-") as directory:
                async with ApiServer() as server:
                    flags = _flags(server, Path(directory))
                    began = time.perf_counter()
                    config = CONFIG if dra else "version: v1\n"
                    async with running(EIGHT, 8, *flags, config=config) as (kubelet, agent, seconds):
                        if dra:
                            async with plugin_of(kubelet):
                                seconds = time.perf_counter() - began
                        starts[dra].append(seconds)
                        await asyncio.sleep(3.0)
                        memory[dra].append(pss(agent.process.pid))
    more = statistics.median(memory[True]) - statistics.median(memory[False])
    ratio = statistics.median(starts[True]) / statistics.median(starts[False])
    how = f"{statistics.median(memory[True]):.1f} MB over {statistics.median(memory[False]):.1f} MB, with an API server"
    took = f"{statistics.median(starts[True]):.3f} s over {statistics.median(starts[False]):.3f} s"
    return [
        Row("memory (PSS) more with DRA", more, 8.0, "MB", how),
        Row("start to registered, plugin and DRA / plugin alone", ratio, 1.25, "×", f"{took}; medians of {STARTS}"),
    ]


async def lasting() -> list[Row]:
    """as many claims as 200 a minute are in an hour"""
    async with serving() as bench:
        process, sizes = psutil.Process(bench.agent.process.pid), list[float]()
        began = time.perf_counter()
        for number in range(SETTLES + MANY):
            claim = create(bench.server, f"claim-{number}", bench.uuids[number % len(bench.uuids)])
            await prepare(bench.plugin, claim)
            await unprepare(bench.plugin, claim)
            bench.server.put(f"/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/{claim.name}", None)
            bench.server.requests.clear()
            if number >= SETTLES and number % 1000 == 0:
                bench.server.expire_history()
                sizes.append(process.memory_info().rss / 1e6)
        rate = (SETTLES + MANY) / (time.perf_counter() - began)
        left = [each for each in (bench.root / "cdi").iterdir() if "claim" in each.name]
        left += [each for each in bench.root.rglob("claims/*") if each.is_file()]
    grown = statistics.mean(sizes[-3:]) - statistics.mean(sizes[:3])
    how = f"after {SETTLES}: {sizes[0]:.1f} to {sizes[-1]:.1f} MB; {rate:.0f} claims a second"
    return [
        Row(f"memory that {MANY} claims leave", grown, 1.0, "MB", how),
        Row("files that they leave", len(left), 0, "files"),
    ]


MEASURES: tuple[Measure, ...] = (preparing, publishing, costs, lasting)
