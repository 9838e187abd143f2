"""Telemetry: what a scrape waits for, what samples cost, and whom they disturb.

The machine is the hardest that the budgets name: 8 GPUs in MIG mode with 7 MIG devices each, a pod on each, and a
process in each pod. It is shown by the stand-in of the driver's library where driver calls count.
"""

import asyncio
import gzip
import http.client
import random
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from bench.idle import pss, used
from bench.node import latencies
from bench.rig import GPU, Driven, described, driven, running
from bench.row import Measure, Row
from gpuplane.kubernetes.podref import ContainerId, PodRef
from gpuplane.node.agent.main import SWITCH_INTERVAL
from gpuplane.node.agent.node import Node
from gpuplane.node.agent.statuspages import StatusPages, serve_status_pages
from gpuplane.node.core.telemetry.sampling import sampling_request
from gpuplane.node.core.telemetry.state import TelemetryState, next_state
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved
from gpuplane.node.model.machine import Gpu, GpuProcess, Machine, MachineFile, Mig, MigDevice
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.telemetry import (
    SAMPLED_FIELDS,
    DescribedLoad,
    GpuSample,
    MigDeviceSample,
    ProcessSample,
    Sample,
)
from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from gpuplane.sandbox.kubelet.pods import pod
from gpuplane.service.servingoptions import ServingOptions
from tests.node.agent.test_metrics_and_health_pages import free_port

PARTS, MIG_RESOURCE = 7, "nvidia.com/mig-1g.10gb"
SCRAPES, PAUSE = 600, 0.02
COST_LASTS = 120.0  # seconds
PODS = 100_000
HEADERS = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"}
MIXED = "version: v1\nflags: {migStrategy: mixed}\n"
EVERYTHING = f"{MIXED}node: {{labels: node, annotation: true}}\nmetrics: {{podLabels: [app]}}\n"


def partitioned(profile: str = "hgx-h100") -> MachineFile:
    """A server whose GPUs are all in MIG mode, with seven MIG devices each, and a process on each."""
    machine = described(profile)
    gpus, load, processes = [], list[DescribedLoad](), list[GpuProcess]()
    for gpu in machine.gpus or ():
        devices = tuple(
            MigDevice(
                uuid=f"MIG-{gpu.index:08x}-0000-0000-0000-{part:012x}",
                profile="1g.10gb",
                gpu_instance=7 + part,
                mig_index=part,
                memory_mib=9856,
                device_nodes=tuple(
                    f"/dev/nvidia-caps/nvidia-cap{3 + 135 * gpu.index + 9 * (7 + part) + n}" for n in range(2)
                ),
            )
            for part in range(PARTS)
        )
        gpus.append(gpu.but(mig=Mig(enabled=True, devices=devices), links=()))
        load.append(DescribedLoad(gpu=gpu.index, readings=dict.fromkeys(_fields(profiling=False), 40.0)))
        load += (
            DescribedLoad(gpu=gpu.index, mig=each.uuid, readings=dict.fromkeys(_fields(profiling=True), 0.5))
            for each in devices
        )
        processes += (
            GpuProcess(
                gpu=gpu.index,
                pid=10_000 + gpu.index * PARTS + part,
                gpu_instance=7 + part,
                compute_instance=0,
                memory_mib=500.0,
                started=1,
                cgroups=(cgroup(gpu.index * PARTS + part),),
            )
            for part in range(PARTS)
        )
    return machine.but(gpus=tuple(gpus), load=tuple(load), processes=tuple(processes))


def _fields(*, profiling: bool) -> list[str]:
    """The default fields of a GPU in MIG mode, or those of one of its instances."""
    of_instances = ("DCGM_FI_PROF_", "DCGM_FI_DEV_FB_")
    shown = sampling_request(_node(Machine(gpus=()), ()), is_read=True).fields
    return [
        field
        for field in shown
        if SAMPLED_FIELDS[field].kind != "label"
        and field.startswith(of_instances) == profiling
        and field not in ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_NVLINK_TX_BYTES", "DCGM_FI_DEV_NVLINK_RX_BYTES")
    ]


def container_id(number: int) -> ContainerId:
    """The container of the pod of this number."""
    return ContainerId(f"{number:08x}-0000-4000-8000-000000000000", f"{number:064x}")


def cgroup(number: int) -> str:
    """Its cgroup, as kubelet's driver cgroupfs names it."""
    container = container_id(number)
    return f"/kubepods/pod{container.pod_uid}/{container.container_id}"


def holder(number: int, generation: int = 0) -> PodRef:
    """Its name."""
    return PodRef(namespace="team", name=f"train-{generation}-{number}-5d9c7b6f8-abcde", container="main")


def _node(machine: Machine, allocations: tuple[Allocation, ...]) -> Snapshot:
    node = Node(Snapshot())
    settings = Settings(mig_strategy="mixed")
    for fact in (ConfigLoaded(settings), MachineObserved(machine), AllocationsListed(allocations, node.now())):
        node.apply(fact)
    return node.snapshot


def _picture(
    machine: MachineFile, taken_at: float, generation: int = 0
) -> tuple[Snapshot, Sample, dict[ContainerId, PodRef]]:
    """A node with a pod on each MIG device, and a sample of it."""
    gpus = machine.gpus or ()
    numbers = {mig.uuid: gpu.index * PARTS + n for gpu in gpus for n, mig in enumerate(gpu.mig_devices)}
    allocations = tuple(
        Allocation(resource=MIG_RESOURCE, devices=(uuid,), holder=holder(number, generation))
        for uuid, number in numbers.items()
    )
    names = {container_id(number + generation * 100): holder(number, generation) for number in numbers.values()}
    return (
        _node(Machine(driver=machine.driver, gpus=gpus), allocations),
        Sample(taken_at=taken_at, gpus=tuple(_gpu_sample(gpu, numbers, generation) for gpu in gpus)),
        names,
    )


def _gpu_sample(gpu: Gpu, numbers: dict[str, int], generation: int) -> GpuSample:
    noise = random.random()  # values differ from sample to sample
    return GpuSample(
        uuid=gpu.uuid,
        readings=dict.fromkeys(_fields(profiling=False), 40.0 + noise),
        mig_devices=tuple(
            MigDeviceSample(each.uuid, dict.fromkeys(_fields(profiling=True), noise)) for each in gpu.mig_devices
        ),
        processes=tuple(
            ProcessSample(
                pid=10_000 + numbers[each.uuid],
                started=1,
                cgroups=(cgroup(numbers[each.uuid] + generation * 100),),
                memory_mib=500.0,
                gpu_instance=each.gpu_instance,
            )
            for each in gpu.mig_devices
        ),
        missing={"DCGM_FI_DEV_GPU_UTIL": "NOT_SUPPORTED"},
    )


def fetch(port: int) -> bytes:
    """A page as Prometheus asks for it, unpacked."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers=HEADERS)
    body = connection.getresponse().read()
    connection.close()
    return gzip.decompress(body)


def value(page: bytes, name: str) -> float:
    """The value of a series without labels."""
    return next(float(line.split()[1]) for line in page.decode().splitlines() if line.startswith(f"{name} "))


@asynccontextmanager
async def held_by_pods(*more: object, machine: str, port: int, config: str = MIXED) -> AsyncIterator[int]:
    """An agent with a pod on each of its MIG devices; its process id."""
    count = 8 * PARTS
    flags = ("--metrics-address", f"127.0.0.1:{port}", *more)
    async with running(machine, count, *flags, config=config, resource=MIG_RESOURCE) as (kubelet, agent, _):
        for number in range(count):
            await kubelet.run(pod(holder(number).name, namespace="team", **{MIG_RESOURCE: 1}))
        await asyncio.to_thread(_wait_for_series, port, count)
        yield agent.process.pid


def _wait_for_series(port: int, count: int) -> None:
    """Until each MIG device has a series."""
    until = time.monotonic() + 60
    while (found := fetch(port).count(b"DCGM_FI_DEV_FB_USED{")) < count:
        assert time.monotonic() < until, f"{found} of {count} MIG devices have a series after a minute"
        time.sleep(0.5)


async def scrape() -> list[Row]:
    """scrapes of 8 GPUs with 7 MIG devices each"""
    with _partitioned_driver() as rig:
        port = free_port()
        async with held_by_pods(*rig.flags, machine="nvml", port=port):
            page = await asyncio.to_thread(fetch, port)
            quiet = await asyncio.to_thread(_calls_while, port, 10.0, 1.0)
            times, busy = await asyncio.to_thread(_scrapes, port)
    ranked = sorted(times)
    p99 = ranked[int(len(ranked) * 0.99)] * 1e3
    how = f"p99 of {len(times)} over {page.count(10)} lines, median {statistics.median(times) * 1e3:.1f} ms, "
    how += f"max {ranked[-1] * 1e3:.1f} ms, OpenMetrics, gzip"
    said = f"{busy:.0f} a second over {quiet:.0f}: {SCRAPES} pages read one after another, or one a second"
    return [
        Row("a scrape of 8 × 7 MIG devices with a pod on each", p99, 10, "ms", how),
        Row("driver calls with many scrapes / with few", busy / quiet, 1.1, "×", said),
    ]


def _scrapes(port: int) -> tuple[list[float], float]:
    """Seconds of each scrape, and driver calls a second meanwhile."""
    before, began = value(fetch(port), "gpuplane_driver_calls_total"), time.monotonic()
    times = []
    for _ in range(SCRAPES):
        started = time.perf_counter()
        fetch(port)
        times.append(time.perf_counter() - started)
        time.sleep(PAUSE)
    return times, (value(fetch(port), "gpuplane_driver_calls_total") - before) / (time.monotonic() - began)


def _calls_while(port: int, seconds: float, pause: float) -> float:
    """Driver calls a second while somebody reads a page each `pause`."""
    before, began = value(fetch(port), "gpuplane_driver_calls_total"), time.monotonic()
    while time.monotonic() - began < seconds:
        time.sleep(pause)
        after = value(fetch(port), "gpuplane_driver_calls_total")
    return (after - before) / (time.monotonic() - began)


@contextmanager
def _partitioned_driver() -> Iterator[Driven]:
    with driven() as rig:
        rig.described = partitioned()
        rig.driver.describe(rig.described)
        yield rig


async def cost() -> list[Row]:
    """what samples cost while Prometheus reads them each 15 seconds"""
    rows = []
    for what, rig_of in (("8 GPUs", driven), ("8 GPUs with 7 MIG devices each", _partitioned_driver)):
        with rig_of() as rig:
            port = free_port()
            async with AsyncExitStack() as stack:
                pid = await stack.enter_async_context(_reading(rig, port, is_partitioned=rig_of is not driven))
                reads = asyncio.create_task(_read_each(port, 15.0))
                calls = asyncio.create_task(asyncio.to_thread(_calls_while, port, COST_LASTS - 5, 15.0))
                [spent] = await used(pid, seconds=COST_LASTS)
                reads.cancel()
                told = f"agent and driver's process, over {COST_LASTS:g} s, {await calls:.0f} driver calls a second"
        rows.append(Row(f"CPU of everything, {what}, sampled each second", spent.cpu * 100, 2, "%", told))
    return rows


@asynccontextmanager
async def _reading(rig: Driven, port: int, *, is_partitioned: bool) -> AsyncIterator[int]:
    if is_partitioned:
        async with held_by_pods(*rig.flags, machine="nvml", port=port) as pid:
            yield pid
    else:
        flags = (*rig.flags, "--metrics-address", f"127.0.0.1:{port}")
        async with running("nvml", 8, *flags) as (_, agent, _):
            await asyncio.sleep(3)
            yield agent.process.pid


async def _read_each(port: int, seconds: float) -> None:
    while True:
        await asyncio.to_thread(fetch, port)
        await asyncio.sleep(seconds)


async def held() -> list[Row]:
    """the event loop while pages are made"""
    machine, pages = partitioned(), 60
    snapshot, _, names = _picture(machine, 0.0)
    samples = [_picture(machine, float(n))[1] for n in range(pages)]
    node, port = Node(snapshot), free_port()
    states = [TelemetryState()]
    serving = asyncio.create_task(
        serve_status_pages(node, ServingOptions(host="127.0.0.1", port=port), "node-1", lambda: states[-1])
    )
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, f"{port}", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdin is not None
    assert reader.stdout is not None
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        quiet, longest, folds = list[float](), list[float](), list[float]()
        for sample in samples:
            began = time.perf_counter()
            states.append(next_state(states[-1], snapshot, sample, names, 0.0))
            folds.append(time.perf_counter() - began)
            await asyncio.sleep(1.0)  # until the page is of this state
            quiet.append(await _longest_wait(asyncio.sleep(0.05)))
            reader.stdin.write(b"\n")
            longest.append(await _longest_wait(reader.stdout.readline()))
    finally:
        sys.setswitchinterval(before)
        reader.kill()
        await reader.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    late, noise = (sorted(each)[int(pages * 0.95)] * 1e3 for each in (longest, quiet))
    how = (
        f"the longest wait of each of {pages} pages: the median; p95 {late:.1f} ms, where it is {noise:.1f} ms while "
        f"nothing is made; a sample is taken in by the loop in {statistics.median(folds) * 1e3:.2f} ms"
    )
    return [Row("event loop held while a page is made", statistics.median(longest) * 1e3, 2, "ms", how)]


READER = """
import http.client, sys
for line in sys.stdin:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text"})
    connection.getresponse().read()
    connection.close()
    print(flush=True)
"""
"""Another process, which reads a page for each line that it gets."""


async def _longest_wait(work: Coroutine[Any, Any, object]) -> float:
    """The longest that the event loop was late meanwhile."""
    doing, late = asyncio.create_task(work), 0.0
    while not doing.done():
        began = time.perf_counter()
        await asyncio.sleep(0.0005)
        late = max(late, time.perf_counter() - began - 0.0005)
    await doing
    return late


async def memory() -> list[Row]:
    """memory over pods that come and go"""
    machine = partitioned()
    pages, state = StatusPages("node-1"), TelemetryState()
    node, generations = Node(Snapshot()), PODS // (8 * PARTS)
    snapshot, _, _ = _picture(machine, 0.0)
    for fact in (ConfigLoaded(Settings(mig_strategy="mixed")), MachineObserved(Machine(gpus=machine.gpus))):
        node.apply(fact)
    tracemalloc.start()
    first = 0
    for generation in range(generations):
        snapshot, sample, names = _picture(machine, float(generation), generation)
        node.apply(AllocationsListed(snapshot.allocations or (), node.now()))
        state = next_state(state, node.snapshot, sample, names, 0.0)
        pages.show(node.snapshot, state)
        if generation % 20 == 0:
            pages.page("/metrics")
        if generation == 100:
            first = tracemalloc.get_traced_memory()[0]
    grown = (tracemalloc.get_traced_memory()[0] - first) / 1e6
    tracemalloc.stop()
    how = f"of what Python has allocated, from pod {100 * 8 * PARTS:,} to pod {generations * 8 * PARTS:,}"
    return [Row(f"memory growth over {PODS:,} pods", grown, 1, "MB", how)]


async def allocate() -> list[Row]:
    """Allocate while samples are taken and scrapes run"""
    with driven() as rig:
        port = free_port()
        async with running("nvml", 8, *rig.flags, "--metrics-address", f"127.0.0.1:{port}") as (kubelet, _, _):
            ids = sorted(kubelet.device_health()[GPU])
            _, before, _ = await asyncio.to_thread(latencies, kubelet, ids, ids[:2])
            stop = threading.Event()
            reader = asyncio.create_task(asyncio.to_thread(_read_until, port, stop))
            await asyncio.sleep(3)
            _, after, _ = await asyncio.to_thread(latencies, kubelet, ids, ids[:2])
            stop.set()
            count = await reader
    how = f"p50, {after * 1e6:.0f} µs over {before * 1e6:.0f} µs; sampled each second, {count} scrapes meanwhile"
    return [Row("Allocate while samples are taken and scrapes run / before", after / before, 1.25, "×", how)]


def _read_until(port: int, stop: threading.Event) -> int:
    count = 0
    while not stop.wait(0.5):
        fetch(port)
        count += 1
    return count


def _pod_object(number: int) -> dict[str, object]:
    name = holder(number).name
    metadata = {"name": name, "namespace": "team", "labels": {"app": f"train-{number % 5}"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1", "containers": []}}


async def size() -> list[Row]:
    """memory with everything on"""
    with _partitioned_driver() as rig:
        port = free_port()
        async with ApiServer() as server:
            server.put("/api/v1/nodes/n1", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
            for number in range(8 * PARTS):
                path = f"/api/v1/namespaces/team/pods/{holder(number).name}"
                server.put(path, _pod_object(number))
            kubeconfig = rig.folder / "kubeconfig"
            kubeconfig.write_text(server.kubeconfig())
            more = (*rig.flags, "--node-name", "n1", "--kubeconfig", kubeconfig)
            async with held_by_pods(*more, machine="nvml", port=port, config=EVERYTHING) as pid:
                for _ in range(20):
                    page = await asyncio.to_thread(fetch, port)
                    await asyncio.sleep(1)
                figure = pss(pid)
            written = server.objects.get(parse_path("/api/v1/nodes/n1"))["metadata"]
    assert b'label_app="' in page
    assert written["labels"]["nvidia.com/gpu.count"]
    assert written["annotations"]["gpuplane.io/gpus"]
    how = "8 GPUs with 7 MIG devices each, a pod on each, labels of the node and of pods, annotation, 20 pages read"
    how += "; agent and driver's process"
    return [Row("memory (PSS), everything on", figure, 85, "MB", how)]


MEASURES: tuple[Measure, ...] = (scrape, cost, held, memory, allocate, size)
