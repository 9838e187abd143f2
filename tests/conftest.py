"""What every test may use."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.standin import build


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak`: the long way, as `make soak` goes it."""
    parser.addoption("--soak", action="store_true", help="run random histories at their full length")


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> int:
    """How many random steps a history has in all."""
    return 100_000 if request.config.getoption("--soak") else 10_000


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The library. The processes that load it keep their bytecode in a place of their own, to start fast."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, for the stand-in of the driver's library")
    folder = tmp_path_factory.mktemp("standin")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(folder / "bytecode"))
        yield build(folder)
