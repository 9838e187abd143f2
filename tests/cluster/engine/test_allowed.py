"""Which nodes rules allow is what the plain functions say of each node, after any history."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.cluster.engine.cluster import Cluster
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import NO_NODE_RULES, NodeRules
from gpuplane.kubernetes import selectors as nodeselection
from gpuplane.kubernetes.selectors import (
    NodeSelector,
    NodeSelectorTerm,
    Requirement,
    Taint,
    Toleration,
    matches_node,
    tolerates,
)

NAMES = ("a", "b", "c", "d", "e")
KEYS, VALUES = st.sampled_from(["zone", "tier", "3"]), st.sampled_from(["", "x", "xx", "3", "-4", "+5", "7.5"])
EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
NODES = st.builds(
    Node,
    name=st.sampled_from(NAMES),
    cpu_milli=st.just(1000),
    memory_bytes=st.just(0),
    labels=st.dictionaries(KEYS, VALUES),
    taints=st.lists(st.builds(Taint, KEYS, EFFECTS, VALUES), max_size=2).map(tuple),
)
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "of another API"])
EXPRESSIONS = st.builds(Requirement, KEYS, OPERATORS, st.lists(VALUES, max_size=3).map(tuple))
FIELDS = st.builds(
    Requirement,
    st.sampled_from(["metadata.name", "metadata.name", "metadata.namespace"]),
    OPERATORS,
    st.lists(st.sampled_from([*NAMES, "of no node"]), max_size=3).map(tuple),
)
TERMS = st.builds(
    NodeSelectorTerm, st.lists(EXPRESSIONS, max_size=2).map(tuple), st.lists(FIELDS, max_size=2).map(tuple)
)
RULES = st.builds(
    NodeRules,
    labels=st.lists(st.tuples(KEYS, VALUES), max_size=2).map(tuple),
    affinity=st.none() | st.builds(NodeSelector, st.lists(TERMS, max_size=3).map(tuple)),
    tolerations=st.lists(
        st.builds(
            Toleration,
            st.just("") | KEYS,
            st.sampled_from(["", "Equal", "Exists", "of another API"]),
            VALUES,
            st.just("") | EFFECTS,
        ),
        max_size=2,
    ).map(tuple),
)


def allows(rules: NodeRules, node: Node | None) -> bool:
    """As the API's documentation says it, node by node."""
    return (
        node is not None
        and all(node.labels.get(key) == value for key, value in rules.labels)
        and (rules.affinity is None or matches_node(rules.affinity, node.name, node.labels))
        and tolerates(rules.tolerations, node.taints)
    )


@given(st.lists(NODES | st.sampled_from(NAMES), max_size=15), st.lists(RULES, min_size=1, max_size=4), st.data())
def test_rules_allow_what_the_plain_functions_say(
    history: list[Node | str], rules: list[NodeRules], data: st.DataObject
) -> None:
    """Nodes come, are described anew, and go (a name); fewer rules and labels are kept than are asked for."""
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gpuplane.cluster.engine.allowed.MAX_RULES", 2)
        patched.setattr("gpuplane.cluster.engine.allowed.MAX_LABELS", 1)
        for event in history:
            if isinstance(event, Node):
                cluster.put_node(event)
            elif event in cluster.rows:
                cluster.remove_node(event)
            if data.draw(st.booleans()):
                cluster = cluster.copy()
            each = data.draw(st.sampled_from(rules))
            rows = np.array(data.draw(st.lists(st.sampled_from(range(len(cluster.nodes) or 1)))), np.int64)
            rows = rows[rows < len(cluster.nodes)]
            assert cluster.is_allowed(rows, each).tolist() == [allows(each, cluster.nodes[row]) for row in rows]


def test_a_rule_that_nobody_had_is_not_decided_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each pod names its node."""
    cluster = Cluster(Node(f"n{number}", 1, 0, labels={"host": f"n{number}"}) for number in range(300))
    asked = list[str | None]()

    def counted(requirement: Requirement, value: str | None) -> bool:
        asked.append(value)
        return nodeselection.meets(requirement, value)

    monkeypatch.setattr("gpuplane.cluster.engine.allowed.meets", counted)
    for number in range(0, 300, 30):
        host = Requirement("host", "In", (f"n{number}",))
        name = Requirement("metadata.name", "NotIn", (f"n{number + 1}",))
        rules = NodeRules((), NodeSelector((NodeSelectorTerm((host,), (name,)),)))
        assert np.flatnonzero(cluster.is_allowed(np.arange(300), rules)).tolist() == [number]
    assert len(asked) <= 10 * 2 * 3


def test_values_that_are_gone_are_forgotten() -> None:
    """As of a label that changes with each heartbeat."""
    cluster = Cluster([Node("a", 1, 0), Node("b", 1, 0, labels={"beat": "0"})])
    for number in range(1000):
        cluster.put_node(Node("a", 1, 0, labels={"beat": str(number)}))
        rules = NodeRules((("beat", str(number)),))
        assert cluster.is_allowed(np.arange(2), rules).tolist() == [True, number == 0]
    assert len(cluster._allowed._labels["beat"]._numbers) < 10
    assert cluster.is_allowed(np.arange(2), NO_NODE_RULES).all()
