"""SIGKILL at any moment: a runtime that looks then finds whole files, and the next agent finds its way."""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

from gpuplane.sandbox.kubelet import pod
from tests.lengths import length
from tests.node.agent.test_cdi import GPUS, made
from tests.node.host.cdi.world import Place, machine

ROOT = Path(__file__).parents[4]
KILLS, AGENTS = length(10, 500), length(2, 12)


def test_a_file_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    """Old or new, and with what a container holds in it, from the first time on; read all the while."""
    place, seen = Place(tmp_path), set[frozenset[str]]()
    for _ in range(KILLS):
        before = inode(place.file())
        writer = subprocess.Popen([sys.executable, "-m", "tests.node.host.cdi.writer", place.cdi], cwd=ROOT)
        try:
            while inode(place.file()) == before:
                assert writer.poll() is None
                time.sleep(0.005)
            began = time.monotonic()
            enough = random.uniform(0, 0.05)
            while time.monotonic() - began < enough:
                seen.add(frozenset(place.names()))
            assert writer.poll() is None
        finally:
            writer.kill()
            writer.wait(10)
        names = place.names()
        assert "GPU-0" in names
        assert len(names) in (8, 9)
        assert all(name.startswith(f".{place.file().name}.") and name.endswith(".new") for name in place.left())
    assert all("GPU-0" in names for names in seen)


def inode(path: Path) -> int:
    """Another one for another file; 0 for none."""
    return path.stat().st_ino if path.exists() else 0


async def test_agents_that_are_killed_while_the_machine_changes(tmp_path: Path) -> None:
    """The last one ends up with what is true, has nothing half-written about, and the container restarts."""
    place = Place(tmp_path)
    async with place.kubelet() as kubelet:
        for turn in range(AGENTS):
            async with place.agent() as agent:
                await kubelet.until_capacity(GPUS, 2 + turn, 2 + turn)
                if not turn:
                    await kubelet.run(pod("train", gpu=1))
                    await made(kubelet, "train")
                place.describe(machine(range(3 + turn)))
                await asyncio.sleep(random.uniform(0, 0.4))
                await agent.kill()
            assert "GPU-0" in place.names()
            kubelet.workers.crash("default/train", "main")
            assert "/dev/nvidia0" in await made(kubelet, "train")
        (place.cdi / f".{place.file().name}.5a5a5a5a.new").write_text("{")
        async with place.agent() as agent:
            await kubelet.until_capacity(GPUS, 2 + AGENTS, 2 + AGENTS)
            assert place.left() == []
