"""How texts name devices, several at once: "8 GPUs (0 to 7)"."""

from collections.abc import Iterable, Sequence

from gpuplane.core.text import format_count, format_index_ranges

DeviceName = tuple[str, str]
"""(UUID, index). An index is "0", or "0:1" for a MIG device. A UUID that the driver does not report is ""; so is the
index of a device that is absent."""


def describe_devices(devices: Sequence[DeviceName]) -> str:
    """The name of one device with its UUID, or several devices by their indices, for people."""
    if len(devices) == 1:
        return _describe_device(*devices[0])
    parts = [each for each in devices if ":" in each[1] or each[0].startswith("MIG-")]
    wholes = [each for each in devices if each not in parts]
    groups = (("GPU", wholes), ("MIG device", parts))
    return " and ".join(f"{format_count(len(each), kind)} ({_describe_indices(each)})" for kind, each in groups if each)


def _describe_indices(devices: Sequence[DeviceName]) -> str:
    """Indices in the driver's order, then the UUIDs of absent devices."""
    there = sorted({index for _, index in devices if index}, key=index_sort_key)
    return ", ".join(filter(None, (format_index_ranges(there), *(uuid for uuid, index in devices if not index))))


def index_sort_key(index: str) -> tuple[int, ...]:
    """The sort key of an index, for the driver's order: "0:10" comes after "0:9"."""
    return tuple(map(int, index.split(":")))


def device_uuids_or_indices(devices: Iterable[DeviceName]) -> tuple[str, ...]:
    """The names of devices for programs: the UUID, else the index."""
    return tuple(uuid or index for uuid, index in devices if uuid or index)


def _describe_device(uuid: str, index: str) -> str:
    if not index:
        return uuid or "the driver"
    name = f"{'MIG device' if ':' in index else 'GPU'} {index}"
    return f"{name} ({uuid})" if uuid else name
