"""What devices are called where several are spoken of at once: "8 GPUs (0 to 7)"."""

from collections.abc import Iterable, Sequence

from gpuplane.core.text import counted, ranged

Named = tuple[str, str]
"""(UUID, index): "0", or "0:1" for a MIG device. Either may be "": the driver does not tell it, or the GPU is away."""


def called(devices: Sequence[Named]) -> str:
    """Devices by their names for people: one with its UUID, several by their indices."""
    if len(devices) == 1:
        return _alone(*devices[0])
    parts = [each for each in devices if ":" in each[1] or each[0].startswith("MIG-")]
    wholes = [each for each in devices if each not in parts]
    groups = (("GPU", wholes), ("MIG device", parts))
    return " and ".join(f"{counted(len(each), kind)} ({_indices(each)})" for kind, each in groups if each)


def _indices(devices: Sequence[Named]) -> str:
    """In the driver's order; those that are away by their UUIDs."""
    there = sorted({index for _, index in devices if index}, key=place)
    return ", ".join(filter(None, (ranged(there), *(uuid for uuid, index in devices if not index))))


def place(index: str) -> tuple[int, ...]:
    """An index to sort by, in the driver's order: "0:10" comes after "0:9"."""
    return tuple(map(int, index.split(":")))


def labels(devices: Iterable[Named]) -> tuple[str, ...]:
    """Devices by their names for programs: the UUID, else the index."""
    return tuple(uuid or index for uuid, index in devices if uuid or index)


def _alone(uuid: str, index: str) -> str:
    if not index:
        return uuid or "the driver"
    name = f"{'MIG device' if ':' in index else 'GPU'} {index}"
    return f"{name} ({uuid})" if uuid else name
