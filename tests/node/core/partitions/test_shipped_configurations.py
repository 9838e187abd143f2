"""The files that NVIDIA ships: read, and each configuration made on the cards that it is for, or refused and why."""

from collections import Counter
from functools import cache

import pytest

from gpuplane.node.core.partitions.cards import Card, cards, profiles_of
from gpuplane.node.core.partitions.entries import layouts_of_entries
from gpuplane.node.core.partitions.gpuplan import plan_gpu
from gpuplane.node.core.partitions.holders import HeldParts
from gpuplane.node.core.partitions.migparted import parse_configs
from gpuplane.node.core.partitions.names import find_profile
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import CreateGpuInstance, MigConfigs
from tests.node.core.partitions import shipped
from tests.node.core.partitions.gpus import a_gpu

FILES = {"mig-parted": 64, "gpu-operator": 68}
"""File → how many configurations it has."""


@cache
def configs(file: str) -> MigConfigs:
    """The configurations of a file."""
    return parse_configs(shipped.text(file), file)


def made(file: str, name: str, gpu: Gpu) -> tuple[Counter[str], str]:
    """The GPU instances that are created for a configuration, by profile, and why it cannot be."""
    layouts, problems = layouts_of_entries(configs(file)[name], [gpu])
    if problems:
        return Counter(), str(problems[0])
    plan = plan_gpu(gpu, layouts[gpu.uuid], HeldParts(), ())
    names = {each.id: each.name for each in profiles_of(gpu)}
    created = Counter(names[each.profile] for each in plan.changes if isinstance(each, CreateGpuInstance))
    return created, str(plan.problem)


@pytest.mark.parametrize("file", FILES)
def test_a_shipped_file_is_read(file: str) -> None:
    """All of it."""
    assert len(configs(file)) == FILES[file]


@pytest.mark.parametrize(
    ("file", "name", "card", "devices"), [(file, *each) for file in FILES for each in shipped.meant(file)]
)
def test_a_configuration_is_made_on_the_cards_that_it_is_for(
    file: str, name: str, card: str, devices: dict[str, int]
) -> None:
    """By their PCI device. A profile may have another name there."""
    gpu = a_gpu(0, f"0x{card}10DE")
    created, problem = made(file, name, gpu)

    assert not problem
    assert created == {find_profile(each, profiles_of(gpu))[0].name: count for each, count in devices.items()}


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
@pytest.mark.parametrize("file", FILES)
def test_on_any_other_card_it_is_made_or_refused(file: str, card: Card) -> None:
    """Nothing in between, and the reason says what is wrong."""
    gpu = a_gpu(0, f"0x{card.device_ids[0]}10DE")
    for name in configs(file).keys() - {"all-disabled", "all-enabled"}:
        created, problem = made(file, name, gpu)
        assert bool(created) != bool(problem), name
