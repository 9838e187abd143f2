"""How long decisions take, by CPU time: on the nodes of a trace, and on a far larger cluster in its own process."""

import asyncio
import json
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from bench.row import Row
from bench.traces import DEFAULT, FGD, OURS, SEEDS, missing, read
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU, Placement, Request
from gpuplane.cluster.simulation.replay import capacity_milli
from gpuplane.cluster.simulation.scenario import Scenario, arrivals

NODES, GPUS = 10_000, 8
FULL = 0.85
"""The part of the large cluster's GPUs that is taken before pods come and go."""
CHURN = 4000
"""Pods that go, and as many that come."""
TARGET, RATIO = 1000, 2.0
"""Decisions a second at least, on one core; and times as long as FGD's at most."""

RUNS = 4
"""Of each policy in turn; the fastest counts, since all else is what others did on the machine."""


async def speed() -> list[Row]:
    """decisions a second on the nodes of the default trace"""
    if rows := missing():
        return rows
    runs = [{policy: _of_trace(policy) for policy in (FGD, OURS)} for _ in range(RUNS)]
    times = {policy: min(each[policy] for each in runs) for policy in (FGD, OURS)}
    how = ", ".join(f"{policy} {1 / seconds:.0f} decisions/s" for policy, seconds in times.items())
    return [
        Row("a decision by waste-price, 1,213 nodes filled up, one core", times[OURS] * 1000, 1000 / TARGET, "ms", how),
        Row("the same, over one by FGD", times[OURS] / times[FGD], RATIO, "×", how),
    ]


def _of_trace(policy: str) -> float:
    """Seconds of CPU for one decision, the mean of a run."""
    trace = read(DEFAULT)
    coming = arrivals(trace.pods, capacity_milli(trace.nodes), Scenario(), SEEDS[0])
    engine = _engine(Cluster(trace.nodes), policy, [each.request for each in trace.pods], Random(1))
    spent = 0
    for pod in coming.pods:
        began = time.process_time_ns()
        placement = engine.choose(pod.request)
        spent += time.process_time_ns() - began
        if placement is not None:
            engine.cluster.take(pod.request, placement)
    return spent / 1e9 / len(coming.pods)


async def large() -> list[Row]:
    """decisions on 10,000 nodes of 8 GPUs while pods come and go"""
    if rows := missing():
        return rows
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.decisions", stdout=asyncio.subprocess.PIPE
    )
    found = json.loads((await process.communicate())[0])
    how = (
        f"{CHURN} decisions at {100 * FULL:.0f} % taken, as many pods going: median {found['p50']:.2f} ms, max "
        f"{found['max']:.1f} ms; {found['pods']} pods run"
    )
    return [
        Row("a decision by waste-price, 10,000 nodes × 8 GPUs with churn, p99", found["p99"], 20.0, "ms", how),
        Row("memory of that process, all pods in it", found["rss"], 300.0, "MB", "the most that was resident"),
    ]


def _engine(cluster: Cluster, policy: str, requests: Sequence[Request], random: Random) -> Engine:
    return Engine(cluster, make_policy(policy, Workload(Counter(requests))), random)


def play_large(nodes: int = NODES, churn: int = CHURN) -> dict[str, float]:
    """Fill a large cluster with pods of the default trace, and have them come and go; times in ms."""
    random = Random(7)
    models = ("A", "B")
    cluster = Cluster(
        Node(f"n{n}", 128_000, 1 << 20, tuple(Gpu(f"n{n}-{gpu}", models[n % 2]) for gpu in range(GPUS)))
        for n in range(nodes)
    )
    requests = [each.request for each in read(DEFAULT).pods]
    engine = _engine(cluster, OURS, requests, random)
    running, times, taken = list[tuple[Request, Placement]](), list[float](), 0
    while taken < FULL * nodes * GPUS * MILLI_PER_GPU:
        taken += _arrive(engine, random.choice(requests), running)[1]
    for _ in range(churn):
        index = random.randrange(len(running))
        running[index], running[-1] = running[-1], running[index]
        cluster.give_back(*running.pop())
        times.append(_arrive(engine, random.choice(requests), running)[0])
    times.sort()
    return {
        "p50": statistics.median(times),
        "p99": times[int(len(times) * 0.99)],
        "max": times[-1],
        "pods": len(running),
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _arrive(engine: Engine, request: Request, running: list[tuple[Request, Placement]]) -> tuple[float, int]:
    """(ms of the decision, milli-GPU that the pod got)."""
    began = time.process_time_ns()
    placement = engine.choose(request)
    spent = (time.process_time_ns() - began) / 1e6
    if placement is None:
        return spent, 0
    engine.cluster.take(request, placement)
    running.append((request, placement))
    return spent, sum(share.milli for part in placement.shares for share in part)


if __name__ == "__main__":
    print(json.dumps(play_large()))
