"""Attributes by which claims choose among devices: those that every device of our driver has, whatever its kind.

- A selector on an attribute that a device does not have is an error that fails the pod, on this node and on every other
  (pkg dynamic-resource-allocation/cel). So every device of every kind has the attributes of `UNKNOWN` and the
  capacities of `NO_CAPACITY`; what is not known, or is nothing for a kind, has the value that stands there.
- Attributes and capacities are 32 at the most, and a string has at most 64 bytes (resource.k8s.io/v1, validation.go).
- A kind may have attributes of its own. Their names have a domain, so that they are none of those here.
- A claim aligns devices of several drivers by the names of Kubernetes (`matchAttribute`; KEP-6072), so those are never
  left out.
"""

from collections.abc import Mapping

from gpuplane.node.model.resourceslices import DeviceAttribute, DeviceCapacity

MAX_STRING = 64
"""Bytes."""

MAX_NAMES = 32
"""Attributes and capacities of a device, together."""

STANDARD_DOMAIN = "resource.kubernetes.io/"

NO_VERSION = "0.0.0"

UNKNOWN: Mapping[str, DeviceAttribute] = {
    "type": DeviceAttribute(string=""),
    "uuid": DeviceAttribute(string=""),
    "parentUUID": DeviceAttribute(string=""),  # of a MIG device
    "profile": DeviceAttribute(string=""),  # of a MIG device
    "productName": DeviceAttribute(string=""),
    "brand": DeviceAttribute(string=""),
    "architecture": DeviceAttribute(string=""),
    "cudaComputeCapability": DeviceAttribute(version=NO_VERSION),
    "driverVersion": DeviceAttribute(version=NO_VERSION),
    "cudaDriverVersion": DeviceAttribute(version=NO_VERSION),
    "numa": DeviceAttribute(integer=-1),
    "index": DeviceAttribute(integer=-1),
    "clusterUUID": DeviceAttribute(string=""),  # of the NVLink fabric
    "cliqueID": DeviceAttribute(integer=-1),
    f"{STANDARD_DOMAIN}numaNode": DeviceAttribute(integer=-1),
    f"{STANDARD_DOMAIN}pciBusID": DeviceAttribute(string=""),
    f"{STANDARD_DOMAIN}pcieRoot": DeviceAttribute(string=""),
}
"""Each attribute that a device of any kind has → its value where it is not known, or is nothing."""

NO_CAPACITY: Mapping[str, DeviceCapacity] = {"memory": DeviceCapacity("0")}
"""Likewise, each capacity."""


def text_attribute(text: str) -> DeviceAttribute:
    """As much of a text as a value may have; without what is unprintable."""
    printable = "".join(each for each in text if each.isprintable())
    return DeviceAttribute(string=printable.encode()[:MAX_STRING].decode(errors="ignore"))


def numa_attributes(numa: int | None) -> Mapping[str, DeviceAttribute]:
    """The NUMA node, by both of its names; {} where it is not known."""
    if numa is None:
        return {}
    return dict.fromkeys(("numa", f"{STANDARD_DOMAIN}numaNode"), DeviceAttribute(integer=numa))
