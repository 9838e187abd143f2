"""How long random tests go on: short in `make test`, at full length in `make soak`, which is `pytest --soak`.

This is the one place that says so. No example has a deadline, and none is too slow to count: a busy machine proves
nothing about a property. Each run has seeds of its own, so a property that fails now and then is broken: mend it.
"""

from typing import TypeVar

from hypothesis import HealthCheck, settings

T = TypeVar("T")

EXAMPLES, SOAK = 30, 500
"""Of a property that asks for no number of its own."""


def choose(soak: bool) -> None:
    """Decide for this run, before the tests are read."""
    name = "soak" if soak else "test"
    settings.register_profile(
        name,
        settings.get_profile("default"),
        max_examples=SOAK if soak else EXAMPLES,
        deadline=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile(name)


def soaking() -> bool:
    """Whether this run is the long one."""
    return settings.get_current_profile_name() == "soak"


def length(short: T, full: T) -> T:
    """How many examples, steps or histories, or which cases: `full` where this run is the long one."""
    return full if soaking() else short
