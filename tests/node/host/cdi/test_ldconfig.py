"""Where the hook would find no ldconfig that it calls, no container is told to call the hook."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.core.containers.cdi.specstatus import installed_hook_path
from gpuplane.node.host.cdi.hook import hook_status, watch_hook
from gpuplane.node.host.cdi.ldconfig import LDCONFIG_PATHS, PROGRAM_HEADER, has_usable_ldconfig
from gpuplane.node.model.config import CdiHook, Settings
from gpuplane.node.model.facts import ConfigLoaded
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CDI_HOOK_PART
from tests.node.host.hook.build import SOURCES
from tests.texts import as_shown

LOAD, INTERPRETER = 1, 3


def program(*kinds: int) -> bytes:
    """A program of 64 bits with segments of these kinds."""
    size = len(kinds).to_bytes(2, "little")
    head = b"\x7fELF\x02\x01".ljust(32, b"\0") + (64).to_bytes(8, "little") + b"\0" * 14 + b"\x38\0" + size
    return head.ljust(64, b"\0") + b"".join(PROGRAM_HEADER.pack(kind) for kind in kinds)


STATIC, DYNAMIC, SCRIPT = program(LOAD, LOAD), program(LOAD, INTERPRETER), b"#!/bin/sh\nexec ldconfig.real\n"


def put(root: Path, path: str, data: bytes) -> None:
    (file := root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def test_the_places_are_the_hooks() -> None:
    """As its source has them, in the same order."""
    [table] = re.findall(r"PATHS\[\] = \{(.*?)\}", (SOURCES / "ldconfig.c").read_text(), re.S)
    assert tuple(re.findall(r'"(.*?)"', table)) == LDCONFIG_PATHS


@pytest.mark.parametrize("path", LDCONFIG_PATHS)
def test_a_static_program_is_usable(tmp_path: Path, path: str) -> None:
    """At any of the places, a script before it notwithstanding."""
    put(tmp_path, LDCONFIG_PATHS[0], SCRIPT)
    put(tmp_path, path, STATIC)
    assert has_usable_ldconfig(tmp_path)


@pytest.mark.parametrize("data", [b"", SCRIPT, DYNAMIC, STATIC[:20], STATIC[:-1], STATIC.replace(b"\x02", b"\x01", 1)])
def test_what_is_no_static_program_is_not(tmp_path: Path, data: bytes) -> None:
    """A script, a program with an interpreter, a part of one, one of 32 bits."""
    put(tmp_path, "/sbin/ldconfig", data)
    assert not has_usable_ldconfig(tmp_path)


def test_without_any_there_is_none(tmp_path: Path) -> None:
    """As on a host of musl, or without /sbin; a folder and a FIFO are none, and nobody waits."""
    assert not has_usable_ldconfig(tmp_path)
    (tmp_path / "sbin/ldconfig").mkdir(parents=True)
    assert not has_usable_ldconfig(tmp_path)
    (tmp_path / "sbin/ldconfig").rmdir()
    os.mkfifo(tmp_path / "sbin/ldconfig")
    assert not has_usable_ldconfig(tmp_path)


@pytest.mark.parametrize("target", ["usr/sbin", "/usr/sbin", "../../usr/sbin/", "/usr/../usr/./sbin"])
def test_links_lead_where_they_lead_on_the_host(tmp_path: Path, target: str) -> None:
    """Whatever our own root has there."""
    put(root := tmp_path / "host", "/usr/sbin/ldconfig", STATIC)
    (root / "sbin").symlink_to(target)
    assert has_usable_ldconfig(root)
    (root / "usr/sbin/ldconfig").unlink()
    assert not has_usable_ldconfig(root)


def test_a_program_that_somebody_else_could_change_is_not(tmp_path: Path) -> None:
    """The hook runs it for every container."""
    put(tmp_path, "/usr/sbin/ldconfig", STATIC)
    (tmp_path / "sbin").symlink_to("usr/sbin")
    for path in (tmp_path, tmp_path / "usr", tmp_path / "usr/sbin/ldconfig"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        assert not has_usable_ldconfig(tmp_path)
        path.chmod(mode)
        assert has_usable_ldconfig(tmp_path)


def test_links_without_an_end_lead_nowhere(tmp_path: Path) -> None:
    """Nor does one to itself."""
    (tmp_path / "sbin").symlink_to("sbin")
    assert not has_usable_ldconfig(tmp_path)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    put(tmp_path, "gpuplane-hook", b"\x7fELF")
    (path := tmp_path / "gpuplane-hook").chmod(0o755)
    return path


def test_the_hook_is_not_called_where_it_would_fail(installed: Path, tmp_path: Path) -> None:
    """The reason names the places; that is no trouble, for containers start without."""
    stands = hook_status(installed, tmp_path)
    assert (stands.state, stands.path) == ("ok", "")
    assert all(path in as_shown(stands.text) for path in (str(installed), *LDCONFIG_PATHS))
    put(tmp_path, LDCONFIG_PATHS[1], STATIC)
    assert hook_status(installed, tmp_path).path == str(installed)


def test_what_is_not_seen_is_not_judged(installed: Path) -> None:
    """The host's root may be mounted nowhere."""
    assert hook_status(installed, None).path == str(installed)


@pytest.mark.parametrize(("driver_root", "called"), [("/", False), ("//", False), ("/run/nvidia/driver", True)])
async def test_the_driver_root_is_the_hosts_where_it_is_said_to_be(
    installed: Path, tmp_path: Path, driver_root: str, called: bool
) -> None:
    """One of the driver's own says nothing of the host; that is seen as soon as it is configured."""
    node = Node(Snapshot())
    watching = asyncio.create_task(watch_hook(node, installed, tmp_path / "root", every=60))
    async with asyncio.timeout(60):
        await node.wait_until(lambda snapshot: CDI_HOOK_PART in snapshot.statuses, 60)
        node.apply(ConfigLoaded(Settings(driver_root=driver_root)))
        assert await node.wait_until(lambda snapshot: bool(installed_hook_path(snapshot)) == called, 60)
    watching.cancel()


@pytest.mark.parametrize(
    ("choice", "instead"),
    [("auto", "the agent uses mounts instead of the hook's links"), ("nvidia", "NVIDIA's hook is used")],
)
async def test_what_happens_instead_is_told(choice: CdiHook, instead: str, tmp_path: Path) -> None:
    """As it is configured: mounts do what our program would, or NVIDIA's is called."""
    node = Node(Snapshot())
    watching = asyncio.create_task(watch_hook(node, tmp_path / "none", None, every=60))
    told = f"not installed at {tmp_path}/none: {instead}"
    async with asyncio.timeout(60):
        node.apply(ConfigLoaded(Settings(cdi_hook=choice)))
        await node.wait_until(lambda snapshot: CDI_HOOK_PART in snapshot.statuses, 60)
        assert await node.wait_until(lambda snapshot: snapshot.statuses[CDI_HOOK_PART].text == told, 60)
    watching.cancel()
