"""Plain device nodes, as /dev/kvm and /dev/fuse: a container gets the nodes of the device, and nothing else.

A device is offered as `gpuplane.io/ID`, or by the name in its attribute `resource`: several devices may have one name,
and "devices.kubevirt.io/kvm" keeps its prefix.
"""

from gpuplane.kubernetes.resourcenames import OWN_PREFIX, qualified_resource_name
from gpuplane.node.core.kinds.kind import plain_kind
from gpuplane.node.model.health import CatalogueEntry
from gpuplane.node.model.machine import Device

RESOURCE_ATTRIBUTE = "resource"

FAULTS = {
    "device-node-missing": CatalogueEntry(
        title="a device node does not exist",
        detected_by="look",
        scope="instance",
        severity="unhealthy",
        clear_when="no-longer-seen",
        advice="load the kernel module that creates the device node",
    )
}


def _resource_name(device: Device) -> str:
    domain, slash, name = device.attributes.get(RESOURCE_ATTRIBUTE, device.id.lower()).rpartition("/")
    return qualified_resource_name(name, f"{domain}/" if slash else OWN_PREFIX)


DEVICE_NODE = plain_kind("device-node", resource_name=_resource_name, faults=FAULTS, attributes=[RESOURCE_ATTRIBUTE])
