"""What a container gets with devices of a plain kind: the edits of its kind, by CDI or by kubelet.

A device list strategy with CDI means the same for them as for GPUs. Any other one is about NVIDIA's runtime, which
knows nothing of them: then kubelet passes the edits on.
"""

from collections.abc import Iterable, Sequence

from gpuplane.node.core.allocate.cdiannotation import cdi_annotation
from gpuplane.node.core.containers.cdi.names import plain_cdi_name
from gpuplane.node.core.containers.cdi.plainspecs import container_edits
from gpuplane.node.model.cdi import ContainerEdits
from gpuplane.node.model.config import Settings
from gpuplane.node.model.views import ContainerAllocateResponse, DeviceSpec, Mount, Unit


def plain_response(units: Sequence[Unit], settings: Settings, resource: str) -> ContainerAllocateResponse:
    """What a container gets that holds these units of a resource, by the strategies of `settings`, without `auto`."""
    strategies = settings.device_list_strategy
    qualified = tuple(plain_cdi_name(unit) for unit in units)
    if "cdi-cri" in strategies:
        return ContainerAllocateResponse(cdi_devices=qualified)
    if "cdi-annotations" in strategies:
        return ContainerAllocateResponse(annotations=cdi_annotation(qualified, settings, resource))
    return _response_of_edits(container_edits(unit, settings.stand_ins) for unit in units)


def _response_of_edits(edits: Iterable[ContainerEdits]) -> ContainerAllocateResponse:
    """The same by kubelet, which knows nodes, mounts and variables. Of what two units give, there is one."""
    env: dict[str, str] = {}
    nodes: dict[str, DeviceSpec] = {}
    mounts: dict[str, Mount] = {}
    for each in edits:
        env |= dict(variable.split("=", 1) for variable in each.env)
        nodes |= {
            node.path: DeviceSpec(
                container_path=node.path, host_path=node.host_path or node.path, permissions=node.permissions
            )
            for node in each.device_nodes
        }
        mounts |= {
            mount.container_path: Mount(
                container_path=mount.container_path, host_path=mount.host_path, read_only="ro" in mount.options
            )
            for mount in each.mounts
        }
    return ContainerAllocateResponse(env=env, mounts=tuple(mounts.values()), device_specs=tuple(nodes.values()))
