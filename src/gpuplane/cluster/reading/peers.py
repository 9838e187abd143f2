"""What HAMi and gpushare write on Nodes and Pods: the GPUs of a node, and which of them a pod has.

| object | annotation | text |
|---|---|---|
| Node | `hami.io/node-nvidia-register` | JSON, a list of devices: `id`, `devmem` (MiB), `count`, `type`, `health`, `index`; once `id,count,devmem,devcore,type,numa,health`, `:` behind each |
| Pod | `hami.io/vgpu-devices-allocated` | `id,type,MiB,cores`, `:` behind each device, `;` behind each container: init containers first, where they are there at all |
| Pod | `ALIYUN_COM_GPU_MEM_IDX` | the place of its GPU on the node |

Sources: HAMi, pkg/device/devices.go and docs/develop/protocol.md; gpushare-device-plugin, pkg/gpu/nvidia/const.go. Who may
write a pod may write these: they are good for advice, and not for more.
"""  # noqa: E501

from collections.abc import Sequence
from typing import Annotated

import msgspec

from gpuplane.base.value import Value
from gpuplane.cluster.model.nodes import Gpu
from gpuplane.kubernetes.objects import MAX_AMOUNT, NOT_DECODED, ApiPod, Container, is_number, model_name
from gpuplane.kubernetes.resourcenames import GPU_RESOURCE

HAMI_DEVICES_ANNOTATION, HAMI_ALLOCATION_ANNOTATION = "hami.io/node-nvidia-register", "hami.io/vgpu-devices-allocated"
ALIYUN_INDEX_ANNOTATION = "ALIYUN_COM_GPU_MEM_IDX"
HAMI_MODEL_PREFIX = "NVIDIA-"
"""Which HAMi writes before the driver's name of a model."""
GPU_MEMORY, GPU_MEMORY_PERCENT, GPU_CORES = (
    "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores",
)  # fmt: skip
UNHEALTHY_CODE = "unhealthy"
MAX_DEVICES = 1024
"""Devices of one text."""


class HeldGpu(Value):
    """A GPU that a pod has, by its UUID, or by its place on the node where that is ""; with so much memory and
    milli-GPU, 0 where that is not said. `container`: its name; "" where it is not known, or all have it together.
    `is_before`: it is one of those that run before the others, which may have the same GPU after it."""

    id: str
    place: int = -1
    memory_mib: int = 0
    milli: int = 0
    container: str = ""
    is_before: bool = False


class _Registered(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    devmem: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)] = 0
    count: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)] = 0
    type: Annotated[str, msgspec.Meta(max_length=253)] = ""
    health: bool = False
    index: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMOUNT)] = 0


_DEVICES_DECODER = msgspec.json.Decoder(
    Annotated[list[_Registered], msgspec.Meta(min_length=1, max_length=MAX_DEVICES)]
)


def hami_resources(gpus: Sequence[Gpu]) -> dict[str, int]:
    """What all GPUs of a node of HAMi have together of the resources that its pods ask for and no node offers: so that
    they go to no other node."""
    well = [each for each in gpus if not each.code]
    return {
        GPU_MEMORY: sum(each.memory_mib for each in well),
        GPU_MEMORY_PERCENT: 100 * len(well),
        GPU_CORES: 100 * len(well),
    }


def registered_gpus(text: str, ids: int) -> tuple[Gpu, ...]:
    """The GPUs that HAMi's plugin has registered on a node, in their order. Raises ValueError that says what is wrong.

    `ids`: how many `nvidia.com/gpu` the node has. HAMi registers `count` of them for each GPU; if these are others, the
    text is of a plugin that has gone. A GPU counts as one id: who asks for it and for no memory gets all of it.
    """
    try:
        found = (
            _DEVICES_DECODER.decode(text)
            if text.startswith("[")
            else [*map(_parse_old_device, text.rstrip(":").split(":"))]
        )
    except NOT_DECODED as error:
        raise ValueError(f"annotation {HAMI_DEVICES_ANNOTATION} cannot be read: {error}") from None
    if len(found) > MAX_DEVICES or len({each.id for each in found}) < len(found):
        raise ValueError(f"annotation {HAMI_DEVICES_ANNOTATION} has too many devices, or one of them twice")
    if ids != sum(each.count for each in found):
        raise ValueError(f"annotation {HAMI_DEVICES_ANNOTATION} has other devices than the node's {ids} {GPU_RESOURCE}")
    return tuple(
        Gpu(
            each.id,
            model_name(each.type.removeprefix(HAMI_MODEL_PREFIX)),
            each.devmem,
            resource=GPU_RESOURCE,
            containers=each.count,
            code="" if each.health else UNHEALTHY_CODE,
        )
        for each in sorted(found, key=lambda each: each.index)
    )


def _parse_old_device(text: str) -> _Registered:
    """A device as it was written before there was JSON."""
    cells = text.split(",")
    if len(cells) < 7:
        raise msgspec.DecodeError(f"{text[:100]!r} is no device")
    names = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index")
    return msgspec.convert(dict(zip(names, cells, strict=False)), _Registered, strict=False)


def held_gpus(api: ApiPod) -> tuple[HeldGpu, ...]:
    """The GPUs that a pod has, as HAMi or gpushare says it; none where nothing is said that can be read."""
    annotations = api.metadata.annotations or {}
    if text := annotations.get(HAMI_ALLOCATION_ANNOTATION):
        return _parse_allocation(text, api)
    place = annotations.get(ALIYUN_INDEX_ANNOTATION, "")
    return (HeldGpu("", int(place)),) if is_number(place) else ()


def _parse_allocation(text: str, api: ApiPod) -> tuple[HeldGpu, ...]:
    texts = text.removesuffix(";").split(";")
    inits, containers = api.spec.init_containers or [], api.spec.containers
    by_number: dict[int, Sequence[Container]] = {
        len(containers): containers,  # HAMi once left out init containers
        len(inits) + len(containers): [*inits, *containers],
    }
    holders: Sequence[Container | None] = by_number.get(len(texts), [None] * len(texts))
    found = list[HeldGpu]()
    for place, (holder, devices) in enumerate(zip(holders, texts, strict=True)):
        is_before = len(texts) > len(containers) and place < len(inits) and inits[place].restart_policy != "Always"
        for device in filter(None, devices.split(":")):
            cells = device.split(",")
            if len(found) == MAX_DEVICES or len(cells) < 4 or not (is_number(cells[2]) and is_number(cells[3])):
                return ()
            found.append(
                HeldGpu(
                    cells[0].partition("[")[0],
                    memory_mib=int(cells[2]),
                    milli=min(int(cells[3]), 100) * 10,
                    container=holder.name if holder is not None else "",
                    is_before=holder is not None and is_before,
                )
            )
    return tuple(found)
