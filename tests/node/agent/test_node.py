"""The node: one writer, many followers, two ways to wait."""

import asyncio
import logging
from pathlib import Path

import pytest

from gpuplane.node.agent.control import control
from gpuplane.node.agent.node import Node
from gpuplane.node.agent.restart import keep_part_running
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import ConfigLoaded, DriverReleaseRequested, StatusChanged
from gpuplane.node.model.snapshot import DriverRelease, Snapshot
from gpuplane.node.model.status import Part, Status
from tests.texts import as_shown


async def test_changes_gives_the_picture_now_and_then_the_newest() -> None:
    """A slow follower skips what came and went between, and always ends with the newest."""
    node, seen = Node(Snapshot()), []
    changes = node.changes()
    seen.append(await anext(changes))
    for name in "abc":
        node.apply(ConfigLoaded(Settings(driver_root=name)))
    seen.append(await anext(changes))

    assert [snapshot.generation for snapshot in seen] == [0, 3]


async def test_changes_of_views_skip_snapshots_of_which_no_view_differs() -> None:
    """What a view equals is no news: a fact about something else wakes nobody."""
    node, seen = Node(Snapshot()), list[str]()

    async def follow() -> None:
        async for snapshot in node.changes(lambda s: s.config.settings, lambda s: s.ledger.release):
            seen.append(snapshot.config.settings.driver_root if snapshot.config.settings else "none")

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    for fact in (
        StatusChanged(Part("other", "x"), Status("ok")),
        ConfigLoaded(Settings(driver_root="a")),
        ConfigLoaded(Settings(driver_root="a"), warnings=("x",)),
        DriverReleaseRequested(DriverRelease(until=node.now() + 60, reason="x")),
    ):
        node.apply(fact)
        for _ in range(5):
            await asyncio.sleep(0)
    following.cancel()

    assert seen == ["none", "a", "a"]


async def test_a_view_that_raises_ends_its_follower_and_no_other() -> None:
    """The one that applied the fact knows nothing of it."""
    node = Node(Snapshot())

    def spoilt(snapshot: Snapshot) -> int:
        return 1 if snapshot.config.settings is None else 1 // 0

    broken = asyncio.create_task(node.wait_until(lambda s: spoilt(s) == 2, deadline=60))
    waiting = asyncio.create_task(node.wait_until(lambda s: s.config.settings is not None, deadline=60))
    await asyncio.sleep(0)
    node.apply(ConfigLoaded(Settings()))

    assert await waiting
    with pytest.raises(ZeroDivisionError):
        await broken


async def test_until_sees_a_change_and_gives_up_at_its_deadline() -> None:
    """Waiting ends with the snapshot that is ready, or with the deadline."""
    node = Node(Snapshot())
    waiting = asyncio.create_task(node.wait_until(lambda s: Part("other", "x") in s.statuses, deadline=60))
    await asyncio.sleep(0)
    node.apply(StatusChanged(Part("other", "x"), Status("ok")))

    assert await waiting is True
    assert await node.wait_until(lambda s: Part("other", "y") in s.statuses, deadline=0.01) is False


async def test_time_alone_changes_the_node_when_it_is_due() -> None:
    """The clock tells a Tick at the moment that `due` names, not before."""
    now = 1000.0
    node = Node(Snapshot(), now=lambda: now)
    clock = asyncio.create_task(node.run_clock())
    node.apply(DriverReleaseRequested(DriverRelease(until=1000.02, reason="x")))
    await asyncio.sleep(0)
    assert node.snapshot.ledger.release is not None
    now = 1000.03

    assert await node.wait_until(lambda s: s.ledger.release is None, deadline=60)
    clock.cancel()


async def test_a_part_that_raises_is_started_again_alone(caplog: pytest.LogCaptureFixture) -> None:
    """What it raised is a condition while it rests, and a log line once; a while of work clears it."""
    node, starts, running = Node(Snapshot()), 0, asyncio.Event()

    async def part() -> None:
        nonlocal starts
        starts += 1
        if starts < 3:
            raise RuntimeError("no luck")
        running.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_part_running(node, Part("other", "part"), part, backoff=(0.01, 0.1), steady=0.01))
    assert await node.wait_until(lambda s: Part("other", "part") in s.statuses, deadline=60)
    assert "no luck" in as_shown(node.snapshot.statuses[Part("other", "part")].text)
    async with asyncio.timeout(60):
        await running.wait()
    assert await node.wait_until(lambda s: not s.statuses, deadline=60)
    task.cancel()

    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None


async def failing(error: Exception) -> str:
    """The reason of the condition of a part that raises."""
    node = Node(Snapshot())

    async def part() -> None:
        raise error

    task = asyncio.create_task(keep_part_running(node, Part("other", "part"), part))
    assert await node.wait_until(lambda s: Part("other", "part") in s.statuses, deadline=60)
    task.cancel()
    return as_shown(node.snapshot.statuses[Part("other", "part")].text)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a"), "ValueError: a"),
        (ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("a")]), "ValueError: a"),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("a")])]), "ValueError: a"),
        (ExceptionGroup("both", [ValueError("a"), OSError(13, "denied", "/f")]), "ValueError: a; /f: denied"),
        (TimeoutError(), "TimeoutError"),
        (OSError("no route"), "OSError: no route"),
        (OSError(13, "denied", "/from", None, "/to"), "/to: denied"),
        (OSError(98, "in use"), "in use"),
    ],
)
async def test_the_reason_is_what_went_wrong_inside(error: Exception, reason: str) -> None:
    """A group of tasks is nobody's reason; an error of the system is told with its file, in words."""
    assert await failing(error) == reason


@pytest.mark.parametrize("inside", [False, True])
async def test_what_the_machine_refuses_is_one_line(caplog: pytest.LogCaptureFixture, inside: bool) -> None:
    """An OSError is no fault of the program: a warning with file and reason, and no traceback."""
    error: Exception = PermissionError(13, "Permission denied", "/file")
    with caplog.at_level(logging.INFO):
        await failing(ExceptionGroup("unhandled errors in a TaskGroup", [error]) if inside else error)

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.message.startswith("part: failing: /file: ")
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_socket_that_cannot_be_is_told_with_its_path(tmp_path: Path) -> None:
    """Also a path too long for a socket, of which the system does not say which."""
    path = tmp_path / ("x" * 200) / "control.sock"
    path.parent.mkdir()
    node = Node(Snapshot())
    task = asyncio.create_task(keep_part_running(node, Part("control"), lambda: control(node, path)))
    assert await node.wait_until(lambda s: Part("control") in s.statuses, deadline=60)
    task.cancel()

    assert as_shown(node.snapshot.statuses[Part("control")].text).startswith(f"{path}: ")
