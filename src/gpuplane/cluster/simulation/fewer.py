"""How many GPUs fewer a policy needs for what another one allocates on the whole cluster.

Nodes are left out in an order that the seed decides, so that the rest is like the whole. The same pods arrive. The
answer is the smallest rest on which the policy allocates as many GPUs as the other one on the whole, found by halving:
a run more or less changes what is allocated by chance, too, so one node more may do a little worse.
"""

from collections.abc import Sequence
from random import Random

from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU
from gpuplane.cluster.simulation.pods import TracePod
from gpuplane.cluster.simulation.replay import Replay, capacity_milli
from gpuplane.cluster.simulation.scenario import Scenario, arrivals


def gpus_fewer(
    nodes: Sequence[Node], pods: Sequence[TracePod], policy: str, seed: int, scenario: Scenario, needed_milli: float
) -> float | None:
    """GPUs that can be left out so that so much is allocated still; None where the whole cluster is too small."""
    whole = capacity_milli(nodes)
    coming = arrivals(pods, whole, scenario, seed)
    order = [each for each in nodes if capacity_milli([each])]
    Random(f"left out {seed}").shuffle(order)  # noqa: S311

    def rest(count: int) -> list[Node]:
        left_out = {each.name for each in order[:count]}
        return [each for each in nodes if each.name not in left_out]

    def suffices(count: int) -> bool:
        part = rest(count)
        capacity = capacity_milli(part)
        if capacity < needed_milli:
            return False
        run = Replay(part, pods, policy, seed, coming, scenario).run()
        return run.allocated * capacity / 100 >= needed_milli * (1 - 1e-12)

    if not suffices(0):
        return None
    low, high = 0, len(order)  # so many do, so many do not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if suffices(middle) else (low, middle)
    return (whole - capacity_milli(rest(low))) / MILLI_PER_GPU
