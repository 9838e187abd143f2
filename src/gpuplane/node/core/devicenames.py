"""How texts name devices, several at once: "8 GPUs (0 to 7)"."""

from collections.abc import Iterable, Sequence

from gpuplane.base.text import format_count, format_index_ranges
from gpuplane.kubernetes.contracts.nodeannotation import index_sort_key
from gpuplane.node.core.kinds.nvidia.gpu import GPU
from gpuplane.node.core.kinds.table import kind_of

DeviceName = tuple[str, str]
"""(UUID, index). An index is "0", or "0:1" for a MIG device. A UUID that the driver does not report is ""; so is the
index of a device that is absent, or of another kind: that has its id in place of the UUID."""


def describe_devices(devices: Sequence[DeviceName]) -> str:
    """The name of one device with its UUID, or several devices by their indices, for people."""
    if len(devices) == 1:
        return _describe_device(*devices[0])
    groups: dict[str, list[DeviceName]] = {"GPU": [], "MIG device": []}
    for each in devices:
        groups.setdefault(device_noun(*each), []).append(each)
    return " and ".join(
        f"{format_count(len(each), noun)} ({_describe_indices(each)})" for noun, each in groups.items() if each
    )


def describe_part_of(part: Sequence[DeviceName], whole: Sequence[DeviceName]) -> str:
    """ "2 of 8 GPUs are", "1 of 7 MIG devices is", "1 of 9 devices is"."""
    nouns = {device_noun(*each) for each in whole}
    noun = "device" if len(nouns) > 1 else next(iter(nouns))
    return f"{len(part)} of {format_count(len(whole), noun)} {'is' if len(part) == 1 else 'are'}"


def device_noun(uuid: str, index: str) -> str:
    """What people call such a device: "GPU", "MIG device", "device-node device"."""
    kind = kind_of(uuid)
    return (kind if kind is not None else GPU).noun(uuid, index)


def _describe_indices(devices: Sequence[DeviceName]) -> str:
    """Indices in the driver's order, then the UUIDs of absent devices."""
    there = sorted({index for _, index in devices if index}, key=index_sort_key)
    return ", ".join(filter(None, (format_index_ranges(there), *(uuid for uuid, index in devices if not index))))


def device_uuids_or_indices(devices: Iterable[DeviceName]) -> tuple[str, ...]:
    """The names of devices for programs: the UUID, else the index."""
    return tuple(uuid or index for uuid, index in devices if uuid or index)


def _describe_device(uuid: str, index: str) -> str:
    kind = kind_of(uuid)
    if kind is not None and uuid == kind.record_key:
        return f"all {kind.name} devices"
    if not index:
        return uuid or "the driver"
    name = f"{'MIG device' if ':' in index else 'GPU'} {index}"
    return f"{name} ({uuid})" if uuid else name
