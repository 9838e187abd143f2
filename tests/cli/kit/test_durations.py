"""Times as people write and say them."""

import click
import pytest

from gpuplane.cli.kit.durations import Duration, describe_duration
from tests.golden import Golden


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("50ms", 0.05), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("2d", 172_800), ("3650d", 315_360_000)],
)
def test_a_time_is_a_number_and_a_unit(written: str, seconds: float) -> None:
    assert Duration().convert(written, None, None) == seconds


@pytest.mark.parametrize("written", ["", "90", "h", "-1h", "1y", "1h30m", "1e9s", "nan", "infd"])
def test_what_is_no_time_is_refused_with_examples(written: str, golden: Golden) -> None:
    with pytest.raises(click.BadParameter) as refused:
        Duration().convert(written, None, None)
    golden(refused.value.message)


@pytest.mark.parametrize("written", ["0s", "1.5h"])
def test_a_time_out_of_bounds_is_refused_with_the_bound(written: str, golden: Golden) -> None:
    with pytest.raises(click.BadParameter) as refused:
        Duration(3600).convert(written, None, None)
    golden(refused.value.message)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3599, "59 min 59 s"),
        (3600, "1 h"),
        (3659, "1 h"),
        (7260, "2 h 1 min"),
        (86_400 * 3 + 3600 * 4 + 59, "3 d 4 h"),
        (86_400 * 3650, "3650 d"),
    ],
)
def test_a_time_is_said_to_two_units(seconds: float, said: str) -> None:
    assert describe_duration(seconds) == said
