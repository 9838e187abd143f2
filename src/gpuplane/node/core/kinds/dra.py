"""How Dynamic Resource Allocation knows the devices of a kind: in ResourceSlices, and when a claim gets one.

All kinds are of one driver, as NVIDIA's own driver has whole GPUs, MIG devices and others: the attribute `type` tells
them apart, and a DeviceClass tests it. So one claim may have devices of several kinds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gpuplane.base.value import Value
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.claims import AllocatedClaim, PreparedDevice
from gpuplane.node.model.machine import DeviceList, Machine
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.resourceslices import DeviceAttribute, DeviceCapacity

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A name of a device (RFC 1123; pkg/apis/resource/validation/validation.go)."""


class DraDevice(Value):
    """A device as claims may have it.

    `unit`: its id. `name`: its name in its pool; "" for none, then it is in no slice. `parts`: ids of units that lie in
    it. `not_claimable`: why no claim can get it now; then it is published only while a claim has it. `problem`: what is
    wrong with it beside its health. `container_edits`: None: `core/containers` says it, as of `Kind`.
    """

    unit: str
    name: str
    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, DeviceCapacity]
    parts: tuple[str, ...] = ()
    not_claimable: Reason | None = None
    problem: Reason | None = None
    container_edits: ContainerEdits | None = None


class KindInDra(NamedTuple):
    """What a kind says of its devices to Dynamic Resource Allocation."""

    name_prefix: str  # how the names of its devices in pools begin: "gpu-"
    device_name: Callable[[str], str]
    """The name of a unit in its pool, by its id; "" where the id makes no name. It never changes."""
    unit_by_name: Callable[[str], str]
    """The unit of a name, before the devices have been counted: its id, or `record_key` of the kind for any of them."""
    devices: Callable[[Machine | None, DeviceList], Sequence[DraDevice] | None]
    """All devices, in a stable order; None while they have not been counted."""
    absent_device: Callable[[str], DraDevice]
    """A device that a claim has and that is not there any more, by its id."""
    configure: Callable[[PreparedDevice, AllocatedClaim], PreparedDevice]
    """The device as the claim's opaque configuration wants it. Raises InvalidConfig."""
    fault_taint: Callable[[str], tuple[str, str] | None] = lambda code: None
    """The taint of a fault, by its code: (name in the domain of the driver, value); None: one of gpuplane.io."""
    is_awaited: bool = False
    """Whether no slice is published before its devices have been counted: all nodes have a source of them."""
