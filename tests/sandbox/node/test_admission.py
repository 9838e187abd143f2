"""Which pods kubelet rejects, and in which words, before their devices are looked at."""

from decimal import Decimal
from typing import Any

import pytest

from gpuplane.kubernetes.selectors import Taint
from gpuplane.sandbox.node.admission import refuse
from gpuplane.sandbox.node.nodeobject import allocatable, quantities_of
from tests.sandbox.node.objects import bound_pod

Json = dict[str, Any]
ROOM = quantities_of(allocatable(1)) | {"cpu": Decimal(4), "pods": Decimal(3)}
LABELS = {"rack": "r1"}


def wanting(name: str = "a", **requests: str) -> Any:
    return bound_pod(name, containers=[{"name": "main", "image": "busybox", "resources": {"requests": requests}}])


def refused(pod: Any, *others: Any, taints: tuple[Taint, ...] = ()) -> tuple[str, str] | None:
    found = refuse(pod, others, ROOM, LABELS, taints)
    return None if found is None else (found.reason, found.message.removeprefix("Pod was rejected: "))


def test_a_pod_that_fits_is_admitted() -> None:
    assert refused(wanting(cpu="4", memory="1Gi")) is None
    assert refused(wanting(cpu="1500m"), wanting("b", cpu="2500m")) is None


@pytest.mark.parametrize(
    ("pod", "others", "reason", "message"),
    [
        (
            wanting(cpu="2"),
            [wanting("b", cpu="2500m")],
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 2000, used: 2500, capacity: 4000",
        ),
        (
            wanting(memory="1Ti"),
            [],
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 1099511627776, used: 0, capacity: 137334095872",
        ),
        (
            wanting(),
            [wanting("b"), wanting("c"), wanting("d")],
            "OutOfpods",
            "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
        ),
        (
            bound_pod(nodeSelector={"rack": "r2"}),
            [],
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
    ],
)
def test_a_pod_that_does_not_fit_is_rejected(pod: Any, others: list[Any], reason: str, message: str) -> None:
    assert refused(pod, *others) == (reason, message)


def test_an_affinity_has_to_match_and_a_taint_that_evicts_to_be_tolerated() -> None:
    terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    assert refused(bound_pod(affinity={"nodeAffinity": required})) is None
    terms[0]["matchExpressions"][0]["values"] = ["r2"]
    assert refused(bound_pod(affinity={"nodeAffinity": required})) is not None

    evicting, keeping = Taint("k", "NoExecute"), Taint("k", "NoSchedule")
    tolerant = bound_pod(tolerations=[{"key": "k", "operator": "Exists"}])
    said = ("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate")
    assert refused(wanting(), taints=(evicting,)) == said
    assert refused(wanting(), taints=(keeping,)) is None
    assert refused(tolerant, taints=(evicting,)) is None
