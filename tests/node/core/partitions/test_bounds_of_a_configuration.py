"""Numbers, names and lists of a ConfigMap's author: what no card and no node can have is an error, at once."""

import pytest

from gpuplane.base.strict import LONGEST_ERROR, InvalidInput
from gpuplane.node.core.partitions.combinations import combine
from gpuplane.node.core.partitions.gpuplan import plan_gpu
from gpuplane.node.core.partitions.holders import HeldParts
from gpuplane.node.core.partitions.migparted import MAX_VALUES, parse_configs
from gpuplane.node.core.partitions.plan import wanted_instances
from gpuplane.node.model.partitions import GpuLayout
from tests.node.core.partitions.gpus import PROFILES, an_a100

START = "version: v1\nmig-configs:\n  a:\n"
ONE = "  - {devices: all, mig-enabled: true, mig-devices: {%s}}\n"


@pytest.mark.parametrize("count", [8, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("profile", ["1g.10gb", "1c.2g.20gb"])
def test_a_count_is_no_list_of_so_many(profile: str, count: int) -> None:
    """The driver's most instances are what a list may have."""
    layout = GpuLayout(mig_enabled=True, mig_devices={profile: count})

    plan = plan_gpu(an_a100(0), layout, HeldParts(), ())

    assert plan.code == "does-not-fit"
    assert len(plan.problem) < 100


def test_compute_instances_of_one_profile_are_counted_together() -> None:
    """Two names may mean one profile."""
    layout = {"1c.3g.40gb": 6, "3g.40gb": 1}

    with pytest.raises(ValueError, match="not 3"):
        wanted_instances(GpuLayout(mig_enabled=True, mig_devices=layout), PROFILES)


def test_many_names_of_one_profile_are_refused() -> None:
    """An attribute may be written again and again."""
    names = {"1g.10gb+me" + ",me" * i: 1 for i in range(2000)}

    with pytest.raises(ValueError, match="not 2"):
        wanted_instances(GpuLayout(mig_enabled=True, mig_devices=names), PROFILES)


def test_a_combination_that_no_card_can_have_has_a_reason() -> None:
    """A person may ask for any."""
    found = combine("A100", PROFILES, ["3g.40gb"] * 5, is_verified=True)

    assert found is not None
    assert not found.is_possible
    assert found.reason


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", ["1g10" + " " * 100_000 + "?", "1g.10gb+" + "me," * 100_000 + "!", "1g" + "." * 100_000, "1" * 100_000]
)
def test_a_name_without_an_end_is_refused(name: str) -> None:
    """It is searched once, whatever it is."""
    with pytest.raises(InvalidInput) as caught:
        parse_configs((START + ONE % f'"{name}": 1').encode(), "f")

    [error] = caught.value.errors
    assert error.startswith("f:4: ")
    assert len(error) < LONGEST_ERROR + 20


@pytest.mark.parametrize(
    "entries",
    [
        f"  - {{devices: {[*range(MAX_VALUES)]}, mig-enabled: false}}\n",
        f"  - {{devices: all, device-filter: {['0x233010DE'] * MAX_VALUES}, mig-enabled: false}}\n",
        "  - {devices: all, mig-enabled: false}\n" * (MAX_VALUES + 1),
    ],
    ids=["devices", "filters", "entries"],
)
def test_a_configuration_for_more_gpus_than_a_node_has_is_refused(entries: str) -> None:
    """Each is held against each GPU whenever the GPUs change."""
    with pytest.raises(InvalidInput) as caught:
        parse_configs((START + entries).encode(), "f")

    assert [error.split(":")[1] for error in caught.value.errors] == ["3"]
