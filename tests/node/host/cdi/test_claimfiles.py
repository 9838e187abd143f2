"""The CDI files of claims, and the files that describe devices, on a real disk."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.core.dra.claimspecs import claim_fingerprints
from gpuplane.node.core.dra.names import claim_file_name
from gpuplane.node.core.dra.preparing import unprepare_problem
from gpuplane.node.host.cdi import claimfiles
from gpuplane.node.host.cdi.claimfiles import keep_claim_files
from gpuplane.node.model.claims import AllocatedClaim, ClaimName
from gpuplane.node.model.config import DraSettings, Settings
from gpuplane.node.model.facts import (
    ClaimPrepareRequested,
    ClaimUnprepareRequested,
    ConfigLoaded,
    Fact,
    MachineObserved,
)
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CLAIM_FILES_PART, ClaimFilesStatus
from tests.node.core.dra.nodes import MACHINE, claim, node

DRIVER = "gpu.nvidia.com"


@asynccontextmanager
async def keeping(root: Path, *facts: Fact) -> AsyncIterator[Node]:
    """An agent that keeps the files of claims."""
    kept = Node(node(), now=lambda: 100.0)
    for fact in facts:
        kept.apply(fact)
    task = asyncio.create_task(keep_claim_files(kept, root / "cdi", 0.02, root / "plugins"))
    try:
        yield kept
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def status(snapshot: Snapshot) -> ClaimFilesStatus:
    return snapshot.statuses.of(CLAIM_FILES_PART) or ClaimFilesStatus("waiting")


async def settled(kept: Node) -> None:
    """Wait until the files are what they shall be."""

    def same(snapshot: Snapshot) -> bool:
        return status(snapshot).state == "ok" and status(snapshot).fingerprints == claim_fingerprints(snapshot)

    assert await kept.wait_until(same, 30)


def prepare(uid: str, *gpus: int, **fields: object) -> ClaimPrepareRequested:
    """A Prepare of a claim."""
    asked: AllocatedClaim = claim(uid, *gpus).but(**fields)
    return ClaimPrepareRequested(asked)


async def test_a_claim_has_a_file_while_it_is_prepared(tmp_path: Path) -> None:
    """It follows the driver, is written again where somebody removes or changes it, and goes with the claim."""
    async with keeping(tmp_path, prepare("a", 0), prepare("b", 1)) as kept:
        await settled(kept)
        file = tmp_path / "cdi" / claim_file_name(DRIVER, "a")
        assert json.loads(file.read_bytes())["kind"] == "k8s.gpu.nvidia.com/claim"
        assert file.stat().st_mode & 0o777 == 0o644
        for put_instead in (None, file.write_text, file.symlink_to):
            file.unlink()
            if put_instead is not None:
                put_instead("{}")
            await asyncio.sleep(0.1)
            await settled(kept)
            assert json.loads(file.read_bytes())["kind"] == "k8s.gpu.nvidia.com/claim"
            assert not file.is_symlink()
        driver = MACHINE.driver
        assert driver is not None
        assert driver.files is not None
        newer = driver.but(files=driver.files.but(libraries=driver.files.libraries[:-1]))
        before = file.read_bytes()
        kept.apply(MachineObserved(MACHINE.but(driver=newer)))
        await settled(kept)
        assert file.read_bytes() != before
        kept.apply(ClaimUnprepareRequested(ClaimName("default", "a", "a")))
        await settled(kept)
        assert not file.exists()
        assert (tmp_path / "cdi" / claim_file_name(DRIVER, "b")).exists()


async def test_an_idle_node_is_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With claims and without: nothing else wakes the part."""
    looks = list[Path]()
    really = claimfiles.read_claim_files

    def look(
        directory: Path, driver: str, before: Mapping[str, claimfiles.SeenClaimFile]
    ) -> Mapping[str, claimfiles.SeenClaimFile]:
        looks.append(directory)
        return really(directory, driver, before)

    monkeypatch.setattr(claimfiles, "read_claim_files", look)
    async with keeping(tmp_path) as kept:
        await asyncio.sleep(0.2)
        assert len(looks) <= 15  # one each 20 ms
        kept.apply(prepare("a", 0))
        await settled(kept)
        looks.clear()
        await asyncio.sleep(0.2)
        assert len(looks) <= 15


async def test_a_file_without_a_claim_goes_and_others_stay(tmp_path: Path) -> None:
    """Those of other drivers, of NVIDIA's driver for other claims, and everything else."""
    (tmp_path / "cdi").mkdir(mode=0o755)
    others = ["k8s.gpu.nvidia.com-claim_x.yaml", "k8s.other-claim_x.json", "nvidia.yaml"]
    for name in (claim_file_name(DRIVER, "left"), claim_file_name(DRIVER, "a").replace("json", "yaml"), *others):
        (tmp_path / "cdi" / name).write_text("{}")
    async with keeping(tmp_path, prepare("a", 0)) as kept:
        await settled(kept)
    assert sorted(each.name for each in (tmp_path / "cdi").iterdir()) == sorted([*others, claim_file_name(DRIVER, "a")])


async def test_a_gpu_that_is_gone_leaves_its_file(tmp_path: Path) -> None:
    """For its container may start again."""
    async with keeping(tmp_path, prepare("a", 0)) as kept:
        await settled(kept)
        file = tmp_path / "cdi" / claim_file_name(DRIVER, "a")
        before = file.read_bytes()
        kept.apply(MachineObserved(MACHINE.but(gpus=(MACHINE.gpus or ())[1:])))
        await asyncio.sleep(0.1)
        assert file.read_bytes() == before
        assert status(kept.snapshot).fingerprints.keys() == {"a"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's files can be made somebody else's")
async def test_a_directory_that_others_could_change_is_not_used(tmp_path: Path) -> None:
    """And that is said."""
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi").chmod(0o777)
    async with keeping(tmp_path, prepare("a", 0)) as kept:
        assert await kept.wait_until(lambda snapshot: status(snapshot).state == "failing", 30)
        assert list((tmp_path / "cdi").iterdir()) == []
        (tmp_path / "cdi").chmod(0o755)
        await settled(kept)


async def test_containers_get_a_file_that_describes_their_devices(tmp_path: Path) -> None:
    """Where the configuration wants it: at the path that KEP-5304 names, for each request by itself."""
    settings = Settings(dra=DraSettings(enabled=True, device_metadata=True))
    asked = prepare("a", 0, 1, pod_claim_name="gpus", generation=3)
    async with keeping(tmp_path, ConfigLoaded(settings), asked, prepare("b", 2)) as kept:
        await settled(kept)
        spec = json.loads((tmp_path / "cdi" / claim_file_name(DRIVER, "a")).read_bytes())
        mount = spec["devices"][0]["containerEdits"]["mounts"][-1]
        root = "/var/run/kubernetes.io/dra-device-attributes"
        assert mount["containerPath"] == f"{root}/resourceclaimtemplates/gpus/gpu/{DRIVER}-metadata.json"
        assert "ro" in mount["options"]
        file = Path(mount["hostPath"])
        assert file.is_relative_to(tmp_path / "plugins" / DRIVER)
        document = json.loads(file.read_bytes())
        assert document["apiVersion"] == "metadata.resource.k8s.io/v1alpha1"
        assert document["kind"] == "DeviceMetadata"
        assert document["metadata"] == {"name": "a", "namespace": "default", "uid": "a", "generation": 3}
        assert document["podClaimName"] == "gpus"
        [request] = document["requests"]
        assert [each["name"] for each in request["devices"]] == ["gpu-0", "gpu-1"]
        assert request["devices"][1]["attributes"]["uuid"] == {"string": "GPU-1"}
        kept.apply(ClaimUnprepareRequested(ClaimName("default", "a", "a")))
        await settled(kept)
        assert not file.exists()
        other = json.loads((tmp_path / "cdi" / claim_file_name(DRIVER, "b")).read_bytes())
        path = other["devices"][0]["containerEdits"]["mounts"][-1]["containerPath"]
        assert path == f"{root}/resourceclaims/b/gpu/{DRIVER}-metadata.json"


async def test_strange_things_beside_the_files_that_describe_devices_cost_nobody(tmp_path: Path) -> None:
    """A file, links and folders of others are removed; what a link leads to is not."""
    settings, elsewhere = Settings(dra=DraSettings(enabled=True, device_metadata=True)), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("x")
    directory = tmp_path / "plugins" / DRIVER / "dra-device-metadata"
    directory.mkdir(parents=True)
    (directory / "stray").write_text("x")
    (directory / "link").symlink_to(elsewhere)
    (directory / "a").symlink_to(elsewhere)
    (directory / "b").write_text("x")
    (directory / "old" / "gpu").mkdir(parents=True)
    async with keeping(tmp_path, ConfigLoaded(settings), prepare("a", 0), prepare("b", 1)) as kept:
        await settled(kept)
        assert sorted(each.name for each in directory.iterdir()) == ["a", "b"]
        assert [each.name for each in elsewhere.iterdir()] == ["kept"]
        assert json.loads((directory / "b/gpu/metadata.json").read_bytes())["metadata"]["name"] == "b"
        for uid in ("a", "b"):
            kept.apply(ClaimUnprepareRequested(ClaimName("default", uid, uid)))
        await settled(kept)
        assert list(directory.iterdir()) == []


async def test_a_claim_whose_file_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    """What its specification mounts cannot be there; others come and go."""
    settings = Settings(dra=DraSettings(enabled=True, device_metadata=True))
    blocked = tmp_path / "plugins" / DRIVER / "dra-device-metadata" / "a" / "gpu" / "metadata.json"
    async with keeping(tmp_path, ConfigLoaded(settings), prepare("a", 0), prepare("b", 1)) as kept:
        await settled(kept)
        blocked.unlink()
        (blocked / "not-empty").mkdir(parents=True)
        assert await kept.wait_until(lambda now: status(now).problems.keys() == {"a"}, 30)
        kept.apply(ClaimUnprepareRequested(ClaimName("default", "b", "b")))
        kept.apply(prepare("c", 2))
        assert await kept.wait_until(lambda now: status(now).fingerprints.keys() == {"a", "c"}, 30)
        assert unprepare_problem(kept.snapshot, "b") is None
        assert unprepare_problem(kept.snapshot, "a") is not None
        shutil.rmtree(blocked)
        await settled(kept)
