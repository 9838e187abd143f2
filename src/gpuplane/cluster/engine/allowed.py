"""To which nodes of a cluster rules allow a pod, all nodes at once: a requirement is decided once for each value that
nodes have of its label, not once for each node. What requirements and tolerations mean is said in
`kubernetes/selectors.py` alone.

Values are kept of the labels that rules ask about, and only nodes that were described anew are looked at again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np

from gpuplane.cluster.engine.arrays import Booleans, Integers, with_rows
from gpuplane.cluster.engine.changes import Changes, Rows
from gpuplane.cluster.model.nodes import Node
from gpuplane.cluster.model.requests import NodeRules
from gpuplane.kubernetes.selectors import NodeSelectorTerm, Requirement, Taint, meets, tolerates

What = TypeVar("What")

MAX_RULES = 512
"""Rules whose nodes are kept; those that were asked for longest ago go."""
MAX_LABELS = 64
"""Labels whose values are kept; those that were asked for longest ago go."""


class Allowed:
    """Of one cluster."""

    def __init__(self) -> None:
        self._rules: OrderedDict[NodeRules, tuple[int, Booleans]] = OrderedDict()  # rules → (version, of each row)
        self._labels: OrderedDict[str, _Values[str]] = OrderedDict()
        self._names: _Values[str] = _Values(lambda node: node.name)
        self._taints: _Values[tuple[Taint, ...]] = _Values(lambda node: node.taints)

    def rows(self, cluster: Rows, rules: NodeRules) -> Booleans:
        """Of each row, whether a pod with such rules may go there. Not to be written to."""
        version, found = self._rules.pop(rules, (-1, np.zeros(0, np.bool_)))
        if version < cluster.inventory_version:
            found, rows = with_rows(found, len(cluster.nodes)), cluster.rows_with_inventory_changed_since(version)
            found[rows] = self._decide(cluster, rows, rules)
        self._rules[rules] = cluster.version, found
        if len(self._rules) > MAX_RULES:
            self._rules.popitem(last=False)
        return found

    def _decide(self, cluster: Rows, rows: Integers, rules: NodeRules) -> Booleans:
        found = self._taints.decide(
            cluster, rows, lambda taints: taints is not None and tolerates(rules.tolerations, taints)
        )
        for key, value in rules.labels:
            found &= self._meet(cluster, rows, Requirement(key, "In", (value,)))
        if rules.affinity is not None:
            matches = np.zeros(len(rows), np.bool_)
            for term in rules.affinity.node_selector_terms:
                matches |= self._match(cluster, rows, term)
            found &= matches
        return found

    def _match(self, cluster: Rows, rows: Integers, term: NodeSelectorTerm) -> Booleans:
        found = np.full(len(rows), bool(term.match_expressions or term.match_fields))
        for each in term.match_expressions:
            found &= self._meet(cluster, rows, each)
        for each in term.match_fields:
            found &= _meet(self._names, cluster, rows, each) if each.key == "metadata.name" else np.False_
        return found

    def _meet(self, cluster: Rows, rows: Integers, requirement: Requirement) -> Booleans:
        """Which rows have a label as it is required."""
        key = requirement.key
        values = self._labels.pop(key, None)
        if values is None:
            values = _Values(lambda node: node.labels.get(key))
        self._labels[key] = values
        if len(self._labels) > MAX_LABELS:
            self._labels.popitem(last=False)
        return _meet(values, cluster, rows, requirement)


class _Values(Generic[What]):
    """What `of` finds of each node, None of one that has gone, as numbers: equal values have the same one."""

    def __init__(self, of: Callable[[Node], What | None]) -> None:
        self._of, self._changes = of, Changes(of_nodes=True)
        self._numbers: dict[What | None, int] = {}
        self._of_row = np.zeros(0, np.int32)

    def decide(
        self,
        cluster: Rows,
        rows: Integers,
        decide: Callable[[What | None], bool],
        only: Iterable[What | None] | None = None,
        others: bool = False,
    ) -> Booleans:
        """What is decided for the value of each of these rows; where `only` some values have to be asked about, what is
        true of all `others`."""
        self._follow(cluster)
        decided = np.full(len(self._numbers), others)
        for value in self._numbers if only is None else only:
            if (number := self._numbers.get(value)) is not None:
                decided[number] = decide(value)
        found: Booleans = decided[self._of_row[rows]]
        return found

    def _follow(self, cluster: Rows) -> None:
        rows = self._changes.look(cluster)
        if not len(rows):
            return
        self._of_row = with_rows(self._of_row, len(cluster.nodes))
        if len(self._numbers) > 2 * len(cluster.nodes):  # most of them are of the past
            self._numbers, rows = {}, np.arange(len(cluster.nodes))
        for row in rows.tolist():
            node = cluster.nodes[row]
            value = None if node is None else self._of(node)
            self._of_row[row] = self._numbers.setdefault(value, len(self._numbers))


def _meet(values: "_Values[str]", cluster: Rows, rows: Integers, requirement: Requirement) -> Booleans:
    """Which rows meet a requirement. Unless it compares numbers, all values are alike to it but none and its own."""
    only = None if requirement.operator in ("Gt", "Lt") else (None, *requirement.values)
    another = max(requirement.values, key=len, default="") + "x"
    return values.decide(cluster, rows, lambda value: meets(requirement, value), only, meets(requirement, another))
