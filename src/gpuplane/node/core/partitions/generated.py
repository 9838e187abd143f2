"""The MIG configurations of a node whose admin has written none: as mig-parted generates them from the hardware.

`all-disabled`, `all-enabled`, `all-balanced`, and `all-<profile>` with as many of it as the card can have
(pkg/mig/builder). In the name of a configuration, which is a label's value, `+` is `.`.
"""

from collections.abc import Mapping, Sequence

from gpuplane.node.core.partitions.cards import profiles_of
from gpuplane.node.core.partitions.names import known_name, label_name
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuInstanceProfile, MigConfigEntry, MigConfigs

BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""Compute slices of a card → of each size in `all-balanced`, how many (pkg/mig/builder/balanced.go)."""


def generated_configs(gpus: Sequence[Gpu]) -> MigConfigs:
    """The configurations of these GPUs. Entries have device filters where the GPUs differ; {} where none can be cut.

    A GPU whose PCI id is not known is named by its index instead.
    """
    kinds: dict[tuple[str, tuple[GpuInstanceProfile, ...]], list[Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault((gpu.pci_id, () if gpu.pci_id else profiles_of(gpu)), []).append(gpu)
    found: dict[str, list[MigConfigEntry]] = {}
    for (pci_id, _), same in sorted(kinds.items(), key=lambda kind: (kind[0][0], kind[1][0].index)):
        profiles = next(filter(None, map(profiles_of, same)), ())
        if not profiles:
            continue
        entry = MigConfigEntry(mig_enabled=True)
        if len(kinds) > 1:
            those = tuple(gpu.index for gpu in same)
            entry = entry.but(device_filters=(pci_id,)) if pci_id else entry.but(indices=those)
        found.setdefault("all-disabled", []).append(entry.but(mig_enabled=False))
        found.setdefault("all-enabled", []).append(entry)
        for name, devices in _layouts(profiles).items():
            found.setdefault(name, []).append(entry.but(mig_devices=devices))
    return {name: tuple(entries) for name, entries in found.items()}


def _layouts(profiles: Sequence[GpuInstanceProfile]) -> Mapping[str, Mapping[str, int]]:
    names = {each.id: name for each in profiles if (name := known_name(each)) is not None}
    found = {f"all-{label_name(each.name)}": {each.name: each.count} for each in profiles if each.id in names}
    base = [each for each in profiles if each.id in names and not names[each.id].attributes]
    counts = BALANCED.get(max((each.slices for each in base), default=0), {})
    most = {slices: _most_common(base, slices) for slices in counts}
    balanced = {profile.name: counts[slices] for slices, profile in most.items() if profile is not None}
    if balanced and len(balanced) == len(counts):  # a card without one of the sizes has no such configuration
        found["all-balanced"] = balanced
    return found


def _most_common(profiles: Sequence[GpuInstanceProfile], slices: int) -> GpuInstanceProfile | None:
    """The profile of so many slices of which a card can have most; None if it has none."""
    same = [each for each in profiles if each.slices == slices]
    return max(same, key=lambda each: each.count, default=None)
