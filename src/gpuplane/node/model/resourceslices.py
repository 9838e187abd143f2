"""ResourceSlices of Dynamic Resource Allocation: what this node offers to claims.

Fields are those of resource.k8s.io/v1
(https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/), as far as we publish them.
"""

from collections.abc import Mapping
from typing import Any

from gpuplane.base.value import Value
from gpuplane.node.model.config import TaintEffect


class DeviceAttribute(Value, rename={"boolean": "bool", "integer": "int"}):
    """The value of an attribute: one of these. `version`: a semantic version, 2.0.0."""

    string: str | None = None
    version: str | None = None
    integer: int | None = None
    boolean: bool | None = None


class DeviceCapacity(Value):
    """How much a device has of something. `value`: a quantity, "80Gi"."""

    value: str


class DeviceTaint(Value):
    """What keeps claims away from a device, or is worth knowing. When it was added, the API server says."""

    key: str
    effect: TaintEffect
    value: str = ""  # an API server leaves out an empty one, and so do we

    @property
    def keeps_pods_away(self) -> bool:
        """Whether claims that do not tolerate it do not get the device."""
        return self.effect != "None"


class SliceDevice(Value):
    """One device of a slice. An attribute's name has the driver as its domain where it names no other."""

    name: str
    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, DeviceCapacity]
    taints: tuple[DeviceTaint, ...] = ()


class ResourceSlice(Value):
    """One slice, which is all of its pool. `allocated`: names of the devices that claims hold.

    The generation of a pool is the API server's to know: it is no part of this.
    """

    name: str
    driver: str
    node: str
    pool: str
    devices: tuple[SliceDevice, ...]
    allocated: frozenset[str] = frozenset()


class KeptSlice(Value):
    """A slice as the API server has it. `owner`: the UID of the Node that owns it; "" where that is none.

    `spec`: JSON, as the server writes it.
    """

    name: str
    uid: str
    version: str  # its resourceVersion
    owner: str
    spec: Mapping[str, Any]


class ServerAbilities(Value):
    """What an API server makes of slices. `keeps_taints`: None while that is not known.

    `takes_soft_taints`: taints of effect None are 1.35's; a server before that refuses a slice that has one.
    """

    keeps_taints: bool | None = None
    takes_soft_taints: bool = True
