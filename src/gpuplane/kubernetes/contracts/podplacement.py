"""The decision about a pod, as whoever places pods tells it to the agent of the pod's node.

`encode_pod_placement` and `decode_pod_placement` are inverse. The text comes from an object that others may write, so
it is read strictly: a key that is not known, an amount that no GPU has, a GPU twice in one container, or a text of
another version is an error, and then nothing of it counts.
"""

from typing import Annotated, Any

import msgspec

from gpuplane.base.value import Value

VERSION = 1
MAX_BYTES = 65536
"""Of the text. All annotations of an object together have at most 256 KiB."""
MAX_GPUS = 1024
"""Of one container."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class PlacedGpu(Value):
    """What a container gets of one GPU.

    `uuid`: of the GPU. `milli`: so much of its time, 1000 is all. `memory_mib`: of its memory; 0 where that is not
    known. `profile`: a MIG device of this profile, and nothing else of the GPU; "" for none.
    """

    uuid: Name
    milli: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    memory_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    profile: Annotated[str, msgspec.Meta(max_length=96)] = ""


class PlacedContainer(Value):
    """The GPUs of one container. With MIG devices, one GPU may be named several times."""

    name: Name
    gpus: Annotated[tuple[PlacedGpu, ...], msgspec.Meta(min_length=1, max_length=MAX_GPUS)]


class PodPlacement(Value):
    """Where a pod is to run, and on what. `uid`: the pod's, so that a later pod of the same name is not meant."""

    uid: Name
    node: Name
    containers: tuple[PlacedContainer, ...] = ()


class _Document(Value):
    version: int
    uid: Name
    node: Name
    containers: tuple[PlacedContainer, ...] = ()


def encode_pod_placement(placement: PodPlacement) -> str:
    """The text: one line of JSON. Raises ValueError for what could not be read again."""
    document = _Document(VERSION, placement.uid, placement.node, placement.containers)
    text = msgspec.json.encode(document).decode()
    if decode_pod_placement(text) != placement:
        raise ValueError(f"the placement of pod {placement.uid} cannot be written")
    return text


def decode_pod_placement(text: str) -> PodPlacement:
    """What a text says. Raises ValueError, which says what is wrong."""
    try:
        if len(text.encode()) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        version: Any = msgspec.json.decode(text, type=dict[str, Any]).get("version")
        if version != VERSION:
            raise ValueError(f"it has version {version}; this program reads version {VERSION}")
        found = msgspec.json.decode(text, type=_Document)
        _check(found)
    except (ValueError, RecursionError) as error:  # msgspec.DecodeError is a ValueError
        raise ValueError(f"the placement of a pod cannot be read: {error}") from None
    return PodPlacement(found.uid, found.node, found.containers)


def _check(found: _Document) -> None:
    """Raises ValueError for a contradiction."""
    names = [each.name for each in found.containers]
    if len(set(names)) < len(names):
        raise ValueError("a container is named twice")
    for container in found.containers:
        shared = [each.uuid for each in container.gpus if not each.profile]
        if len(set(shared)) < len(shared):
            raise ValueError(f"container {container.name} has a GPU twice")
        if any(bool(each.profile) == bool(each.milli or each.memory_mib) for each in container.gpus):
            raise ValueError(f"container {container.name} has a GPU of which it gets nothing, or a MIG device in part")
