"""What every test may use."""

import os
import random
import shutil
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bytecode
from tests.golden import Golden
from tests.lengths import choose
from tests.node.hardware.nvidia.driver.standin import build
from tests.once import once


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--soak`: the long way, as `make soak` goes it."""
    parser.addoption("--soak", action="store_true", help="run random tests at their full length")
    parser.addoption("--seed", type=int, help="play random histories again as a run did that said this number")


def pytest_configure(config: pytest.Config) -> None:
    """How long random tests go on is decided before they are read; workers are given the seed of the first process."""
    _mind_signals()
    choose(config.getoption("--soak"))
    if config.option.seed is None:
        config.option.seed = random.randrange(1 << 31)
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # sockets lie in its folders: its path has to be short
        config.option.basetemp = str(Path(config.option.basetemp).with_name(worker))
    elif config.getoption("numprocesses", None):
        bytecode.make(config)


def _mind_signals() -> None:
    """Started by nohup, or in the background by a script, all that we start would ignore these signals as we do."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """A long text names no case: workers tell each other all names."""
    return f"{val[:40]!r}, {len(val)}" if isinstance(val, str | bytes) and len(val) > 200 else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take long begins early, so that no worker is left with it when all others are done."""
    items.sort(key=_longest)


def _longest(item: pytest.Item) -> float:
    marked = item.get_closest_marker("timeout")
    return -float(marked.args[0]) if marked else 0.0


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Another one for each test of each run. What gives it again is said where the test fails."""
    run = request.config.getoption("--seed")
    print(f"random: the same again with pytest --seed={run}")
    return zlib.crc32(f"{run} {request.node.name}".encode())


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The texts of this test, word for word, in the file beside its module."""
    module = request.path
    case = request.node.name.removeprefix(request.node.originalname).removeprefix("[").removesuffix("]")
    places = {"TMP": str(request.getfixturevalue("tmp_path"))} if "tmp_path" in request.fixturenames else {}
    places["REPO"] = str(request.config.rootpath)
    file = module.parent / "golden" / f"{module.stem.removeprefix('test_')}.txt"
    return Golden(file, request.node.originalname, case, places)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`pytest -n auto`: more workers than cores, since tests of processes and sockets wait most of the time."""
    return 1 + 2 * len(os.sched_getaffinity(0))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a run have, for what is made `once`."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def compiled(shared: Path) -> Iterator[Path]:
    """The library. The processes that load it keep their bytecode in a place of their own, to start fast."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, for the stand-in of the driver's library")
    folder = once(shared / "standin", build)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(folder / "bytecode"))
        yield build(folder)
