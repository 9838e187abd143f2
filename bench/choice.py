"""The choice: how long an answer takes, what its table costs, and what requests that come meanwhile wait for.

On a snapshot, in one thread, by its CPU time: what is around it (the socket, kubelet) is measured in `node`. Random
requests are seeded.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from bench.reference import in_loops
from bench.rig import GPU, described
from bench.row import Measure, Row
from gpuplane.node.agent.node import Node
from gpuplane.node.agent.tables import keep_tables
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.gpusets import MAX_GPUS, GpuSetTable
from gpuplane.node.core.choice.linkscores import Policy, link_score_matrix, total_link_score
from gpuplane.node.core.choice.preference import machine_link_score_matrix, preferred_ids
from gpuplane.node.core.choice.search import find_set_by_local_search, link_score_bound
from gpuplane.node.core.choice.tablecache import build_table, cached_table
from gpuplane.node.core.step import step
from gpuplane.node.model.config import Config, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import AllocationsListed, ConfigLoaded, MachineObserved, StatusChanged
from gpuplane.node.model.machine import Fault, Gpu, Link, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import Status, plugin_part
from tests.node.core.choice.graphs import Pair

QUESTIONS, BUILDS, RACK = 5000, 9, 64
PAUSE = 0.001
"""Seconds between two requests while a table is made."""


def cube(lanes: int = 1) -> tuple[Gpu, ...]:
    """16 GPUs joined as the corners of a hypercube: no two are equivalent, and most sets are equally good. The
    hardest machine that we know of; none like it is sold."""
    return wired(MAX_GPUS, lambda i, j: lanes if (i ^ j).bit_count() == 1 else 0)


def switched() -> tuple[Gpu, ...]:
    """16 GPUs behind one switch, the first of them degraded: all sets of one size are equally well connected."""
    first, *others = wired(MAX_GPUS, lambda i, j: 12)
    return first.but(faults=(Fault(code="remap-pending", message="a row waits"),)), *others


def wired(count: int, lanes: Pair) -> tuple[Gpu, ...]:
    """So many GPUs with NVLinks between each two."""
    pci = [f"0000:{i:02x}:00.0" for i in range(count)]
    return tuple(
        Gpu(
            index=i,
            uuid=f"GPU-{i}",
            model="A100",
            pci=pci[i],
            numa=0,
            links=tuple(
                Link(pci[j], n) for j in range(count) if j != i and (n := lanes(min(i, j), max(i, j)))
            ),
        )
        for i in range(count)
    )  # fmt: skip


def node(gpus: Sequence[Gpu], replicas: int = 1) -> Snapshot:
    """A node with these, of which no container holds anything."""
    sharing = Sharing(replicated_resources=(ReplicatedResource(name=GPU, replicas=replicas),) if replicas > 1 else ())
    unseen = Snapshot(config=Config(settings=Settings(sharing=sharing)), allocations=())
    return step(unseen, MachineObserved(Machine(gpus=tuple(gpus))), 0.0)


async def whole() -> list[Row]:
    """one of 8 and of 16 GPUs' answers"""
    rows = []
    for gpus, name, budget in (
        (described("dgx1-v100").gpus or (), "8 GPUs, dgx1-v100", 0.5),
        (described("dgx-a100").gpus or (), "8 GPUs, dgx-a100", 0.5),
        (described("big-16").gpus or (), "16 GPUs, big-16", 2),
        (switched(), "16 GPUs, one switch, one GPU is degraded", 2),
        (cube(), "16 GPUs, a hypercube", 2),
    ):
        times = _ask(node(gpus), random.Random(name))
        rows.append(Row(f"{name}: sizes and free GPUs at random, p99", _p99(times), budget, "ms", _how(times)))
    return [in_loops(row) for row in rows]


async def table() -> list[Row]:
    """making the table"""
    chance = random.Random(1)
    free = [[chance.randrange(0, 2000, 10) for _ in range(MAX_GPUS)] for _ in range(MAX_GPUS)]
    rows = []
    for name, matrix in (
        ("big-16", link_score_matrix(described("big-16").gpus or (), "topology")),
        ("a hypercube", link_score_matrix(cube(), "topology")),
        (
            "no pair like another",
            tuple(tuple(free[min(i, j)][max(i, j)] * (i != j) for j in range(MAX_GPUS)) for i in range(MAX_GPUS)),
        ),
    ):
        times = [_timed(lambda matrix=matrix: GpuSetTable(matrix)) for _ in range(BUILDS)]  # type: ignore[misc]
        how = f"median of {BUILDS}, max {max(times):.1f} ms"
        rows.append(Row(f"the table of 16 GPUs, {name}", statistics.median(times), 300, "ms", how))
    return [in_loops(row) for row in rows]


async def meanwhile() -> list[Row]:
    """requests while the table is made

    By the clock: a request also waits for the interpreter's lock, which the thread that makes the table holds in turns.
    """
    times, builds = list[float](), list[float]()
    watched, ids = Node(Snapshot()), [f"GPU-{i}" for i in range(MAX_GPUS)]
    registered = StatusChanged(plugin_part(GPU), Status("ok", ""))
    for fact in (ConfigLoaded(Settings()), AllocationsListed((), watched.now()), registered):
        watched.apply(fact)
    keeping = asyncio.create_task(keep_tables(watched))
    for lanes in range(1, BUILDS + 1):
        watched.apply(MachineObserved(Machine(gpus=cube(lanes))))
        matrix, began = machine_link_score_matrix(watched.snapshot), time.perf_counter()
        while cached_table(matrix) is None:
            due = time.perf_counter() + PAUSE
            await asyncio.sleep(PAUSE)
            preferred_ids(watched.snapshot, GPU, ids, [], 4)
            times.append(time.perf_counter() - due)
        builds.append(time.perf_counter() - began)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    table, most = statistics.median(builds), _p99(times)
    median = statistics.median(times)
    how = f"{most * 1e3:.1f} ms, median {median * 1e3:.2f} ms of {len(times)}; the table {table * 1e3:.0f} ms"
    return [Row("a request each ms while a table is made, p99 / the table", most / table, 0.5, "×", how)]


async def shares() -> list[Row]:
    """answers about shares"""
    gpus = described("dgx1-v100").gpus or ()
    policies: tuple[Policy, ...] = ("distributed", "packed", "topology", "numa")
    rows = []
    for policy in policies:
        times = _ask(node(gpus, 48), random.Random(policy), sizes=16, policy=policy)
        rows.append(Row(f"8 GPUs × 48 replicas, sizes 1 to 16, {policy}, p99", _p99(times), 2, "ms", _how(times)))
    return [in_loops(row) for row in rows]


async def beyond() -> list[Row]:
    """more GPUs than a table takes"""
    chance = random.Random(RACK)
    gpus = wired(RACK, lambda i, j: 18 if i // 8 == j // 8 else 0)
    matrix, times = link_score_matrix(gpus, "topology"), _ask(node(gpus), chance, count=500)
    gaps = []
    for _ in range(200):
        there = chance.sample(range(RACK), chance.randint(2, RACK))
        request = GpuSetRequest(frozenset(there), frozenset(), chance.randint(2, min(16, len(there))))
        found = total_link_score(matrix, find_set_by_local_search(matrix, request))
        gaps.append(100 * (1 - found / link_score_bound(matrix, request)))
    how = f"in the mean of {len(gaps)}, max {max(gaps):.0f} %; of the bound, that no set may reach"
    return [
        in_loops(Row(f"{RACK} GPUs in islands of 8, by search, p99", _p99(times), 20, "ms", _how(times))),
        Row(f"{RACK} GPUs in islands of 8: worth that is missing at most", statistics.mean(gaps), 25, "%", how),
    ]


def _ask(
    snapshot: Snapshot, chance: random.Random, count: int = QUESTIONS, sizes: int = RACK, policy: Policy | None = None
) -> list[float]:
    """Milliseconds of each answer, once the table is there: any of the ids are free, any number is wanted."""
    build_table(machine_link_score_matrix(snapshot, policy))
    ids = [device.id for device in offer(snapshot).resources[0].devices]
    times = []
    for free, size in _questions(ids, chance, count, sizes):
        times.append(_timed(lambda free=free, size=size: preferred_ids(snapshot, GPU, free, [], size, policy)))  # type: ignore[misc]
    return times


def _questions(ids: Sequence[str], chance: random.Random, count: int, sizes: int) -> Iterator[tuple[list[str], int]]:
    for _ in range(count):
        free = chance.sample(ids, chance.randint(1, len(ids)))
        yield free, chance.randint(1, min(sizes, len(free)))


def _timed(act: Callable[[], object]) -> float:
    """Milliseconds."""
    began = time.thread_time()
    act()
    return (time.thread_time() - began) * 1e3


def _p99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[98]


def _how(times: Sequence[float]) -> str:
    return f"{len(times)} requests, median {statistics.median(times):.3f} ms, max {max(times):.2f} ms"


MEASURES: tuple[Measure, ...] = (whole, table, meanwhile, shares, beyond)
