"""`gpuplane cdi remove`: for a node that is left; never under the feet of who still needs the files."""

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from gpuplane.node.core.containers.cdi.names import CDI_KINDS, VENDOR
from gpuplane.sandbox.kubelet import pod
from tests.node.agent.test_cdi import GPUS, made
from tests.node.agent.test_process import gpuplane
from tests.node.host.cdi.world import GPU, Place, document


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def remove(place: Place, *more: str) -> tuple[int, str]:
    """(exit status, output) of the command."""
    where = ("--cdi-dir", place.cdi, "--state-dir", place.root / "s", "--kubelet-root", place.root / "k")
    return await gpuplane("cdi", "remove", *more, *where)


async def test_what_stays_when_the_agent_ends_is_removed(place: Place) -> None:
    """Not while it runs: with pods it names them, without it would write them again."""
    async with place.kubelet() as kubelet:
        async with place.agent():
            await kubelet.until_capacity(GPUS, 2, 2)
            await kubelet.run(pod("train", gpu=1))
            await made(kubelet, "train")
            status, said = await remove(place)
            async with asyncio.timeout(60):
                while "a pod that kubelet is admitting" in said:
                    status, said = await remove(place)
            assert (status, "default/train" in said) == (1, True)
            await kubelet.end("default/train")
            await kubelet.run(pod("next", gpu=1))
            await kubelet.end("default/next")
            async with asyncio.timeout(60):
                while "hold devices" in said:
                    status, said = await remove(place)
            assert (status, "agent" in said) == (1, True)
        assert place.names() == {"GPU-0", "GPU-1"}
        assert await remove(place) == (0, f"removed {place.file()}\n")
        status, said = await remove(place)
        assert (status, str(place.cdi) in said, "removed" in said) == (0, True, False)


async def test_where_no_agent_runs_kubelet_is_asked(place: Place) -> None:
    """It names the pods that hold devices; where it is silent too, its checkpoint does. Else nothing is removed."""
    async with place.kubelet() as kubelet:
        async with place.agent():
            await kubelet.until_capacity(GPUS, 2, 2)
            await kubelet.run(pod("train", gpu=1))
            await made(kubelet, "train")
        status, said = await remove(place)
        assert (status, "default/train" in said, "--force" in said) == (1, True, True)
    status, said = await remove(place)
    assert (status, "hold devices" in said) == (1, True)
    checkpoint = place.root / "k/device-plugins/kubelet_internal_checkpoint"
    checkpoint.write_text("{")
    status, said = await remove(place)
    assert (status, str(place.root / "k") in said) == (1, True)
    checkpoint.unlink()
    status, said = await remove(place)
    assert (status, place.file().exists()) == (1, True)
    assert await remove(place, "--force") == (0, f"removed {place.file()}\n")


async def test_with_force_nobody_is_asked(place: Place) -> None:
    """The agent that runs has the file back in a moment."""
    async with place.kubelet() as kubelet, place.agent():
        await kubelet.until_capacity(GPUS, 2, 2)
        before = place.file().stat().st_mtime_ns
        assert await remove(place, "--force") == (0, f"removed {place.file()}\n")
        async with asyncio.timeout(60):
            while not place.file().exists():
                await asyncio.sleep(0.02)
        assert place.file().stat().st_mtime_ns != before


async def test_all_that_is_ours_and_nothing_else(place: Place) -> None:
    """By name: every kind, NVIDIA's leftovers, what is half-written, a link but not what it leads to."""
    place.cdi.mkdir()
    (kept := place.cdi / "nvidia.yaml").write_bytes(document("nvidia.com/gpu", "0"))
    (other := place.root / "elsewhere").write_text("mine")
    for kind in CDI_KINDS:
        place.file(kind).write_bytes(document(kind, "all"))
    place.file().with_suffix(".yaml").write_text("spoilt: [")
    (place.cdi / f".{place.file().name}.5a5a5a5a.new").write_text("{")
    place.file(f"{VENDOR}/gds").unlink()
    place.file(f"{VENDOR}/gds").symlink_to(other)
    status, said = await remove(place, "--json", "--force")
    assert status == 0
    assert len(json.loads(said)["removed"]) == len(CDI_KINDS) + 2
    assert list(place.cdi.iterdir()) == [kept]
    assert other.read_text() == "mine"


async def test_what_cannot_be_removed_is_named(place: Place) -> None:
    """As is a directory that is none; one that is not there holds nothing."""
    status, said = await remove(place)
    assert (status, str(place.cdi) in said) == (0, True)
    place.file().mkdir(parents=True)
    status, said = await remove(place, "--force")
    assert (status, f"{place.file(GPU)}: {os.strerror(errno.EISDIR)}" in said) == (1, True)
    place.file().rmdir()
    place.cdi.rmdir()
    place.cdi.write_text("")
    status, said = await remove(place)
    assert (status, said.startswith(f"Error: {place.cdi}/"), said.endswith(": Not a directory\n")) == (1, True, True)
