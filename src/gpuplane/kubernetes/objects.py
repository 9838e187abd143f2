"""Objects of the API, one struct each, with the fields that our programs read (k8s.io/api/core/v1), and the amounts in
them. Other fields are not decoded, and take no memory.

What is only counted, as a pod's claims, is a struct without fields: `msgspec.Raw` would keep the whole page alive.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, TypeVar

import msgspec

from gpuplane.kubernetes.quantities import parse_quantity
from gpuplane.kubernetes.selectors import NodeSelector, Taint, Toleration

ONE_THOUSANDTH = Fraction(1, 1000)
ZERO_QUANTITY = Decimal(0)
MAX_AMOUNT = 1 << 50
"""What is more counts as that: amounts are added in 64 bits."""
HUGE_PAGES = "hugepages-"
Amount = str | int | float
Resources = Mapping[str, Amount]


class ApiStruct(msgspec.Struct, rename="camel", gc=False):
    """A part of the API's objects. What is decoded has no circles, so the garbage collector need not look at it."""


class OwnerReference(ApiStruct):
    """Who made an object, or has to live as long as it does."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMetadata(ApiStruct):
    """Of any object. `generation`: how often its spec was changed."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None
    deletion_timestamp: str | None = None


class ListMetadata(ApiStruct):
    """The version that a list is of. `continue_token`: where it goes on; "" at its end."""

    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class ApiObject(ApiStruct):
    """Any object, of which no more than its metadata is read."""

    metadata: ObjectMetadata


class Counted(ApiStruct):
    """Something of which it is only read that it is there."""


class NodeSpec(ApiStruct):
    """Whether pods may go there."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeCondition(ApiStruct):
    """How a node stands in one respect, and since when."""

    type: str
    status: str = ""
    last_transition_time: str | None = None


class NodeSystemInfo(ApiStruct):
    """The versions that kubelet reports."""

    container_runtime_version: str = ""
    kubelet_version: str = ""


class NodeStatus(ApiStruct):
    """What the node has, what of it pods may have, and how it stands."""

    capacity: Resources | None = None
    allocatable: Resources | None = None
    conditions: list[NodeCondition] | None = None
    node_info: NodeSystemInfo | None = None


class ApiNode(ApiObject):
    """A Node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)


class ResourceRequirements(ApiStruct):
    """What a container asks for, or a pod as a whole. Of extended resources the two are the same."""

    requests: Resources | None = None
    limits: Resources | None = None


class ContainerPort(ApiStruct):
    """A port that a container has, and perhaps takes of its node."""

    host_port: int = 0
    protocol: str = "TCP"


class Container(ApiStruct):
    """A container; as an init container with `restartPolicy` Always it is a sidecar."""

    name: str = ""
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    restart_policy: str | None = None
    ports: list[ContainerPort] | None = None

    @property
    def is_sidecar(self) -> bool:
        """Of an init container: whether it runs on beside those after it."""
        return self.restart_policy == "Always"

    def amounts(self) -> Resources:
        """What it asks for: where it does not say so, its limit (apiserver's defaults)."""
        return {**(self.resources.limits or {}), **(self.resources.requests or {})}


class NodeAffinity(ApiStruct):
    """Which nodes a pod has to go to."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class PodAffinity(ApiStruct):
    """Beside which pods it has to be, or must not be."""

    required: list[Counted] | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(ApiStruct):
    """What a pod wants to be near, or far from."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class SpreadConstraint(ApiStruct):
    """How evenly pods have to be spread."""

    when_unsatisfiable: str = ""


class PodClaim(ApiStruct):
    """A claim that a pod uses. It has no name where it is made of a template: then the pod's status has it."""

    name: str = ""
    resource_claim_name: str | None = None


class PodSpec(ApiStruct):
    """What a pod asks for, where it may go, and the node that it is bound to."""

    containers: list[Container] = []
    init_containers: list[Container] | None = None
    node_name: str | None = None
    node_selector: Mapping[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[SpreadConstraint] | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[Counted] | None = None
    overhead: Resources | None = None
    resources: ResourceRequirements | None = None
    resource_claims: list[PodClaim] | None = None


class ClaimedResource(ApiStruct):
    """An extended resource that a container has by a claim, and not of a device plugin."""

    resource_name: str = ""


class ExtendedResourceClaimStatus(ApiStruct):
    """The claim that the scheduler has made for extended resources."""

    request_mappings: list[ClaimedResource] | None = None


class ContainerStatus(ApiStruct):
    """What a container has: `resources` as it runs, `allocated_resources` as kubelet has admitted it."""

    name: str = ""
    resources: ResourceRequirements | None = None
    allocated_resources: Resources | None = None


class PodCondition(ApiStruct):
    """How a pod stands in one respect."""

    type: str = ""
    reason: str = ""


class PodStatus(ApiStruct):
    """Whether it has ended, what its containers have, and what it has by a claim."""

    phase: str = ""
    conditions: list[PodCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None


class ApiPod(ApiObject):
    """A Pod."""

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def has_ended(self) -> bool:
        """Whether it holds nothing any more. A pod that is being deleted still holds what it has."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def claimed(self) -> frozenset[str]:
        """The extended resources that it has by a claim: no device plugin gives them out, and no node counts them."""
        found = self.status.extended_resource_claim_status
        return frozenset(each.resource_name for each in found.request_mappings or ()) if found else frozenset()

    def amounts(self) -> Callable[[Container], dict[str, Decimal]]:
        """What counts of a container. While one is resized in place that is the larger of what it asks for and what it
        has, and what it has alone where its node can never give more (component-helpers, determineContainerReqs)."""
        status, once = self.status, {each.name for each in self.spec.init_containers or () if not each.is_sidecar}
        has = {
            each.name: larger(quantities(each.resources.requests), quantities(each.allocated_resources))
            for each in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
            if each.resources is not None and each.name not in once
        }
        conditions = {(each.type, each.reason) for each in status.conditions or ()}
        cannot_grow = ("PodResizePending", "Infeasible") in conditions

        def amounts(container: Container) -> dict[str, Decimal]:
            asked, had = quantities(container.amounts()), has.get(container.name)
            if had is None:
                return asked
            return had if cannot_grow else larger(asked, had)

        return amounts

    @property
    def host_ports(self) -> list[str]:
        """The ports that it takes of its node, named as resources of which each node has one; an address that it names
        for one is passed over (kube-scheduler, plugins/nodeports)."""
        sidecars = [each for each in self.spec.init_containers or () if each.is_sidecar]
        ports = [port for each in (*self.spec.containers, *sidecars) for port in each.ports or ()]
        return [f"host port {each.protocol} {each.host_port}" for each in ports if each.host_port]

    @property
    def has_claims(self) -> bool:
        """Whether it has devices by claims (DRA)."""
        return bool(self.spec.resource_claims or self.status.extended_resource_claim_status)


def quantities(resources: Resources | None) -> dict[str, Decimal]:
    """The amounts of resources; without those that are none."""
    found = {name: parse_quantity(f"{amount}") for name, amount in (resources or {}).items()}
    return {name: amount for name, amount in found.items() if amount is not None and amount > 0}


def added(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """The sum of two amounts of each resource."""
    return {**one, **{name: one.get(name, ZERO_QUANTITY) + amount for name, amount in other.items()}}


def larger(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """The larger of two amounts of each resource."""
    return {name: max(one.get(name, ZERO_QUANTITY), other.get(name, ZERO_QUANTITY)) for name in {**one, **other}}


def in_units(amount: Decimal, per: Fraction | int = 1, rounded: Literal["up", "down"] = "up") -> int:
    """An amount as a whole number of units of `per`."""
    number = amount if per == 1 else Fraction(amount) / per
    return min(math.ceil(number) if rounded == "up" else math.floor(number), MAX_AMOUNT)


def amount_of(resources: Resources, name: str, per: Fraction | int = 1, rounded: Literal["up", "down"] = "up") -> int:
    """A resource as a whole number of units of `per`; 0 where it is not named, or is no amount."""
    found = parse_quantity(f"{resources.get(name, '')}")
    return 0 if found is None or found <= 0 else in_units(found, per, rounded)


def model_name(text: str) -> str:
    """A model as the label `nvidia.com/gpu.product` spells it: other than the driver, it has no spaces."""
    return "-".join(text.split())


def is_number(text: str) -> bool:
    """Whether a text of others is a whole number, and of a size that is believed."""
    return text.isascii() and text.isdecimal() and len(text) < 10


T = TypeVar("T")
NOT_DECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_objects(
    found: Iterable[msgspec.Raw], shape: type[T], kind: str, before: int = 0
) -> tuple[list[T], dict[str, str]]:
    """(the objects that have this shape; of the others their name, or `kind` and place, → what is wrong): one that is
    malformed takes nobody with it. `before`: how many there are before them."""
    objects, unreadable = list[T](), dict[str, str]()
    decoder = msgspec.json.Decoder(shape)
    for place, each in enumerate(found, before + 1):
        try:
            objects.append(decoder.decode(each))
        except NOT_DECODED as error:
            unreadable[_name(each) or f"{kind} {place}"] = f"{error}"
    return objects, unreadable


def _name(found: msgspec.Raw) -> str:
    """What a malformed object is called; "" where it does not say that either."""
    try:
        metadata: Any = msgspec.json.decode(found, type=dict[str, Any]).get("metadata")
    except NOT_DECODED:
        return ""
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return ""
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if isinstance(namespace, str) else metadata["name"]
