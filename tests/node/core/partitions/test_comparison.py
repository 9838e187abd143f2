"""Whether a GPU has a layout."""

import pytest

from gpuplane.node.core.partitions.comparison import difference
from gpuplane.node.model.machine import Gpu
from gpuplane.node.model.partitions import GpuLayout, PlacedInstance
from tests.node.core.partitions.gpus import PROFILES, a_gpu, an_a100

TWO = an_a100(0, ("3g.40gb", 0, (2, 1)), ("3g.40gb", 4, (3,)))


def layout(devices: dict[str, int]) -> GpuLayout:
    """MIG mode with these devices."""
    return GpuLayout(mig_enabled=True, mig_devices=devices)


@pytest.mark.parametrize(
    ("gpu", "wanted"),
    [
        (TWO, layout({"3g.40gb": 1, "2c.3g.40gb": 1, "1c.3g.40gb": 1})),
        (TWO, layout({"3c.3g.39gb": 1, "2c.3g.40gb": 1, "1c.3g.40gb": 1, "7g.80gb": 0})),
        (an_a100(0, ("7g.80gb", 0, (7,))), layout({"7g.79gb": 1})),
        (an_a100(0), layout({})),
        (an_a100(0, ("7g.80gb", 0, ())), layout({})),
        (an_a100(0, enabled=False), GpuLayout(mig_enabled=False)),
        (a_gpu(0, mig=False), GpuLayout(mig_enabled=False)),
        (
            TWO,
            layout({"3g.40gb": 1, "2c.3g.40gb": 1, "1c.3g.40gb": 1}).but(
                placed=(PlacedInstance("3g.40gb", 4, (3,)), PlacedInstance("3g.40gb", 0, (2, 1)))
            ),
        ),
    ],
)
def test_a_gpu_has_its_layout(gpu: Gpu, wanted: GpuLayout) -> None:
    """By the profiles that are meant: another board's name for one, and a compute instance of all slices, are it."""
    assert not difference(gpu, wanted, PROFILES)


@pytest.mark.parametrize(
    ("gpu", "wanted", "has_mode"),
    [
        (TWO, layout({"3g.40gb": 2}), True),
        (TWO, layout({"3g.40gb": 1, "2c.3g.40gb": 1, "1c.3g.40gb": 1, "1g.10gb": 1}), True),
        (TWO, layout({}), True),
        (TWO, GpuLayout(mig_enabled=False), False),
        (an_a100(0, enabled=False), layout({}), False),
        (a_gpu(0, mig=False), layout({}), False),
        (an_a100(0, ("1g.10gb", 0, (1,))), layout({"1g.20gb": 1}), True),
        (an_a100(0, ("1g.10gb", 0, (1,))), layout({"1g.10gb+me": 1}), True),
        (an_a100(0, ("1g.10gb", 0, (1,))), layout({"1g.5gb": 1}), True),
        (
            an_a100(0, ("1g.10gb", 0, (1,))),
            layout({"1g.10gb": 1}).but(placed=(PlacedInstance("1g.10gb", 1, (1,)),)),
            True,
        ),
    ],
)
def test_a_gpu_has_another_layout(gpu: Gpu, wanted: GpuLayout, *, has_mode: bool) -> None:
    """And perhaps its MIG mode."""
    assert difference(gpu, wanted, PROFILES)
    assert bool(difference(gpu, wanted, PROFILES, mode_only=True)) is not has_mode


def test_names_are_compared_where_profiles_are_not_known() -> None:
    """As of an old driver."""
    gpu = an_a100(0, ("7g.80gb", 0, (7,)))
    assert not difference(gpu, layout({"7g.80gb": 1}), ())
    assert difference(gpu, layout({"7g.79gb": 1}), ())
