"""Whether kubelet admits a pod, but for its devices (pkg/kubelet/lifecycle/predicate.go, generalFilter)."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction

import msgspec

from gpuplane.cluster.reading.pods import total_resources
from gpuplane.kubernetes.objects import ApiPod, in_units
from gpuplane.kubernetes.selectors import Taint, matches_node, tolerates
from gpuplane.sandbox.kubelet.pods import PodRejected
from gpuplane.sandbox.node.objects import PodObject

COUNTED = ("cpu", "memory", "ephemeral-storage")
"""What kubelet counts beside the devices of plugins, in the order in which it looks."""
CPU_UNIT = Fraction(1, 1000)


def refuse(
    pod: PodObject,
    others: Iterable[PodObject],
    allocatable: Mapping[str, Decimal],
    labels: Mapping[str, str],
    taints: Iterable[Taint],
) -> PodRejected | None:
    """Why a pod is rejected beside those that the node has; None where it fits. The first reason counts."""
    others = list(others)
    if len(others) + 1 > allocatable["pods"]:
        return _insufficient("pods", 1, len(others), int(allocatable["pods"]))
    wanted, used = _requests(pod), [_requests(each) for each in others]
    for name in COUNTED:
        asked = _units(name, wanted.get(name, Decimal(0)))
        taken = _units(name, sum((each.get(name, Decimal(0)) for each in used), Decimal(0)))
        capacity = _units(name, allocatable[name])
        if asked and asked > capacity - taken:
            return _insufficient(name, asked, taken, capacity)
    spec = as_api_pod(pod).spec
    required = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    is_selected = all(labels.get(key) == value for key, value in (spec.node_selector or {}).items())
    if not is_selected or (required and not matches_node(required, str(pod.spec["nodeName"]), labels)):
        return _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if not tolerates(spec.tolerations or (), (each for each in taints if each.effect == "NoExecute")):
        return _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")
    return None


def as_api_pod(pod: PodObject) -> ApiPod:
    """With the fields that our programs read."""
    return msgspec.convert(msgspec.to_builtins(pod), ApiPod)


def _requests(pod: PodObject) -> dict[str, Decimal]:
    return total_resources(as_api_pod(pod))


def _units(name: str, amount: Decimal) -> int:
    return in_units(amount, CPU_UNIT if name == "cpu" else 1)


def _insufficient(name: str, requested: int, used: int, capacity: int) -> PodRejected:
    numbers = f"requested: {requested}, used: {used}, capacity: {capacity}"
    return PodRejected(f"OutOf{name}", f"Pod was rejected: Node didn't have enough resource: {name}, {numbers}")


def _failed(predicate: str, description: str) -> PodRejected:
    return PodRejected(predicate, f"Pod was rejected: Predicate {predicate} failed: {description}")
