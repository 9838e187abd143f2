"""Curves of described readings: pure, within their bounds, and back where they began after a period."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.hardware.described.load import evaluate_curve
from gpuplane.node.model.telemetry import Curve

SHAPES = get_args(next(each.type for each in msgspec.structs.fields(Curve) if each.name == "curve"))
VALUES = st.floats(0, 1e6)
CURVES = st.builds(
    Curve,
    curve=st.sampled_from([each for each in SHAPES if each != "counter"]),
    low=VALUES,
    high=VALUES,
    period=st.floats(0.1, 1e4),
)
MOMENTS = st.floats(0, 1e7)


@given(CURVES, MOMENTS)
def test_a_curve_stays_within_its_bounds(curve: Curve, at: float) -> None:
    """Whichever of them is the larger."""
    value = evaluate_curve(curve, at)
    slack = 1e-9 * max(curve.low, curve.high)
    assert min(curve.low, curve.high) - slack <= value <= max(curve.low, curve.high) + slack


@given(CURVES)
def test_a_curve_begins_at_its_low(curve: Curve) -> None:
    """With the boot, and again with each period."""
    assert evaluate_curve(curve, 0) == curve.low


@pytest.mark.parametrize(
    ("shape", "quarters"),
    [
        ("sine", [0, 50, 100, 50]),
        ("triangle", [0, 50, 100, 50]),
        ("square", [0, 0, 100, 100]),
        ("sawtooth", [0, 25, 50, 75]),
        ("counter", [0, 25, 50, 75]),
    ],
)
def test_the_quarters_of_a_period(shape: str, quarters: list[float]) -> None:
    """What each curve's name means."""
    curve = msgspec.convert({"curve": shape, "period": 8}, Curve)
    assert [evaluate_curve(curve, at) for at in (0, 2, 4, 6)] == pytest.approx(quarters)


@given(VALUES, VALUES, MOMENTS, st.floats(0, 1e6))
def test_a_counter_only_grows(low: float, high: float, at: float, later: float) -> None:
    """From `low`, by `high` in each period."""
    curve = Curve(curve="counter", low=low, high=high)
    assert low <= evaluate_curve(curve, at) <= evaluate_curve(curve, at + later)
    assert evaluate_curve(curve, 60) == low + high


def test_a_number_is_always_the_same() -> None:
    """It is no curve."""
    assert {evaluate_curve(41.5, at) for at in (0, 1, 1e9)} == {41.5}
