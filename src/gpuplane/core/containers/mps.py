"""What a container gets beside its devices so that its CUDA programs are clients of an MPS daemon.

As NVIDIA's plugin has it (k8s-device-plugin 0.20, internal/plugin/mps.go): the pipe directory by environment and mount,
under the resource's name, and what client and server share as /dev/shm. One thing is otherwise, on purpose: /dev/shm is
that of the resource, or of the MIG device, where theirs is one for all clients of a node.
"""

from collections.abc import Sequence

from gpuplane.core.mps import daemon, directory
from gpuplane.core.withholding import MPS_PIPE_VARIABLE
from gpuplane.model.config import Settings
from gpuplane.model.views import AllocateResponse, Mount, OfferedDevice, Refused, Resource

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (a path in the container)


def mps_client_edits(resource: Resource, devices: Sequence[OfferedDevice], settings: Settings) -> AllocateResponse:
    """Environment and mounts of a client that holds these devices of a resource shared by MPS.

    Raises Refused where they have more than one daemon: a CUDA program speaks to one.
    """
    names = {daemon(resource.name, device.unit): None for device in devices}
    if len(names) > 1:
        raise Refused(
            f"{resource.name}: {' and '.join(names)} have an MPS daemon each, and a container is a client of one: "
            "request shares of one MIG device"
        )
    host = f"{settings.mps_root.rstrip('/')}/{directory(next(iter(names)))}"
    pipe = f"/mps/{resource.name}/pipe"
    limit = f"0={resource.share_mib * len(devices)}M"  # by number: it sees one GPU
    return AllocateResponse(
        env={MPS_PIPE_VARIABLE: pipe} | ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limit} if resource.share_mib else {}),
        mounts=(Mount(container=pipe, host=f"{host}/pipe"), Mount(container=SHARED_MEMORY, host=f"{host}/shm")),
    )
