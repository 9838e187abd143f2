"""Attributes and capacities of devices, by which claims choose among them.

Names and types are NVIDIA's (dra-driver-nvidia-gpu 0.5, cmd/gpu-kubelet-plugin/deviceinfo.go), then Kubernetes' own
(dynamic-resource-allocation/deviceattribute; numaNode: KEP-6072), then ours: numa, index, clusterUUID, cliqueID.
A claim aligns devices of several drivers by the names of Kubernetes (`matchAttribute`), so those are never left out.

- Every device of every type has every attribute. A selector on an attribute that a device does not have is an error
  that fails the pod, on this node and on every other (pkg dynamic-resource-allocation/cel). What is not known, or is
  nothing for a type, has the value of `UNKNOWN`.
- Attributes and capacities are 32 at the most, and a string has at most 64 bytes (resource.k8s.io/v1, validation.go).
  The fullest MIG device has the 17 attributes and 15 capacities: there is no room for another name. So NVIDIA's
  addressingMode is missing, which its own devices do not always have.
"""

import re
from collections.abc import Mapping

from gpuplane.node.core.kinds.nvidia.architecture import gpu_family, parse_compute_capability
from gpuplane.node.model.machine import Driver, Gpu
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
"""Each attribute that a device of any type has → its value where it is not known, or is nothing."""

MIG_CAPACITIES = (
    "multiprocessors",
    "copyEngines",
    "decoders",
    "encoders",
    "jpegEngines",
    "ofaEngines",
    "memory",
    *(f"memorySlice{n}" for n in range(8)),
)
"""The capacities that a MIG device of a whole GPU has."""


def gpu_attributes(driver: Driver | None, gpu: Gpu) -> Mapping[str, DeviceAttribute]:
    """The attributes of a whole GPU."""
    driver, fabric = driver or Driver(), gpu.fabric
    known = {
        "type": DeviceAttribute(string="gpu"),
        "uuid": _string(gpu.uuid),
        "productName": _string(gpu.model),
        "architecture": _string(architecture_name(gpu.compute_capability)),
        "cudaComputeCapability": _version(gpu.compute_capability),
        "driverVersion": _version(driver.version),
        "cudaDriverVersion": _version(driver.cuda),
        "index": DeviceAttribute(integer=gpu.index),
        f"{STANDARD_DOMAIN}pciBusID": _string(gpu.pci.lower()),
        f"{STANDARD_DOMAIN}pcieRoot": _string(gpu.pcie_root),
    }
    if gpu.numa is not None:
        known["numa"] = known[f"{STANDARD_DOMAIN}numaNode"] = DeviceAttribute(integer=gpu.numa)
    if fabric is not None:
        known |= {"clusterUUID": _string(fabric.cluster), "cliqueID": DeviceAttribute(integer=fabric.clique)}
    return {**UNKNOWN, **known}


def gpu_capacity(gpu: Gpu) -> Mapping[str, DeviceCapacity]:
    """What a whole GPU has."""
    return {"memory": DeviceCapacity(memory_quantity(gpu.memory_mib))}


def absent_gpu_attributes(uuid: str) -> Mapping[str, DeviceAttribute]:
    """The attributes of a GPU that the machine does not have any more."""
    return {**UNKNOWN, "type": DeviceAttribute(string="gpu"), "uuid": _string(uuid)}


def architecture_name(compute_capability: str) -> str:
    """NVIDIA's name of a family of GPUs: "Ada Lovelace" (go-nvlib, GetArchitectureAsString); "" where unknown."""
    capability = parse_compute_capability(compute_capability)
    family = gpu_family(capability) if capability is not None else "undefined"
    return "" if family == "undefined" else family.replace("-", " ").title()


def semantic_version(text: str) -> str:
    """A version of the driver as a semantic one: "470.82.01" is 470.82.1; "0.0.0" for what is none."""
    parts = text.split(".")[:3]
    if not all(re.fullmatch("[0-9]{1,9}", each) for each in parts):
        return NO_VERSION
    return ".".join([*(str(int(each)) for each in parts), "0", "0"][:3])


def memory_quantity(mib: int) -> str:
    """An amount of memory as the API server writes it: "80Gi", "81559Mi"; "0" where it is unknown."""
    if mib <= 0:
        return "0"
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def _version(text: str) -> DeviceAttribute:
    return DeviceAttribute(version=semantic_version(text))


def _string(text: str) -> DeviceAttribute:
    """As much of a text as a value may have; without what is unprintable."""
    printable = "".join(each for each in text if each.isprintable())
    return DeviceAttribute(string=printable.encode()[:MAX_STRING].decode(errors="ignore"))
