"""Claims for devices and their allocations, as the scheduler reads and writes them (api/resource/v1/types.go)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.kubernetes.objects import ObjectMetadata
from gpuplane.kubernetes.selectors import NodeSelector, Toleration
from gpuplane.sandbox.scheduler.objects import Json, Object
from gpuplane.sandbox.scheduler.slices import Configuration, Selector


class CapacityRequest(Object, frozen=True):
    requests: Mapping[str, Any] = {}


class ExactRequest(Object, frozen=True):
    """A request for devices of one class; `name` where it is one of several to choose from."""

    device_class_name: str
    name: str = ""
    selectors: tuple[Selector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequest = CapacityRequest()


class Request(Object, frozen=True):
    name: str
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()


class Constraint(Object, frozen=True):
    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class DeviceClaim(Object, frozen=True):
    requests: tuple[Request, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    config: tuple[Configuration, ...] = ()


class ClaimSpec(Object, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class Result(Object, frozen=True):
    """One device that a claim got."""

    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    tolerations: tuple[Toleration, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: Mapping[str, Any] = {}

    @property
    def id(self) -> tuple[str, str, str]:
        """Which device it is: driver, pool, name."""
        return self.driver, self.pool, self.device


class DeviceAllocation(Object, frozen=True):
    results: tuple[Result, ...] = ()
    config: tuple[Configuration, ...] = ()


class Allocation(Object, frozen=True):
    devices: DeviceAllocation = DeviceAllocation()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None


class Consumer(Object, frozen=True):
    resource: str
    name: str
    uid: str
    api_group: str = ""


class DeviceStatus(Object, frozen=True):
    driver: str
    pool: str
    device: str
    conditions: tuple[Json, ...] = ()

    @property
    def id(self) -> tuple[str, str, str]:
        """Which device it is about: driver, pool, name."""
        return self.driver, self.pool, self.device


class ClaimStatus(Object, frozen=True):
    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


class ResourceClaim(Object, frozen=True):
    metadata: ObjectMetadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def key(self) -> str:
        """Its namespace and name, as messages have it."""
        return f"{self.metadata.namespace}/{self.metadata.name}"
