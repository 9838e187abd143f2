"""Devices, their pools, and classes of them, as the scheduler reads them (k8s.io/api/resource/v1/types.go)."""

from collections.abc import Mapping

from gpuplane.kubernetes.objects import ObjectMetadata
from gpuplane.kubernetes.selectors import NodeSelector, Taint
from gpuplane.sandbox.scheduler.objects import Json, Object


class CounterConsumption(Object, frozen=True):
    """What a device takes of a set of counters, and the set itself: quantities by counter."""

    counters: Mapping[str, Json] = {}
    counter_set: str = ""
    name: str = ""


class Device(Object, frozen=True):
    name: str
    attributes: Mapping[str, Json] = {}
    capacity: Mapping[str, Json] = {}
    taints: tuple[Taint, ...] = ()
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    allow_multiple_allocations: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    binds_to_node: bool = False
    consumes_counters: tuple[CounterConsumption, ...] = ()


class PoolVersion(Object, frozen=True):
    """What a slice says of its pool."""

    name: str
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Object, frozen=True):
    driver: str
    pool: PoolVersion
    node_name: str | None = None
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterConsumption, ...] = ()


class ResourceSlice(Object, frozen=True):
    metadata: ObjectMetadata
    spec: SliceSpec


class Expression(Object, frozen=True):
    expression: str


class Selector(Object, frozen=True):
    cel: Expression | None = None


class Configuration(Object, frozen=True):
    """Of a class or a claim; in an allocation it says where it is from."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: Json | None = None


class ClassSpec(Object, frozen=True):
    selectors: tuple[Selector, ...] = ()
    config: tuple[Configuration, ...] = ()
    extended_resource_name: str = ""


class DeviceClass(Object, frozen=True):
    metadata: ObjectMetadata
    spec: ClassSpec = ClassSpec()
