"""The state directory: what is promised survives, what cannot be read costs itself, a second agent waits."""

import asyncio
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.agent.node import Node
from gpuplane.core.ledger import carry, stored
from gpuplane.host import state
from gpuplane.model.facts import ReleaseWished, Remembered
from gpuplane.model.snapshot import Ledger, Release, Snapshot

FULL = Ledger(boot_id="boot", release=Release(until=500.0, why="firmware"), config_name="a100")


async def store(ledger: Ledger, directory: Path) -> None:
    """Run the reconciler until the disk holds a ledger."""
    node = Node(Snapshot(), now=lambda: 100.0)
    node.tell(Remembered(ledger))
    keeping = asyncio.create_task(state.keep_stored(node, directory))
    assert await node.until(stored, deadline=5.0)
    keeping.cancel()


async def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    """The ledger of the same boot comes back whole; a later, smaller one leaves nothing behind."""
    await store(FULL, tmp_path)
    assert state.load(tmp_path, "boot") == (FULL, [])

    await store(Ledger(boot_id="boot"), tmp_path)
    assert state.load(tmp_path, "boot") == (Ledger(boot_id="boot"), [])


async def test_a_reboot_ends_a_release_and_keeps_the_config_name(tmp_path: Path) -> None:
    """Times of another boot mean nothing in this one."""
    await store(FULL, tmp_path)

    assert state.load(tmp_path, "next")[0] == Ledger(boot_id="next", config_name="a100")
    assert carry(FULL, "boot") is FULL


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"version":2,"boot_id":"","value":1}', b"\xff\xfe", b"[]"])
async def test_an_unreadable_file_costs_only_itself(tmp_path: Path, content: bytes) -> None:
    """It is set aside under a name that says so and named; the other parts are whole."""
    await store(FULL, tmp_path)
    (tmp_path / "release.json").write_bytes(content)

    ledger, problems = state.load(tmp_path, "boot")

    assert ledger == FULL.but(release=None)
    assert len(problems) == 1 and "release.json" in problems[0]
    assert (tmp_path / "release.unreadable").read_bytes() == content
    assert state.load(tmp_path, "boot") == (FULL.but(release=None), [])


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
    """`stored` stays false: no promise is answered that the disk does not hold."""
    node = Node(Snapshot(), now=lambda: 100.0)
    node.tell(ReleaseWished(Release(until=500.0, why="x")))
    with pytest.raises(OSError):
        await state.keep_stored(node, denied)

    assert not stored(node.snapshot)
