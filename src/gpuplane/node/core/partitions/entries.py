"""Which GPUs the entries of a named configuration mean, and what they request of each.

As nvidia-mig-parted decides it (api/spec/v1/helpers.go): an entry means the GPUs that one of its device filters matches
and whose index it names; an index counts all GPUs of the node. An entry that matches no GPU is skipped, since one file
serves many nodes. Differences, since each can only be a mistake, and GPUs would have a layout that nobody requested:

- two entries for one GPU are a problem. There the last one wins, after the first was made;
- an index that no GPU has is a problem, and a configuration of which no entry matches. There that is a success.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.base.text import Text, format_index_ranges, join_first_names
from gpuplane.node.core.partitions.migparted import parse_device_id
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuLayout, MigConfigEntry


def layouts_of_entries(
    entries: Sequence[MigConfigEntry], gpus: Sequence[Gpu]
) -> tuple[Mapping[str, GpuLayout], tuple[Text, ...]]:
    """UUID of a GPU → the layout that the entries request of it, and every problem. Where there is one, none is right.

    A GPU without MIG that shall be outside MIG mode has no layout: there is nothing to do. One whose UUID the driver
    does not tell (it is lost) has none either, until the driver does.
    """
    layouts, entry_by_gpu, problems = dict[str, GpuLayout](), dict[int, int](), list[Text]()
    for i, entry in enumerate(entries):
        problems += _unknown_indices(entry, gpus)
        again, unfit = dict[str, list[Gpu]](), list[Gpu]()
        for gpu in gpus_of_entry(entry, gpus):
            first = entry_by_gpu.setdefault(gpu.index, i)
            if first != i:
                again.setdefault(entries[first].source, []).append(gpu)
            elif gpu.mig is None and entry.mig_enabled:
                unfit.append(gpu)
            elif gpu.mig is not None and gpu.uuid:
                layouts[gpu.uuid] = GpuLayout(
                    mig_enabled=entry.mig_enabled,
                    mig_devices=entry.mig_devices,
                    replaces_foreign=entry.indices is None,
                )
        for source, those in again.items():
            problems.append(
                f"{_place(entry)}the entry{' of ' * bool(source)}{source} is already for GPU {_indices(those)}: name "
                "each GPU in one entry only"
            )
        if unfit:
            models = ", ".join(sorted({gpu.model or "unknown model" for gpu in unfit}))
            problems.append(
                f"{_place(entry)}GPU {_indices(unfit)} ({models}) cannot be partitioned: leave it out, by "
                "devices or device-filter"
            )
    if gpus and not entry_by_gpu and not problems:
        problems.append(_nothing_matches(entries, gpus))
    return layouts, tuple(problems)


def gpus_of_entry(entry: MigConfigEntry, gpus: Sequence[Gpu]) -> Iterator[Gpu]:
    """The GPUs that an entry means."""
    for gpu in gpus:
        if (entry.indices is None or gpu.index in entry.indices) and matches_filters(entry, gpu):
            yield gpu


def matches_filters(entry: MigConfigEntry, gpu: Gpu) -> bool:
    """Whether one of the device filters of an entry matches this GPU. Without filters each GPU matches.

    A filter with a board matches that board alone; one without, every board with that GPU (pkg/types/device.go). A GPU
    whose ids the driver does not tell matches no filter.
    """
    if not entry.device_filters:
        return True
    if not gpu.pci_id:
        return False
    device = parse_device_id(gpu.pci_id)[0]
    board = parse_device_id(gpu.pci_subsystem)[0] if gpu.pci_subsystem else None
    wanted = map(parse_device_id, entry.device_filters)
    return any(each == device and (its_board is None or its_board == board) for each, its_board in wanted)


def _unknown_indices(entry: MigConfigEntry, gpus: Sequence[Gpu]) -> Iterator[Text]:
    """A problem for the indices of an entry that no GPU has."""
    unknown = [index for index in entry.indices or () if all(gpu.index != index for gpu in gpus)]
    if unknown and gpus:
        named = join_first_names([str(index) for index in unknown], 8)
        yield f"{_place(entry)}devices: this node has no GPU {named}; it has GPU {_indices(gpus)}"


def _indices(gpus: Sequence[Gpu]) -> str:
    return format_index_ranges([str(gpu.index) for gpu in gpus])


def _nothing_matches(entries: Sequence[MigConfigEntry], gpus: Sequence[Gpu]) -> Text:
    filters = tuple(dict.fromkeys(each for entry in entries for each in entry.device_filters))
    if not filters:
        return f"{_place(entries[0]) if entries else ''}no entry names a GPU of this node"
    ids = tuple(dict.fromkeys(gpu.pci_id for gpu in gpus if gpu.pci_id))
    here = f"this node has {join_first_names(ids, 4)}" if ids else "the driver does not tell the PCI ids of its GPUs"
    return (
        f"{_place(entries[0])}no entry matches a GPU of this node: the device filters are "
        f"{join_first_names(filters, 4)}, and {here}"
    )


def _place(entry: MigConfigEntry) -> str:
    return f"{entry.source}: " if entry.source else ""
