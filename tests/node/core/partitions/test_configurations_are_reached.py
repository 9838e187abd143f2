"""The configurations that NVIDIA's tools come with, on every card: what is applied is exported again."""

from pathlib import Path

import pytest

from gpuplane.node.core.partitions.cards import Card as KnownCard
from gpuplane.node.core.partitions.cards import cards
from gpuplane.node.core.partitions.comparison import difference
from gpuplane.node.core.partitions.entries import layouts_of_entries
from gpuplane.node.core.partitions.generated import generated_configs
from gpuplane.node.core.partitions.gpuplan import plan_gpu
from gpuplane.node.core.partitions.holders import HeldParts
from gpuplane.node.core.partitions.migparted import export_configs, format_configs, parse_configs
from gpuplane.node.core.partitions.names import profile_name
from gpuplane.node.model.machine import Gpu, Mig, MigDevice
from gpuplane.node.model.partitions import GpuLayout, MigConfigs, SetMigMode
from tests.node.core.partitions.tables import Card, by_id

DEFAULT = Path(__file__).parent / "configs/default.yaml"
NEWER = "B300", "GB300", "RTX PRO 5000 Blackwell 48GB"
"""Cards that the file does not have."""


def a_gpu(card: KnownCard, state: Card, *, enabled: bool) -> Gpu:
    """A GPU of a card, as the driver shows it."""
    names = by_id(card.profiles)
    devices = tuple(
        MigDevice(
            uuid=f"MIG-{each.id}-{part.id}",
            profile=profile_name(names[each.profile], part.slices),
            gpu_instance=each.id,
        )
        for each in state.instances
        for part in each.compute_instances
    )
    mig = Mig(enabled=enabled, devices=devices, profiles=card.profiles, instances=state.instances if enabled else ())
    return Gpu(index=0, uuid="GPU-0", pci_id=f"0x{card.device_ids[0]}10DE", memory_mib=card.memory_mib, mig=mig)


def applied(card: KnownCard, layout: GpuLayout) -> Gpu | None:
    """The GPU once it has the layout, change by change from outside MIG mode; None where the card cannot have it."""
    state, enabled = Card(card.profiles, ()), False
    for _ in range(40):
        gpu = a_gpu(card, state, enabled=enabled)
        plan = plan_gpu(gpu, layout, HeldParts(), ())
        if plan.problem:
            return None
        if plan.is_done:
            return gpu
        if isinstance(plan.changes[0], SetMigMode):
            enabled = plan.changes[0].enabled
        else:
            state.make(plan.changes[0])
    raise AssertionError("it does not end")


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
def test_what_is_applied_is_exported(card: KnownCard) -> None:
    """Each configuration of the file that is for the card, and each that is generated for it: it is reached, `export`
    writes it, and what is written requests the same."""
    blank = a_gpu(card, Card(card.profiles, ()), enabled=False)
    reached = 0
    written: MigConfigs = parse_configs(DEFAULT.read_bytes(), "default.yaml")
    for configs, must_fit in ((written, False), (generated_configs([blank]), True)):
        for entries in configs.values():
            layouts, problems = layouts_of_entries(entries, [blank])
            gpu = applied(card, layouts["GPU-0"]) if not problems else None
            assert gpu is not None or not must_fit
            if gpu is None:
                continue
            reached += 1
            text = format_configs(export_configs([gpu]), "yaml")
            again, _ = layouts_of_entries(parse_configs(text.encode(), "f")["current"], [gpu])
            assert again.keys() == {"GPU-0"}
            assert not difference(gpu, layouts["GPU-0"], card.profiles)
            assert not difference(gpu, again["GPU-0"], card.profiles)
    in_file = len(card.profiles) if card.name not in NEWER else 0
    assert reached >= len(card.profiles) + 2 + in_file
