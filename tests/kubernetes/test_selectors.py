"""Nodes are selected, and taints tolerated, as kube-scheduler does it."""

from typing import Any

import msgspec
import pytest

from gpuplane.kubernetes.selectors import NodeSelector, Taint, Toleration, matches_node, tolerates

LABELS = {"n": "5", "model": "A100", "signed": "-3", "odd": "1_0"}


def term(*expressions: dict[str, Any], name: str = "") -> dict[str, Any]:
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]}] if name else []
    return {"matchExpressions": list(expressions), "matchFields": fields}


def needs(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("terms", "matching"),
    [
        ([term(needs("n", "Gt", "4"))], True),
        ([term(needs("n", "Lt", "5"))], False),
        ([term(needs("n", "Gt", "x"))], False),
        ([term(needs("n", "Gt"))], False),
        ([term(needs("signed", "Lt", "-2"))], True),
        ([term(needs("odd", "Gt", "1"))], False),
        ([term(needs("n", "Exists"))], True),
        ([term(needs("m", "DoesNotExist"))], True),
        ([term(needs("m", "NotIn", "5"))], True),
        ([term(needs("m", "In", "5"))], False),
        ([term(needs("n", "Near", "5"))], False),
        ([term(needs("model", "In", "A100", "H100"), needs("n", "In", "6"))], False),
        ([term(needs("model", "In", "H100")), term(needs("n", "In", "5"))], True),
        ([term(name="node")], True),
        ([term(needs("n", "Exists"), name="other")], False),
        ([{}], False),
        ([], False),
    ],
)
def test_what_a_selector_matches(terms: list[dict[str, Any]], matching: bool) -> None:
    """k8s.io/component-helpers/scheduling/corev1/nodeaffinity."""
    selector = msgspec.convert({"nodeSelectorTerms": terms}, NodeSelector)

    assert matches_node(selector, "node", LABELS) is matching


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        (Toleration("k", "Exists"), True),
        (Toleration("k", "", "v"), True),
        (Toleration("k", "Equal", "v", "NoSchedule"), True),
        (Toleration("", "Exists"), True),
        (Toleration("k", "Equal", "w"), False),
        (Toleration("l", "Exists"), False),
        (Toleration("k", "Exists", "", "NoExecute"), False),
        (Toleration("k", "Unknown", "v"), False),
    ],
)
def test_what_is_tolerated(toleration: Toleration, is_tolerated: bool) -> None:
    """k8s.io/api/core/v1/toleration.go, ToleratesTaint."""
    taint = Taint("k", "NoSchedule", "v")

    assert tolerates([toleration], [taint]) is is_tolerated
    assert tolerates([toleration], [taint, Taint("z", "PreferNoSchedule")]) is is_tolerated
    assert not tolerates([toleration], [taint, Taint("z", "NoExecute", "no")]) or toleration.key == ""
