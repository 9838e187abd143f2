"""The file of node-feature-discovery: what stands in it, who may read it, and when it goes."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.host import featuresfile
from gpuplane.node.model.config import LabelTarget, NodeSettings, Settings
from gpuplane.node.model.facts import ConfigLoaded, Fact, MachineObserved
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import FEATURES_FILE_PART
from tests.texts import as_shown

COUNT, PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.product"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(featuresfile, "WRITE_INTERVAL", 0.01)
    monkeypatch.setattr(featuresfile, "CHECK_INTERVAL", 0.3)


def count_labels(snapshot: Snapshot) -> Mapping[str, str] | None:
    if snapshot.machine is None:
        return None
    return {PRODUCT: "H100", COUNT: str(len(snapshot.gpus)), "nvidia.com/too-long": "x" * 64}


def wanted(path: Path | str, labels: LabelTarget = "file") -> Fact:
    return ConfigLoaded(Settings(node=NodeSettings(labels=labels, features_file=str(path))))


def machine(gpus: int) -> Fact:
    return MachineObserved(Machine(gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}") for i in range(gpus))))


@asynccontextmanager
async def keeping(*facts: Fact) -> AsyncIterator[Node]:
    node = Node(Snapshot())
    task = asyncio.ensure_future(featuresfile.keep_features_file(node, count_labels))
    for fact in facts:
        node.apply(fact)
    try:
        yield node
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def stands(node: Node, standing: str, reason: str = "") -> None:
    def there(snapshot: Snapshot) -> bool:
        found = snapshot.statuses.of(FEATURES_FILE_PART)
        return found is not None and found.state == standing and reason in as_shown(found.text)

    assert await node.wait_until(there, 60), node.snapshot.statuses


async def reads(path: Path, content: str | None) -> None:
    def looked() -> str | None:
        with suppress(FileNotFoundError):
            return path.read_text()
        return None

    async with asyncio.timeout(60):
        while looked() != content:
            await asyncio.sleep(0.02)


async def test_its_lines_follow_the_node(tmp_path: Path) -> None:
    """Sorted; every user may read it, whatever the umask; what is not legal is left out and said."""
    path = tmp_path / "gfd"
    before = os.umask(0o077)
    try:
        async with keeping(wanted(path)) as node:
            await asyncio.sleep(0.1)
            assert not path.exists()
            node.apply(machine(8))
            await stands(node, "ok", "left out because Kubernetes would refuse them: nvidia.com/too-long")
            assert path.read_text() == f"{COUNT}=8\n{PRODUCT}=H100\n"
            assert stat.S_IMODE(path.stat().st_mode) == 0o644
            node.apply(machine(0))
            await reads(path, f"{COUNT}=0\n{PRODUCT}=H100\n")
    finally:
        os.umask(before)
    assert path.exists()  # it stays when the agent ends
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["gfd"]


async def test_it_is_written_only_when_it_differs(tmp_path: Path) -> None:
    """After a restart too. What somebody else makes of it is put right."""
    path = tmp_path / "gfd"
    async with keeping(wanted(path), machine(8)) as node:
        await stands(node, "ok")
    first = path.stat()
    async with keeping(wanted(path), machine(8)) as node:
        await stands(node, "ok")
        await asyncio.sleep(0.7)
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
        path.write_text("other=1\n")
        await reads(path, f"{COUNT}=8\n{PRODUCT}=H100\n")


@pytest.mark.parametrize("restarted", [False, True])
async def test_it_goes_when_it_is_switched_off(tmp_path: Path, restarted: bool) -> None:
    """Nothing of ours is left."""
    path = tmp_path / "gfd"
    async with keeping(wanted(path), machine(8)) as node:
        await stands(node, "ok")
        if not restarted:
            node.apply(wanted(path, "node"))
            await reads(path, None)
    async with keeping(wanted(path, "none"), machine(8)) as node:
        await reads(path, None)
        assert FEATURES_FILE_PART not in node.snapshot.statuses
    assert [*tmp_path.iterdir()] == []


async def test_another_path_leaves_nothing_at_the_first(tmp_path: Path) -> None:
    async with keeping(wanted(tmp_path / "a"), machine(8)) as node:
        await stands(node, "ok")
        node.apply(wanted(tmp_path / "b"))
        await reads(tmp_path / "a", None)
        await reads(tmp_path / "b", f"{COUNT}=8\n{PRODUCT}=H100\n")


async def test_what_gpu_feature_discovery_wrote_stays(tmp_path: Path) -> None:
    """We remove no file but ours."""
    path = tmp_path / "gfd"
    path.write_text("nvidia.com/gpu.count=4\n")
    async with keeping(wanted(path, "none"), machine(8)):
        await asyncio.sleep(0.2)
    assert path.read_text() == "nvidia.com/gpu.count=4\n"


async def test_what_stands_at_its_place(tmp_path: Path) -> None:
    """A link is replaced and not followed; a FIFO makes nobody wait."""
    target, link, fifo = tmp_path / "target", tmp_path / "link", tmp_path / "fifo"
    target.write_text("mine")
    link.symlink_to(target)
    os.mkfifo(fifo)
    for path in (link, fifo):
        async with keeping(wanted(path), machine(8)) as node:
            await stands(node, "ok")
            assert path.read_text() == f"{COUNT}=8\n{PRODUCT}=H100\n"
    assert target.read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "reason"), [("absent/gfd", "No such file"), ("relative", "absolute path"), ("", "absolute path")]
)
async def test_a_path_that_is_none(tmp_path: Path, name: str, reason: str) -> None:
    """It is said; when it can be written it is."""
    path = tmp_path / name if name.startswith("absent") else name
    async with keeping(wanted(path), machine(8)) as node:
        await stands(node, "failing", reason)
        if isinstance(path, Path):
            path.parent.mkdir()
            await stands(node, "ok")
