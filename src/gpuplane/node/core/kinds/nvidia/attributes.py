"""Attributes and capacities of GPUs.

Names and types are NVIDIA's (dra-driver-nvidia-gpu 0.5, cmd/gpu-kubelet-plugin/deviceinfo.go), then Kubernetes' own
(dynamic-resource-allocation/deviceattribute; numaNode: KEP-6072), then ours: numa, index, clusterUUID, cliqueID.

The fullest MIG device has the 17 attributes and 15 capacities: there is no room for another name. So NVIDIA's
addressingMode is missing, which its own devices do not always have.
"""

import re
from collections.abc import Mapping

from gpuplane.node.core.kinds.attributes import NO_VERSION, STANDARD_DOMAIN, UNKNOWN, numa_attributes, text_attribute
from gpuplane.node.core.kinds.nvidia.architecture import gpu_family, parse_compute_capability
from gpuplane.node.model.machine import Driver, Gpu
from gpuplane.node.model.resourceslices import DeviceAttribute, DeviceCapacity

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
        "uuid": text_attribute(gpu.uuid),
        "productName": text_attribute(gpu.model),
        "architecture": text_attribute(architecture_name(gpu.compute_capability)),
        "cudaComputeCapability": _version(gpu.compute_capability),
        "driverVersion": _version(driver.version),
        "cudaDriverVersion": _version(driver.cuda),
        "index": DeviceAttribute(integer=gpu.index),
        f"{STANDARD_DOMAIN}pciBusID": text_attribute(gpu.pci.lower()),
        f"{STANDARD_DOMAIN}pcieRoot": text_attribute(gpu.pcie_root),
    }
    if fabric is not None:
        known |= {"clusterUUID": text_attribute(fabric.cluster), "cliqueID": DeviceAttribute(integer=fabric.clique)}
    return {**UNKNOWN, **known, **numa_attributes(gpu.numa)}


def gpu_capacity(gpu: Gpu) -> Mapping[str, DeviceCapacity]:
    """What a whole GPU has."""
    return {"memory": DeviceCapacity(memory_quantity(gpu.memory_mib))}


def absent_gpu_attributes(uuid: str) -> Mapping[str, DeviceAttribute]:
    """The attributes of a GPU that the machine does not have any more."""
    return {**UNKNOWN, "type": DeviceAttribute(string="gpu"), "uuid": text_attribute(uuid)}


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
