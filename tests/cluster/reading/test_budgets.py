"""Budgets of disruption: which a pod has, and what a plan and an explanation make of them."""

import json
from typing import Any

import msgspec
import pytest

from gpuplane.cluster.answers.assumed import assume_places
from gpuplane.cluster.answers.explain import EndShown, show_waiting
from gpuplane.cluster.answers.plan import movable, show_plan
from gpuplane.cluster.engine.configuration import PlacementConfig
from gpuplane.cluster.reading.budgets import ApiBudget, Budgets
from gpuplane.cluster.reading.cluster import SeenCluster
from gpuplane.cluster.reading.listing import read_saved
from gpuplane.kubernetes.objects import ApiPod
from tests.cluster.reading.small import NAMES, node, objects, pod

USUAL = PlacementConfig()
LABELS = {"app": "web", "tier": "front"}


def budget(selector: Any, allowed: int = 0, name: str = "b", namespace: str = "team", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minAvailable": 1} | ({} if selector is None else {"selector": selector}),
        "status": {"disruptionsAllowed": allowed, "expectedPods": 1, **status},
    }


def labelled(found: dict[str, Any], **labels: str) -> dict[str, Any]:
    return found | {"metadata": found["metadata"] | {"labels": labels}}


def read(items: list[Any]) -> SeenCluster:
    return assume_places(read_saved(json.dumps({"kind": "List", "items": items}).encode(), "c.json"))


def budgets_of(api: dict[str, Any], *budgets: dict[str, Any]) -> tuple[str, ...]:
    decoded = msgspec.json.decode(msgspec.json.encode(budgets), type=list[ApiBudget])
    return Budgets(decoded).of(msgspec.json.decode(msgspec.json.encode(api), type=ApiPod))


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": None, "matchExpressions": None}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "web", "tier": "front"}}, True),
        ({"matchLabels": {"tier": "back", "app": "web"}}, False),
        ({"matchLabels": {"app": "web", "gone": ""}}, False),
        (requirement("app", "In", "api", "web"), True),
        (requirement("app", "NotIn", "web"), False),
        (requirement("gone", "NotIn", "web"), True),
        (requirement("app", "Exists"), True),
        (requirement("gone", "Exists"), False),
        (requirement("gone", "DoesNotExist"), True),
        ({"matchLabels": {"app": "web"}} | requirement("tier", "In", "back"), False),
    ],
)
def test_a_selector_of_labels(selector: Any, matches: bool) -> None:
    """As apimachinery's LabelSelectorAsSelector has it."""
    api = labelled(pod("p", 1, "n"), **LABELS)

    assert budgets_of(api, budget(selector)) == (("team/b",) if matches else ())


def test_which_pods_have_none() -> None:
    """Those of other namespaces, and those whose end disrupts nothing (eviction.go)."""
    api = labelled(pod("p", 1, "n"), **LABELS)
    ending = api | {"metadata": api["metadata"] | {"deletionTimestamp": "2026-11-24T10:00:00Z"}}

    assert budgets_of(api, budget({}, namespace="other")) == ()
    assert budgets_of(api, budget({}, disruptedPods={"p": "2026-11-24T10:00:00Z"})) == ()
    assert budgets_of(api | {"status": {"phase": "Pending"}}, budget({})) == ()
    assert budgets_of(ending, budget({})) == ()
    assert budgets_of(pod("p", 1, "n"), budget({}, name="1"), budget({}, name="2")) == ("team/1", "team/2")
    nowhere = {"metadata": {"name": "p", "labels": LABELS}, "status": {"phase": "Running"}}
    assert budgets_of(nowhere, budget({}, namespace="")) == ("default/b",)


@pytest.mark.parametrize(
    ("budgets", "moves"),
    [([], 4), ([budget({}, 1)], 4), ([budget({}, 0)], 0), ([budget({}, -3)], 0),
     ([budget({}, 9), budget({}, 9, name="c")], 0)],
)  # fmt: skip
def test_a_plan_leaves_pods_whose_budget_allows_no_end(budgets: list[dict[str, Any]], moves: int) -> None:
    """And those with several budgets, which nobody can evict."""
    items = [*map(node, NAMES[:4]), *(pod(f"a{name}", 2, name) for name in NAMES[:4])]
    found = read([*items, *budgets])

    assert len(movable(found)) == moves
    assert bool(show_plan(found, USUAL, 10).moves) == bool(moves)


def test_an_explanation_exceeds_a_budget_only_where_nothing_else_helps() -> None:
    """It names it then. What an earlier pod preempts counts for the next one."""
    whole = [labelled(pod(f"w{name}", 4, name), app="web") for name in NAMES[:3]]
    items = [*map(node, NAMES[:3]), *whole, pod("one", 4, priority=9), pod("two", 4, priority=8)]
    web = {"matchLabels": {"app": "web"}}

    def ends(*budgets: dict[str, Any]) -> list[EndShown | None]:
        return [each.preemption for each in show_waiting(read([*items, *budgets]), USUAL)]

    assert [each.budgets for each in ends() if each] == [(), ()]
    assert [each.budgets for each in ends(budget(web, 1)) if each] == [(), ("team/b",)]
    assert [each.budgets for each in ends(budget(web, 0)) if each] == [("team/b",), ("team/b",)]
    less = labelled(pod("more", 4, "n5", 5), app="other")
    found = show_waiting(read([*items, node("n5"), less, budget(web, 0)]), USUAL, only="team/one")
    assert [each.preemption for each in found] == [EndShown("n5", {"team/more": 5}, (), ())]


def test_a_waiting_pod_disrupts_nothing_by_its_end() -> None:
    """A budget of none is not exceeded by taking the place that a pod was to get."""
    low, high = labelled(pod("low", 4, priority=1), app="web"), pod("high", 4, priority=2)
    low["status"] = {}  # as a file may have it
    found = show_waiting(read([node("n"), high, low, budget({}, 0)]), USUAL)

    assert [each.place is not None for each in found] == [True, False]
    assert found[1].ending == EndShown("n", {"team/high": 2}, ("team/high",), ())


def test_a_malformed_budget_is_named() -> None:
    found = read([*objects(), {"kind": "PodDisruptionBudget", "metadata": {"name": "x", "namespace": "y"}, "spec": 5}])

    assert [each.subject for each in found.notes if each.code == "object-unreadable"] == ["y/x"]
