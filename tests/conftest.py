"""What every test may use."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak`: the long way, as `make soak` goes it."""
    parser.addoption("--soak", action="store_true", help="run random histories at their full length")


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> int:
    """How many random steps a history has in all."""
    return 100_000 if request.config.getoption("--soak") else 10_000
