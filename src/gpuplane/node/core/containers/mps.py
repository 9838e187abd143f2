"""Environment and mounts that make the CUDA programs of a container clients of an MPS daemon.

They are those of NVIDIA's plugin (k8s-device-plugin 0.20, internal/plugin/mps.go): a variable and a mount for the pipe
directory, below the resource's name, and a mount at /dev/shm for the memory that client and server share. One thing
differs on purpose: /dev/shm is that of the resource or of the MIG device, theirs is one for all clients of a node.
"""

from collections.abc import Sequence

from gpuplane.node.core.mps import daemon_directory, daemon_name
from gpuplane.node.core.withholding import MPS_PIPE_VARIABLE
from gpuplane.node.model.config import Settings
from gpuplane.node.model.views import ContainerAllocateResponse, Mount, OfferedDevice, RequestRefused, Resource

SHARED_MEMORY_PATH = "/dev/shm"  # noqa: S108 (a path in the container)


def mps_allocate_response(
    resource: Resource, devices: Sequence[OfferedDevice], settings: Settings
) -> ContainerAllocateResponse:
    """Environment and mounts of a client that holds these devices of a resource shared by MPS.

    Raises RequestRefused if the devices have several daemons: a CUDA program is a client of only one.
    """
    names = {daemon_name(resource.name, device.unit): None for device in devices}
    if len(names) > 1:
        raise RequestRefused(
            f"{resource.name}: {' and '.join(names)} have one MPS daemon each, but a container can be a client of only "
            "one: request shares of one MIG device"
        )
    host = f"{settings.mps_root.rstrip('/')}/{daemon_directory(next(iter(names)))}"
    pipe = f"/mps/{resource.name}/pipe"
    limit = f"0={resource.share_mib * len(devices)}M"  # by number: it sees one GPU
    return ContainerAllocateResponse(
        env={MPS_PIPE_VARIABLE: pipe} | ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit} if resource.share_mib else {}),
        mounts=(
            Mount(container_path=pipe, host_path=f"{host}/pipe"),
            Mount(container_path=SHARED_MEMORY_PATH, host_path=f"{host}/shm"),
        ),
    )
