"""ResourceClaims and ResourceSlices, with the fields that our programs read (k8s.io/api/resource/v1/types.go)."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gpuplane.kubernetes.objects import ApiObject, ApiStruct


class DeviceRequestResult(ApiStruct):
    """A device that a request of a claim was given."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")


class OpaqueParameters(ApiStruct):
    """What a driver alone understands."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class DeviceConfiguration(ApiStruct):
    """A configuration of some requests, of all where none is named. `source`: FromClass or FromClaim."""

    source: str = ""
    requests: tuple[str, ...] | None = None
    opaque: OpaqueParameters | None = None


class DeviceAllocation(ApiStruct):
    """What devices a claim has, and how they are configured."""

    results: tuple[DeviceRequestResult, ...] | None = None
    config: tuple[DeviceConfiguration, ...] | None = None


class ClaimAllocation(ApiStruct):
    """What the scheduler has given to a claim."""

    devices: DeviceAllocation = msgspec.field(default_factory=DeviceAllocation)


class ClaimConsumer(ApiStruct):
    """Who may use a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(ApiStruct):
    """`devices`: what drivers say of the devices that were given."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] | None = None
    devices: tuple[dict[str, Any], ...] | None = None


class ApiClaim(ApiObject):
    """A ResourceClaim."""

    status: ClaimStatus = msgspec.field(default_factory=ClaimStatus)


class ApiSlice(ApiObject):
    """A ResourceSlice. `spec`: all of it, to be compared with what is published."""

    spec: Mapping[str, Any] = {}
