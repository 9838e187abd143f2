"""A disk that does not answer: what is written to it hangs for ever. The agent serves, and ends when it is asked to."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from gpuplane.node.model.machine import Incident
from gpuplane.sandbox.kubelet import pod
from tests.node.host.cdi.world import Place, machine

GPU = "nvidia.com/gpu"

SOURCE = Path(__file__).with_name("hang.c")
LONGEST = 10.0  # seconds to end on a busy machine; a quarter of it is usual


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes fsync hang."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, for a library that makes fsync hang")
    built = tmp_path_factory.mktemp("hang") / "hang.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, SOURCE, "-ldl"], check=True, timeout=60)
    return built


@pytest.mark.parametrize("dead", ["s", "cdi", ""], ids=["state directory", "CDI directory", "both"])
async def test_an_agent_whose_disk_hangs_serves_and_ends(tmp_path: Path, library: Path, dead: str) -> None:
    """Threads that are stuck in a write are not waited for."""
    place, hung = Place(tmp_path), tmp_path / "hung"
    hang = {"LD_PRELOAD": str(library), "HANG_BELOW": str(tmp_path / dead), "HANG_WHILE": str(hung)}
    async with place.kubelet() as kubelet, place.agent("--metrics-address", "127.0.0.1:0", **hang) as agent:
        await kubelet.until_capacity(GPU, 2, 2)
        hung.touch()
        place.describe(machine(range(3)).but(incidents=(Incident(gpu=0, code="xid-79"),)))
        await kubelet.until_capacity(GPU, *((3, 2) if dead == "s" else (3, 1)))
        await kubelet.run(pod("train", gpu=1))
        began = time.monotonic()
        assert await agent.stop(deadline=LONGEST) == 0
        print(f"ended {time.monotonic() - began:.2f} s after SIGTERM")
