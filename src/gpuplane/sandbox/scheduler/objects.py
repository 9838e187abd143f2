"""What the scheduler reads of the API's objects, and how it writes them (k8s.io/api/resource/v1/types.go).

Nodes, Pods and metadata are those of `kubernetes/objects.py`. Claims, slices and classes are structs of its own: it
copies parts of them into the allocation that it writes, which have to come out as they went in.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gpuplane.kubernetes.objects import ObjectMetadata
from gpuplane.kubernetes.selectors import NodeSelector, Taint, Toleration

Json = dict[str, Any]
DeviceId = tuple[str, str, str]
"""Driver, pool, name."""
Kind = TypeVar("Kind", bound=msgspec.Struct)


class Object(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of the API's objects."""


class Device(Object, frozen=True):
    """A device of a slice. Of shares, of counters and of binding conditions it is only read that it has them."""

    name: str
    attributes: Mapping[str, Json] = {}
    capacity: Mapping[str, Json] = {}
    taints: tuple[Taint, ...] = ()
    allow_multiple_allocations: bool = False
    binding_conditions: tuple[str, ...] = ()
    consumes_counters: tuple[Json, ...] = ()


class PoolVersion(Object, frozen=True):
    """What a slice says of its pool."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Object, frozen=True):
    """The devices of a slice, and the nodes that reach them."""

    driver: str
    pool: PoolVersion
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    devices: tuple[Device, ...] = ()


class ResourceSlice(Object, frozen=True):
    """A ResourceSlice."""

    metadata: ObjectMetadata
    spec: SliceSpec


class Expression(Object, frozen=True):
    """A text in CEL."""

    expression: str


class Selector(Object, frozen=True):
    """What chooses devices."""

    cel: Expression | None = None


class Configuration(Object, frozen=True):
    """Of a class or a claim; in an allocation it says where it is from."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: Json | None = None


class ClassSpec(Object, frozen=True):
    """Which devices are of a class."""

    selectors: tuple[Selector, ...] = ()
    config: tuple[Configuration, ...] = ()


class DeviceClass(Object, frozen=True):
    """A DeviceClass."""

    metadata: ObjectMetadata
    spec: ClassSpec = ClassSpec()


class ExactRequest(Object, frozen=True):
    """A request for devices of one class; `name` where it is one of several to choose from."""

    device_class_name: str
    name: str = ""
    selectors: tuple[Selector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()


class Request(Object, frozen=True):
    """A request, or several to choose from."""

    name: str
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()


class Constraint(Object, frozen=True):
    """What the devices of requests have in common, or not."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Object, frozen=True):
    """What a claim asks for."""

    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Configuration, ...] = ()


class ClaimSpec(Object, frozen=True):
    """What a claim asks for."""

    devices: DeviceClaim = DeviceClaim()


class Result(Object, frozen=True):
    """One device that a claim got."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def id(self) -> DeviceId:
        """Which device it is."""
        return self.driver, self.pool, self.device


class DeviceAllocation(Object, frozen=True):
    """The devices that a claim got, and how they are configured."""

    results: tuple[Result, ...] = ()
    config: tuple[Configuration, ...] = ()


class Allocation(Object, frozen=True):
    """What a claim got, and the nodes that reach it."""

    devices: DeviceAllocation = DeviceAllocation()
    node_selector: NodeSelector | None = None


class Consumer(Object, frozen=True):
    """For whom a claim is reserved."""

    resource: str
    name: str
    uid: str


class ClaimStatus(Object, frozen=True):
    """What became of a claim."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(Object, frozen=True):
    """A ResourceClaim."""

    metadata: ObjectMetadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def key(self) -> str:
        """Its namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


def from_object(found: Json, kind: type[Kind]) -> Kind:
    """An object of the API as a value. Raises ValueError where a field has another type than the API's."""
    return msgspec.convert(_without_nulls(found), kind)


def from_objects(found: Sequence[Json], kind: type[Kind]) -> tuple[Kind, ...]:
    """Several of them."""
    return tuple(from_object(each, kind) for each in found)


def to_object(value: Object) -> Json:
    """A value as the API has it."""
    found: Json = msgspec.json.decode(msgspec.json.encode(value))
    return found


def _without_nulls(found: Any) -> Any:
    """The API has null for what is not there, as kubectl's users do."""
    if isinstance(found, Mapping):
        return {key: _without_nulls(each) for key, each in found.items() if each is not None}
    return [_without_nulls(each) for each in found] if isinstance(found, list | tuple) else found
