"""The state directory: what is promised survives, what cannot be read costs itself, a second agent waits."""

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.agent.node import Node
from gpuplane.core.ledger import carry, stored
from gpuplane.host import state
from gpuplane.model.config import Asked
from gpuplane.model.facts import ReleaseWished, Remembered
from gpuplane.model.health import Drain, Health, Record
from gpuplane.model.snapshot import Ledger, Release, Slicing, Snapshot

FULL = Ledger(
    boot_id="boot",
    release=Release(until=500.0, why="firmware"),
    asked=Asked(release="new driver"),
    config_name="a100",
    homes={"MIG-1": "GPU-a"},
    cuts={"GPU-a": "time slices"},
    time_slices={"GPU-a": Slicing(tried="long", at=7.0, length="short", unsure=True)},
    health=Health(devices={"GPU-a": Record(drain=Drain("fan"), pci="0000:1b:00.0")}, log=7),
)


async def store(first: Ledger, directory: Path, *more: Ledger) -> None:
    """Run the reconciler until the disk holds one ledger after the other."""
    node = Node(Snapshot(), now=lambda: 100.0)
    async with storing(node, directory):
        for ledger in (first, *more):
            node.tell(Remembered(ledger))
            assert await node.until(stored, deadline=60)


@asynccontextmanager
async def storing(node: Node, directory: Path) -> AsyncIterator[None]:
    """The reconciler, as it runs in an agent."""
    keeping = asyncio.create_task(state.keep_stored(node, directory, every=0.01))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    """The ledger of the same boot comes back whole; a later, smaller one leaves nothing behind."""
    await store(FULL, tmp_path)
    assert state.load(tmp_path, "boot") == (FULL, [])

    await store(FULL, tmp_path, Ledger(boot_id="boot"))
    assert state.load(tmp_path, "boot") == (Ledger(boot_id="boot"), [])
    assert list(tmp_path.iterdir()) == []


async def test_a_reboot_ends_a_release_and_keeps_the_config_name_the_runtime_and_drains(tmp_path: Path) -> None:
    """Times of another boot mean nothing in this one, and its kernel log begins anew."""
    await store(FULL, tmp_path)

    assert state.load(tmp_path, "next")[0] == Ledger(
        boot_id="next",
        config_name="a100",
        homes=FULL.homes,
        cuts=FULL.cuts,
        health=FULL.health.but(log=-1) if FULL.health else None,
    )
    assert carry(FULL, "boot", 0.0, 0.0) is FULL

    asked = Asked(config="x", runtime="containerd://2.1.4", release="new driver", drains={"3": "fan"})
    kept = carry(FULL.but(asked=asked), "next", 0.0, 0.0).asked
    assert kept == Asked(runtime="containerd://2.1.4", drains={"3": "fan"})


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b'{"version":2,"boot_id":"","value":1}', b"\xff\xfe", b"[]", b"[" * 9999]
)
async def test_an_unreadable_file_costs_only_itself(tmp_path: Path, content: bytes) -> None:
    """It is set aside under a name that says so and named; the other parts are whole."""
    await store(FULL, tmp_path)
    (tmp_path / "release.json").write_bytes(content)

    ledger, problems = state.load(tmp_path, "boot")

    assert ledger == FULL.but(release=None)
    assert len(problems) == 1 and "release.json" in problems[0]
    assert (tmp_path / "release.unreadable").read_bytes() == content
    assert state.load(tmp_path, "boot") == (FULL.but(release=None), [])


def spoil(path: Path) -> None:
    """What cannot be read, not even by root: a directory stands there, and it is not empty."""
    path.unlink(missing_ok=True)
    (path / "x").mkdir(parents=True)


@pytest.mark.parametrize("spoiled", [part.replace("_", "-") for part in state.PARTS])
async def test_a_file_that_the_disk_does_not_give_costs_only_itself(tmp_path: Path, spoiled: str) -> None:
    """It is named and left alone; the others are remembered, and still on disk after a run of the agent."""
    await store(FULL, tmp_path)
    spoil(tmp_path / f"{spoiled}.json")
    rest = FULL.but(**{spoiled.replace("-", "_"): None})

    ledger, problems = state.load(tmp_path, "boot")
    await store(ledger, tmp_path)

    assert ledger == rest
    assert len(problems) == 1 and f"{spoiled}.json: Is a directory" in problems[0]
    assert state.load(tmp_path, "boot")[0] == rest
    assert (tmp_path / f"{spoiled}.json/x").is_dir()


async def test_what_could_not_be_read_is_not_taken_for_what_is_not_there(tmp_path: Path) -> None:
    """A ledger that was not loaded removes nothing; a value that this agent came to have replaces the file."""
    await store(FULL, tmp_path)
    await store(Ledger(boot_id="boot"), tmp_path)
    assert state.load(tmp_path, "boot") == (FULL, [])

    await store(Ledger(boot_id="boot"), tmp_path, Ledger(boot_id="boot", config_name="b"))
    assert state.load(tmp_path, "boot") == (FULL.but(config_name="b"), [])


async def test_what_cannot_be_set_aside_stays(tmp_path: Path) -> None:
    """A name that is taken for setting aside is said, and the other parts are whole."""
    await store(FULL, tmp_path)
    (tmp_path / "release.json").write_text("{")
    spoil(tmp_path / "release.unreadable")

    ledger, problems = state.load(tmp_path, "boot")

    assert ledger == FULL.but(release=None)
    assert "could not be set aside as release.unreadable: Is a directory" in problems[0]
    assert (tmp_path / "release.json").read_text() == "{"


async def test_one_file_that_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    """The problem is a condition with the path, all else is on disk, and it is tried again until it goes."""
    spoil(tmp_path / "release.json")
    node = Node(Snapshot(), now=lambda: 100.0)
    node.tell(Remembered(FULL))
    async with storing(node, tmp_path):
        assert await node.until(lambda s: "state" in s.conditions, deadline=60)
        assert "release.json: Is a directory" in node.snapshot.conditions["state"].reason
        assert state.load(tmp_path, "boot")[0] == FULL.but(release=None)
        assert not stored(node.snapshot)

        (tmp_path / "release.json/x").rmdir()
        (tmp_path / "release.json").rmdir()
        assert await node.until(stored, deadline=60)
    assert state.load(tmp_path, "boot") == (FULL, [])


class Killed(Exception):
    """The process died here."""


@given(crash=st.integers(0, 12), before=st.sampled_from([None, "a"]), now=st.sampled_from([None, "b", "c"]))
def test_a_crash_at_any_write_leaves_the_old_value_or_the_new(
    tmp_path_factory: pytest.TempPathFactory, crash: int, before: str | None, now: str | None
) -> None:
    """Whichever system call is the last, the next start reads one of the two, and nothing is unreadable."""
    directory = tmp_path_factory.mktemp("state")
    state._write(directory, "config_name", before, "boot")
    countdown = itertools.count()

    def guard(name: str) -> object:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            if next(countdown) == crash:
                raise Killed
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fsync", "replace", "rename", "unlink"):
            patch.setattr(os, name, guard(name))
        with suppress(Killed):
            state._write(directory, "config_name", now, "boot")

    ledger, problems = state.load(directory, "boot")
    assert ledger.config_name in (before, now)
    assert problems == []


async def test_a_second_agent_waits_and_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    """The lock names its holder, and passes on when that one ends."""
    async with state.locked(tmp_path / "s") as first:
        assert [owner async for owner in first] == []
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
        async with state.locked(tmp_path / "s", every=0.01) as second:
            assert await anext(second) == f"process {os.getpid()}"
            rest = asyncio.ensure_future(anext(second, None))
            await asyncio.sleep(0)
        rest.cancel()
    async with state.locked(tmp_path / "s") as third:
        assert [owner async for owner in third] == []


@pytest.fixture
def denied(tmp_path: Path) -> Iterator[Path]:
    """A path that cannot be a directory: a file stands there."""
    path = tmp_path / "file"
    path.write_text("x")
    yield path


async def test_a_wish_is_not_stored_while_the_disk_refuses(denied: Path) -> None:
    """`stored` stays false: no promise is answered that the disk does not hold. The condition names the path."""
    node = Node(Snapshot(), now=lambda: 100.0)
    node.tell(ReleaseWished(Release(until=500.0, why="x")))
    async with storing(node, denied):
        assert await node.until(lambda s: "state" in s.conditions, deadline=60)

    assert not stored(node.snapshot)
    assert node.snapshot.conditions["state"].standing == "failing"
    assert f"{denied}: Not a directory" in node.snapshot.conditions["state"].reason


async def test_a_wish_taken_back_while_it_is_written_is_not_kept_before_the_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is as it was before the wish, but the disk is not yet: a crash would bring the wish back."""
    node = Node(Snapshot(), now=lambda: 100.0)
    keeping = asyncio.create_task(state.keep_stored(node, tmp_path))
    assert await node.until(stored, deadline=60)
    writing, go_on, write = threading.Event(), threading.Event(), state._write

    def slowly(directory: Path, part: str, value: object, boot: str) -> None:
        writing.set()
        go_on.wait(5)
        write(directory, part, value, boot)

    monkeypatch.setattr(state, "_write", slowly)
    node.tell(ReleaseWished(Release(until=500.0, why="x")))
    assert await asyncio.to_thread(writing.wait, 5)
    node.tell(ReleaseWished(None))
    assert not stored(node.snapshot)

    go_on.set()
    assert await node.until(stored, deadline=60)
    assert not (tmp_path / "release.json").exists()
    keeping.cancel()
