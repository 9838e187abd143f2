"""The lock on kubelet's directory: one agent at a time, through whatever becomes of the directory."""

import asyncio
import errno
import fcntl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplane.node.agent.node import Node
from gpuplane.node.core.serving import may_register, may_serve, standby_reason
from gpuplane.node.kubelet import lock as module
from gpuplane.node.kubelet.lock import KubeletLock
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import KUBELET_LOCK_PART, Status
from tests.texts import as_shown

DEADLINE = 60.0
HOLD = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), 2); print('held', flush=True); sys.stdin.read()"


def turn(directory: Path) -> KubeletLock:
    return KubeletLock(Node(Snapshot()), directory, interval=0.02)


def condition(turn: KubeletLock) -> Status:
    return turn.node.snapshot.statuses[KUBELET_LOCK_PART]


async def stands(turn: KubeletLock, ready: Callable[[Snapshot], bool]) -> None:
    assert await turn.node.wait_until(ready, DEADLINE), turn.node.snapshot.statuses


@asynccontextmanager
async def doing(work: asyncio.Future[None]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_one_at_a_time(tmp_path: Path) -> None:
    """Whoever waits serves nothing, and takes over when the other gives the lock back."""
    first, second = turn(tmp_path), turn(tmp_path)
    assert first.try_acquire() and first.check() and first.may_serve()
    assert not second.try_acquire()
    waiting = asyncio.ensure_future(second.acquire())
    async with doing(waiting):
        await stands(second, lambda snapshot: bool(standby_reason(snapshot)))
        assert not second.may_serve()
        assert not may_serve(second.node.snapshot)
        first.release()
        async with asyncio.timeout(DEADLINE):
            await waiting
    assert second.may_serve() and second.check()
    assert may_register(second.node.snapshot)
    second.release()


async def test_a_process_that_is_killed_leaves_no_lock(tmp_path: Path) -> None:
    """It is named meanwhile, with its command."""
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, tmp_path, stdin=pipe, stdout=pipe)
    assert other.stdout is not None
    await other.stdout.readline()
    second = turn(tmp_path)
    waiting = asyncio.ensure_future(second.acquire())
    async with doing(waiting):
        await stands(
            second, lambda snapshot: f"process {other.pid} ({sys.executable}" in as_shown(standby_reason(snapshot))
        )
        other.kill()
        await other.wait()
        async with asyncio.timeout(DEADLINE):
            await waiting
    assert second.may_serve()
    second.release()


async def test_who_has_said_for_whom_it_waits_does_not_look_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the kernel lists its locks nobody on the node can free one: the agent that ends now would wait for that."""
    looks, holder = list[Path](), module._lock_holder

    def look(directory: Path) -> int | None:
        looks.append(directory)
        return holder(directory)

    monkeypatch.setattr(module, "_lock_holder", look)
    first, second = turn(tmp_path), turn(tmp_path)
    assert first.try_acquire() and not second.try_acquire()
    await second.report_standby()
    waiting = asyncio.ensure_future(second.acquire())
    async with doing(waiting):
        await asyncio.sleep(0.2)
        assert len(looks) == 1
        first.release()
        async with asyncio.timeout(DEADLINE):
            await waiting
    second.release()


async def test_one_who_waits_no_longer_is_passed_over(tmp_path: Path) -> None:
    """The thread that it left behind frees the lock at once."""
    first, second, third = turn(tmp_path), turn(tmp_path), turn(tmp_path)
    assert first.try_acquire()
    waiting = asyncio.ensure_future(second.acquire())
    await stands(second, lambda snapshot: bool(standby_reason(snapshot)))
    async with doing(waiting):
        await asyncio.sleep(0.05)
    waiting = asyncio.ensure_future(third.acquire())
    async with doing(waiting):
        await asyncio.sleep(0.05)
        first.release()
        async with asyncio.timeout(DEADLINE):
            await waiting
    assert third.may_serve() and not second.may_serve()
    third.release()


async def test_a_directory_that_is_not_there_is_nobodys(tmp_path: Path) -> None:
    """It is waited for; of two agents one has it when it comes, and the other stands by."""
    path = tmp_path / "device-plugins"
    first, second = turn(path), turn(path)
    for each in (first, second):
        assert each.try_acquire() and each.check() and not each.may_serve()
        assert not standby_reason(each.node.snapshot)
        assert str(path) in as_shown(condition(each).text)
    lost = [asyncio.ensure_future(each.wait_until_lost()) for each in (first, second)]
    async with doing(lost[0]), doing(lost[1]):
        path.mkdir()
        await asyncio.wait(lost, return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE)
        assert first.may_serve() != second.may_serve()
        assert bool(standby_reason(first.node.snapshot)) != bool(standby_reason(second.node.snapshot))
    first.release()
    second.release()


async def test_the_lock_of_a_directory_that_was_replaced_means_nothing(tmp_path: Path) -> None:
    """Its holder takes the one of the new directory, or stands by where another was faster."""
    path = tmp_path / "device-plugins"
    path.mkdir()
    first, second = turn(path), turn(path)
    assert first.try_acquire() and first.check()
    lost = asyncio.ensure_future(first.wait_until_lost())
    async with doing(lost):
        path.rename(tmp_path / "old")
        assert not first.may_serve()
        path.mkdir()
        await asyncio.sleep(0.2)
        assert first.may_serve() and not second.try_acquire()

        path.rename(tmp_path / "older")
        path.mkdir()
        assert second.try_acquire() and second.may_serve()
        async with asyncio.timeout(DEADLINE):
            await lost
        assert standby_reason(first.node.snapshot) and not first.may_serve()
    first.release()
    second.release()


async def test_who_waits_for_a_directory_that_was_replaced_waits_for_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "device-plugins"
    path.mkdir()
    first, second = turn(path), turn(path)
    assert first.try_acquire()
    waiting = asyncio.ensure_future(second.acquire())
    async with doing(waiting):
        await stands(second, lambda snapshot: bool(standby_reason(snapshot)))
        path.rename(tmp_path / "old")
        path.mkdir()
        async with asyncio.timeout(DEADLINE):
            await waiting
        assert second.may_serve() and not first.may_serve() and not first.check()
    first.release()
    second.release()


@pytest.mark.parametrize("problem", [errno.ENOLCK, errno.EOPNOTSUPP])
async def test_a_file_system_without_locks_is_said_and_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(problem, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    only = turn(tmp_path)
    assert only.try_acquire() and only.check() and only.may_serve()
    assert condition(only).state == "failing" and "No locks available" in as_shown(condition(only).text)
    assert may_register(only.node.snapshot)
    only.release()


async def test_who_was_told_to_end_registers_no_more(tmp_path: Path) -> None:
    only = turn(tmp_path)
    assert only.try_acquire() and only.check()
    only.report_leaving()
    assert may_serve(only.node.snapshot) and not may_register(only.node.snapshot)
    only.report_stopped()
    assert not may_serve(only.node.snapshot)
    only.release()
