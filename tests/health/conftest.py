"""What the tests of health share."""

import pytest


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> bool:
    """Whether to go the long way."""
    return bool(request.config.getoption("--soak"))
