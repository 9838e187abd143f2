"""Those that look at the world again and again wake at the same moments."""

import math
import time

from gpuplane.base.pauses import Backoff, seconds_until_next


def test_a_pause_ends_at_a_multiple_of_its_period_and_takes_some_time() -> None:
    """Never nothing: a loop of pauses cannot keep a CPU busy."""
    for period in (0.05, 0.2, 1.0, 2.0, 10.0):
        before = time.monotonic()
        pause = seconds_until_next(period)
        after = time.monotonic()

        assert 0 < pause <= period
        assert math.floor((after + pause + 1e-6) / period) >= math.ceil((before + pause - 1e-6) / period)


def test_pauses_double_up_to_the_longest_until_it_goes_well() -> None:
    pauses = Backoff(0.5, 3.0)
    assert [pauses.seconds, *(pauses.after(well=False) for _ in range(4))] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pauses.after(well=True) == pauses.seconds == 0.5
