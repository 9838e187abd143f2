"""A cluster as a trace: what its pods ask for, and which of them are not played."""

import json
from typing import Any

from gpuplane.cluster.reading.listing import read_saved
from gpuplane.cluster.simulation.clusters import trace_of, without_impossible
from gpuplane.cluster.simulation.pods import class_of
from gpuplane.cluster.simulation.workers import Trace
from tests.cluster.reading.small import node, objects, pod


def read(items: list[Any]) -> Trace:
    return trace_of(read_saved(json.dumps({"kind": "List", "items": items}).encode(), "c.json"))


def with_limits(name: str, *limits: dict[str, str]) -> dict[str, Any]:
    """A pod with a container for each."""
    found = pod(name, 0)
    found["spec"]["containers"] = [
        {"name": f"c{index}", "resources": {"limits": each}} for index, each in enumerate(limits)
    ]
    return found


def test_demand_is_the_sum_of_the_parts() -> None:
    """Not as many GPUs as all together, each as large as the largest."""
    whole, part = {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192"}
    [both] = read([node("n0"), with_limits("both", whole, part)]).pods

    assert both.demand_milli == 1100
    assert class_of(both) == "shared"


def test_pods_that_ask_for_mig_devices_are_no_pods_without_gpus() -> None:
    mig = with_limits("mig", {"nvidia.com/mig-1g.10gb": "1"})
    seen = read_saved(json.dumps({"kind": "List", "items": [node("n0"), mig, pod("p", 1)]}).encode(), "c.json")

    assert [each.name for each in trace_of(seen).pods] == ["team/p"]
    assert [each.name for each in seen.waiting if each.request.asks_for_mig] == ["team/mig"]


def test_what_fits_on_no_empty_node_is_no_demand() -> None:
    trace = read(objects())

    assert {each.name for each in trace.pods} - {each.name for each in without_impossible(trace).pods} == {"team/huge"}
    assert without_impossible(trace).nodes == trace.nodes
