"""The pauses of one who asks an API server."""

import random

import pytest

from gpuplane.kubernetes.client.retry import PAUSE_LIMITS, REFUSED_PAUSE, STEADY_AFTER, RequestPauses


@pytest.fixture(autouse=True)
def shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance makes the shortest of each pause."""
    monkeypatch.setattr(random, "uniform", lambda least, most: least)


def test_pauses_grow_and_are_short_after_a_good_stream() -> None:
    """A server that ends every stream at once is asked about twice a minute, not in a storm."""
    pauses, hour, rounds = RequestPauses(), 0.0, 0
    while hour < 3600:
        hour += pauses.after_stream(0.0)
        rounds += 1
    assert rounds < 300
    assert pauses.after_stream(STEADY_AFTER + 1) == PAUSE_LIMITS[0] / 2


def test_a_refusal_that_only_a_person_can_resolve_is_asked_about_rarely() -> None:
    """What comes after it is not."""
    pauses = RequestPauses()
    assert pauses.after_failure(500) == PAUSE_LIMITS[0] / 2
    assert pauses.after_failure(403) == REFUSED_PAUSE / 2
    assert pauses.after_failure(0) <= PAUSE_LIMITS[1] / 2
    pauses.reset()
    assert pauses.after_failure(0) == PAUSE_LIMITS[0] / 2
