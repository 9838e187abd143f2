"""The table of cards against NVIDIA's guide, and the configurations that are generated from it."""

import math
import re

import pytest

from gpuplane.node.core.partitions.cards import Card, card_of, cards, profiles_of
from gpuplane.node.core.partitions.generated import generated_configs
from gpuplane.node.core.partitions.plan import Fixed, plan_instances, wanted_instances
from gpuplane.node.model.machine import Gpu, Mig
from gpuplane.node.model.partitions import GpuLayout
from tests.node.core.partitions.tables import FOUR, SEVEN

GUIDE = {  # PCI device → what mig-parted's default configuration (of 2BB3: the guide) has for it, and the most of each
    "20B0": "1g.5gb 7, 1g.5gb+me 1, 1g.10gb 4, 2g.10gb 3, 3g.20gb 2, 4g.20gb 1, 7g.40gb 1",
    "20B2": "1g.10gb 7, 1g.10gb+me 1, 1g.20gb 4, 2g.20gb 3, 3g.40gb 2, 4g.40gb 1, 7g.80gb 1",
    "2330": "1g.10gb 7, 1g.10gb+me 1, 1g.20gb 4, 2g.20gb 3, 3g.40gb 2, 4g.40gb 1, 7g.80gb 1",
    "233A": "1g.12gb 7, 1g.12gb+me 1, 1g.24gb 4, 2g.24gb 3, 3g.47gb 2, 4g.47gb 1, 7g.94gb 1",
    "2342": "1g.12gb 7, 1g.12gb+me 1, 1g.24gb 4, 2g.24gb 3, 3g.48gb 2, 4g.48gb 1, 7g.96gb 1",
    "2335": "1g.18gb 7, 1g.18gb+me 1, 1g.35gb 4, 2g.35gb 3, 3g.71gb 2, 4g.71gb 1, 7g.141gb 1",
    "2348": "1g.18gb 7, 1g.18gb+me 1, 1g.36gb 4, 2g.36gb 3, 3g.72gb 2, 4g.72gb 1, 7g.144gb 1",
    "2901": "1g.23gb 7, 1g.23gb+me 1, 1g.45gb 4, 2g.45gb 3, 3g.90gb 2, 4g.90gb 1, 7g.180gb 1",
    "2941": "1g.23gb 7, 1g.23gb+me 1, 1g.47gb 4, 2g.47gb 3, 3g.93gb 2, 4g.93gb 1, 7g.186gb 1",
    "3182": "1g.34gb 7, 1g.34gb+me 1, 1g.67gb 4, 2g.67gb 3, 3g.135gb 2, 4g.135gb 1, 7g.269gb 1",
    "31C2": "1g.35gb 7, 1g.35gb+me 1, 1g.70gb 4, 2g.70gb 3, 3g.139gb 2, 4g.139gb 1, 7g.278gb 1",
    "20B7": "1g.6gb 4, 1g.6gb+me 1, 2g.12gb 2, 2g.12gb+me 1, 4g.24gb 1",
    "2BB3": "1g.12gb 1, 1g.12gb+me 1, 1g.12gb+gfx 1, 1g.12gb-me 3, 2g.24gb-me 1, 4g.48gb 1, 4g.48gb+gfx 1",
    "2BB5": "1g.24gb 4, 1g.24gb+gfx 4, 1g.24gb+me 1, 1g.24gb+me.all 1, 1g.24gb-me 4, 2g.48gb 2, 2g.48gb+gfx 2, "
    "2g.48gb+me.all 1, 2g.48gb-me 2, 4g.96gb 1, 4g.96gb+gfx 1",
}


def gpu(device: str, index: int = 0) -> Gpu:
    """A GPU of this PCI device."""
    return Gpu(index=index, uuid=f"GPU-{index}", pci_id=f"0x{device}10DE", mig=Mig())


@pytest.mark.parametrize("device", GUIDE)
def test_the_profiles_of_each_card(device: str) -> None:
    """Names and most of each."""
    assert {f"{each.name} {each.count}" for each in profiles_of(gpu(device))} == set(GUIDE[device].split(", "))


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
def test_the_names_follow_from_the_memory(card: Card) -> None:
    """As go-nvlib names profiles (pkg/nvlib/device/mig_profile.go): eighths of the memory, rounded up, of its GiB."""
    total = math.ceil(card.memory_mib / 1024)
    for each in card.profiles:
        eighths = math.ceil(each.memory_mib * 8 / card.memory_mib)
        assert re.sub(r".*\.(\d+)gb.*", r"\1", each.name) == str(math.floor(eighths * total / 8 + 0.5))


def test_the_placements_are_the_guides() -> None:
    """Of the cards for which it has them."""
    for device, table in (("20B2", SEVEN), ("20B7", FOUR)):
        ours = {each.name: (each.starts, each.size, each.slices) for each in profiles_of(gpu(device))}
        assert ours == {each.name: (each.starts, each.size, each.slices) for each in table}
    assert {card.name for card in cards() if not card.is_verified} == {
        "B200", "GB200", "B300", "GB300", "RTX PRO 5000 Blackwell 48GB", "RTX PRO 6000 Blackwell 96GB",
    }  # fmt: skip


def test_a_card_is_known_by_its_model_where_its_address_is_not_told() -> None:
    """With its memory: an A100 has 40 or 80 GB."""
    unnamed = Gpu(index=0, model="NVIDIA A100-SXM4-80GB", memory_mib=81920, mig=Mig())

    assert getattr(card_of(unnamed), "name", "") == "A100 80GB"
    assert card_of(unnamed.but(model="NVIDIA A800-SXM4-80GB")) == card_of(unnamed)
    assert card_of(unnamed.but(model="NVIDIA L40S", memory_mib=46068)) is None
    assert card_of(unnamed.but(pci_id="0x1EB810DE")) is None
    assert profiles_of(unnamed.but(mig=None)) == ()


@pytest.mark.parametrize("card", cards(), ids=lambda card: card.name)
def test_every_generated_configuration_can_be(card: Card) -> None:
    """On an empty card; each profile at its most."""
    found = generated_configs([gpu(card.device_ids[0])])
    assert {"all-disabled", "all-enabled"} < found.keys()
    has_balanced = card.device_ids[0] != "2BB3"  # its only 2g is without media engines
    assert ("all-balanced" in found) == has_balanced
    assert len(found) == 2 + has_balanced + len(card.profiles)
    assert not any("+" in name for name in found)
    for [entry] in found.values():
        assert entry.device_filters == ()
        wanted = wanted_instances(GpuLayout(entry.mig_enabled, entry.mig_devices), card.profiles)
        plan = plan_instances(card.profiles, (), wanted, Fixed())
        assert not plan.problem
        assert not plan.later


def test_all_balanced() -> None:
    """As mig-parted's builder has it (pkg/mig/builder/balanced.go)."""
    [seven], [four] = (generated_configs([gpu(each)])["all-balanced"] for each in ("20B0", "20B7"))

    assert seven.mig_devices == {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    assert four.mig_devices == {"1g.6gb": 2, "2g.12gb": 1}


@pytest.mark.parametrize("kept", ["1g.10gb 4g.40gb", "1g.10gb 2g.20gb 7g.80gb", "7g.80gb", "3g.40gb+me 1g.10gb-me"])
def test_a_card_without_a_base_profile_has_no_balanced_configuration(kept: str) -> None:
    """A driver may tell any profiles: each has its configuration, and nothing else suffers."""
    known = {each.name: each for each in SEVEN}
    profiles = tuple(known[re.split("[+-]", name)[0]].but(name=name) for name in kept.split())
    found = generated_configs([Gpu(index=0, uuid="GPU-0", mig=Mig(profiles=profiles))])

    unnamed = generated_configs([Gpu(index=0, uuid="GPU-0", mig=Mig(profiles=(profiles[0].but(name="1g.0gb"),)))])

    assert unnamed.keys() == {"all-disabled", "all-enabled"}
    assert found.keys() == {"all-disabled", "all-enabled", *(f"all-{name.replace('+', '.')}" for name in kept.split())}


def test_gpus_whose_ids_are_not_told_are_named_by_index() -> None:
    """Unless they are all of one kind. Each gets the layouts of its own card."""
    a100 = Gpu(index=0, model="NVIDIA A100-SXM4-40GB", memory_mib=40960, mig=Mig())
    h100 = Gpu(index=1, model="NVIDIA H100 80GB HBM3", memory_mib=81559, mig=Mig())
    t4 = Gpu(index=2, model="Tesla T4", memory_mib=15360)
    mixed = generated_configs([a100, h100, a100.but(index=3)])

    assert [(each.indices, each.mig_devices) for each in mixed["all-balanced"]] == [
        ((0, 3), {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}),
        ((1,), {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}),
    ]
    assert [each.indices for each in generated_configs([h100, t4])["all-disabled"]] == [(1,)]
    assert [each.indices for each in generated_configs([h100, h100.but(index=5)])["all-disabled"]] == [None]
    assert [each.device_filters for each in generated_configs([gpu("2330"), t4])["all-disabled"]] == [("0x233010DE",)]


def test_compute_instances_are_those_that_a_driver_lists() -> None:
    """As `nvidia-smi mig -lcip` shows them on an A100; mig-parted's model has the same (known_configs.go)."""
    listed = {
        1: {1: 1},
        2: {1: 2, 2: 1},
        3: {1: 3, 2: 1, 3: 1},
        4: {1: 4, 2: 2, 4: 1},
        7: {1: 7, 2: 3, 3: 2, 4: 1, 7: 1},
    }

    for each in profiles_of(gpu("20B2")):
        assert {part.slices: part.count for part in each.compute_profiles} == listed[each.slices]
        ids = [part.id for part in each.compute_profiles]
        assert ids == [{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[part.slices] for part in each.compute_profiles]


def test_gpus_of_several_models_have_filters() -> None:
    """Also where some of them cannot be partitioned; there is nothing for those."""
    mixed = [gpu("20B2"), gpu("2330", 1), Gpu(index=2, uuid="GPU-2", pci_id="0x1EB810DE")]

    assert [each.device_filters for each in generated_configs(mixed)["all-disabled"]] == [
        ("0x20B210DE",),
        ("0x233010DE",),
    ]
    assert generated_configs(mixed[2:]) == {}


@pytest.mark.parametrize(("model", "memory", "seven"), [("NVIDIA H100 NVL", 95830, "94"), ("NVIDIA H100", 97871, "96")])
def test_of_cards_of_one_name_the_one_with_the_nearest_memory_is_meant(model: str, memory: int, seven: str) -> None:
    """The memories of two kinds of H100 are only 2 % apart."""
    profiles = profiles_of(Gpu(index=0, model=model, memory_mib=memory, mig=Mig()))

    assert profiles[-1].name == f"7g.{seven}gb"
