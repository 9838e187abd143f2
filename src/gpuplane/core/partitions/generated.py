"""The MIG configurations of a node whose admin has written none: as mig-parted generates them from the hardware.

`all-disabled`, `all-enabled`, `all-balanced`, and `all-<profile>` with as many of it as the card can have
(pkg/mig/builder). In the name of a configuration, which is a label's value, `+` is `.`.
"""

from collections.abc import Mapping, Sequence

from gpuplane.core.partitions.cards import profiles_of
from gpuplane.core.partitions.names import label_name
from gpuplane.model.machine import Gpu
from gpuplane.model.partitions import GpuInstanceProfile, MigConfigEntry, MigConfigs

BALANCED = {7: {1: 2, 2: 1, 3: 1}, 4: {1: 2, 2: 1}}
"""Compute slices of a card → of each size in `all-balanced`, how many (pkg/mig/builder/balanced.go)."""


def generated_configs(gpus: Sequence[Gpu]) -> MigConfigs:
    """The configurations of these GPUs. Entries have device filters where the GPUs differ; {} where none can be cut."""
    kinds: dict[str, tuple[GpuInstanceProfile, ...]] = {}
    for gpu in gpus:
        if profiles := profiles_of(gpu):
            kinds.setdefault(gpu.pci_id, profiles)
    if not kinds:
        return {}
    alone = len({gpu.pci_id for gpu in gpus}) == 1
    found: dict[str, list[MigConfigEntry]] = {}
    for pci_id, profiles in sorted(kinds.items()):
        filters = () if alone or not pci_id else (pci_id,)
        found.setdefault("all-disabled", []).append(MigConfigEntry(mig_enabled=False, device_filters=filters))
        found.setdefault("all-enabled", []).append(MigConfigEntry(mig_enabled=True, device_filters=filters))
        for name, devices in _layouts(profiles).items():
            entry = MigConfigEntry(mig_enabled=True, mig_devices=devices, device_filters=filters)
            found.setdefault(name, []).append(entry)
    return {name: tuple(entries) for name, entries in found.items()}


def _layouts(profiles: Sequence[GpuInstanceProfile]) -> Mapping[str, Mapping[str, int]]:
    found = {f"all-{label_name(each.name)}": {each.name: each.count} for each in profiles}
    counts = BALANCED.get(max(each.slices for each in profiles))
    if counts is not None:
        base = {slices: _base(profiles, slices) for slices in counts}
        found["all-balanced"] = {base[slices].name: count for slices, count in counts.items()}
    return found


def _base(profiles: Sequence[GpuInstanceProfile], slices: int) -> GpuInstanceProfile:
    """The usual profile of so many slices: the one of which a card can have most, without attributes."""
    same = [each for each in profiles if each.slices == slices]
    return max(same, key=lambda each: (each.count, "+" not in each.name and "-" not in each.name))
