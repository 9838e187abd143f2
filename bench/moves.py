"""What a consolidation plan is worth: pods that found no place before its moves, and find one after them."""

from collections import Counter
from collections.abc import Sequence
from random import Random

from bench.row import Row
from bench.traces import DEFAULT, FGD, OURS, SEEDS, missing, read
from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.engine.consolidation import Placed, plan_moves
from gpuplane.cluster.engine.engine import Engine
from gpuplane.cluster.engine.policies import make_policy
from gpuplane.cluster.engine.policies.wasteprice import WastePrice
from gpuplane.cluster.engine.workload import Workload
from gpuplane.cluster.model.requests import Request
from gpuplane.cluster.simulation.replay import capacity_milli
from gpuplane.cluster.simulation.scenario import Scenario, arrivals

MOVED = 0.05
"""The part of the pods that move."""
GONE = 0.2
"""The part of the pods that have gone before the plan is made."""


async def consolidation() -> list[Row]:
    """what moving 5 % of the pods makes room for"""
    if rows := missing():
        return rows
    return [_consolidate(policy, gone) for gone in (0.0, GONE) for policy in ("spread", FGD, OURS)]


def _consolidate(policy: str, gone: float) -> Row:
    """Of pods that a policy has placed, until the cluster was full, some go; then those come that had no place."""
    trace, random = read(DEFAULT), Random(1)
    workload, capacity = Workload(Counter(each.request for each in trace.pods)), capacity_milli(trace.nodes)
    cluster = Cluster(trace.nodes)
    engine = Engine(cluster, make_policy(policy, workload), random)
    coming = [each.request for each in arrivals(trace.pods, capacity, Scenario(), SEEDS[0]).pods]
    placed = list[Placed]()
    refused = _place(engine, coming, placed)
    for each in random.sample(placed, int(gone * len(placed))):
        cluster.give_back(each.request, each.placement)
        placed.remove(each)
        refused.append(each.request)
    unmoved, before = cluster.copy(), _allocated(cluster, capacity)
    plan = plan_moves(cluster, WastePrice(workload), placed, int(MOVED * len(placed)))
    for found in (unmoved, cluster):
        _place(Engine(found, make_policy(OURS, workload)), refused, [])
    without, moved = _allocated(unmoved, capacity), _allocated(cluster, capacity)
    return Row(
        f"GPUs free after 5 % of what {policy} placed moves, {100 * gone:.0f} % gone before, less those without moves",
        without - moved,
        0,
        "%",
        f"{before:.1f} % are allocated; then those without a place come again: {without:.2f} % without moves, "
        f"{moved:.2f} % after {len(plan.moves)}, which are to make {plan.gain:.0f} GPUs usable; aimed at is 98 %",
    )


def _place(engine: Engine, requests: Sequence[Request], placed: list[Placed]) -> list[Request]:
    """Those that found no place."""
    refused = list[Request]()
    for index, request in enumerate(requests):
        if (placement := engine.choose(request)) is None:
            refused.append(request)
        else:
            engine.cluster.take(request, placement)
            placed.append(Placed(f"{index}", request, placement))
    return refused


def _allocated(cluster: Cluster, capacity: int) -> float:
    return 100 - 100 * int((cluster.milli_free * cluster.is_usable).sum()) / capacity
