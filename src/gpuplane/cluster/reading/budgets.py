"""Which PodDisruptionBudgets a pod has, and how many disruptions they allow now.

Sources: k8s.io/api/policy/v1; kubernetes pkg/registry/core/pod/storage/eviction.go. A budget whose selector is empty is
for all pods of its namespace, and one without a selector for none.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gpuplane.kubernetes.objects import ApiPod, ObjectMetadata
from gpuplane.kubernetes.selectors import Requirement, meets

DEFAULT_NAMESPACE = "default"
"""The namespace of an object of a file that names none."""


class LabelSelector(msgspec.Struct, rename="camel"):
    """All of this has to be so."""

    match_labels: Mapping[str, str] | None = None
    match_expressions: list[Requirement] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether these labels match. `NotIn` also matches where there is no such label."""
        return all(labels.get(name) == value for name, value in (self.match_labels or {}).items()) and all(
            meets(each, labels.get(each.key)) for each in self.match_expressions or ()
        )


class BudgetSpec(msgspec.Struct):
    """Which pods it is for."""

    selector: LabelSelector | None = None


class BudgetStatus(msgspec.Struct, rename="camel"):
    """`disrupted_pods`: those that are being ended already, and count no more."""

    disruptions_allowed: int = 0
    disrupted_pods: Mapping[str, Any] | None = None


class ApiBudget(msgspec.Struct):
    """A PodDisruptionBudget."""

    metadata: ObjectMetadata
    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)

    @property
    def name(self) -> str:
        """Namespace/name."""
        return f"{self.metadata.namespace or DEFAULT_NAMESPACE}/{self.metadata.name}"


class Budgets:
    """All of a cluster. `allowed`: name → how many of its pods may end now."""

    def __init__(self, budgets: Iterable[ApiBudget]) -> None:
        self.allowed = dict[str, int]()
        self._by_label: dict[tuple[str, tuple[str, str] | None], list[ApiBudget]] = {}
        for each in budgets:
            if (selector := each.spec.selector) is None:
                continue
            self.allowed[each.name] = max(each.status.disruptions_allowed, 0)
            first = next(iter((selector.match_labels or {}).items()), None)
            self._by_label.setdefault((each.metadata.namespace or DEFAULT_NAMESPACE, first), []).append(each)

    def of(self, pod: ApiPod) -> tuple[str, ...]:
        """The names of those that a pod has. One that does not run yet, or ends already, has none: to end it disrupts
        nothing (eviction.go, canIgnorePDB)."""
        if pod.status.phase == "Pending" or pod.metadata.deletion_timestamp:
            return ()
        name, labels, namespace = (
            pod.metadata.name,
            pod.metadata.labels or {},
            pod.metadata.namespace or DEFAULT_NAMESPACE,
        )
        found = [each for first in (None, *labels.items()) for each in self._by_label.get((namespace, first), ())]
        return tuple(
            each.name
            for each in found
            if each.spec.selector is not None
            and each.spec.selector.matches(labels)
            and name not in (each.status.disrupted_pods or {})
        )
