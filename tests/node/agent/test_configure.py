"""Which configuration comes into force, and which stays there."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplane.node.agent.configure import Source, configure
from gpuplane.node.agent.node import Node
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.facts import LedgerLoaded, NodeRequestsChanged
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import CONFIG_PART, Status
from tests.golden import Golden
from tests.texts import as_shown

GOOD, OTHER, BAD = "version: v1\n", "flags: {migStrategy: mixed}\n", "flags: {migStratgy: mixed}\n"


def remembering(name: str | None = None) -> Node:
    """A node that has just started, and what its ledger says was in force last."""
    node = Node(Snapshot())
    node.apply(LedgerLoaded(Ledger(config_name=name)))
    return node


@asynccontextmanager
async def configuring(node: Node, source: Source) -> AsyncIterator[None]:
    """Follow the files, once the first word about them is said."""
    task = asyncio.create_task(configure(node, source))
    assert await node.wait_until(lambda s: CONFIG_PART in s.statuses, deadline=60)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def write(directory: Path, **files: str) -> Path:
    """A directory of named configurations."""
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


def stands(node: Node) -> Status:
    """How the configuration stands."""
    return node.snapshot.statuses[CONFIG_PART]


def in_force(node: Node) -> tuple[str, str] | None:
    """(name, MIG strategy) of what is in force."""
    config = node.snapshot.config
    return (config.name, config.settings.mig_strategy) if config.settings else None


async def until_in_force(node: Node, name: str, strategy: str) -> None:
    """Wait for one to come into force."""
    assert await node.wait_until(lambda s: in_force(node) == (name, strategy), deadline=60), stands(node)


@pytest.mark.parametrize("asks", [False, True])
async def test_a_start_with_a_broken_choice_takes_the_last_in_force(tmp_path: Path, asks: bool, golden: Golden) -> None:
    """The node keeps its GPUs, the problem is said, and the choice comes into force once it is repaired."""
    write(tmp_path, a=GOOD, b=BAD)
    node = remembering("a")
    if asks:
        node.apply(NodeRequestsChanged(NodeObjectRequests(config_name="b")))
    async with configuring(node, Source(path=tmp_path, asks=asks, default="b")):
        assert in_force(node) == ("a", "none")
        assert stands(node).state == "failing"
        golden(stands(node).text, "")
        write(tmp_path, b=OTHER)
        await until_in_force(node, "b", "mixed")
        assert stands(node).state == "ok"


@pytest.mark.parametrize("last", [None, "b", "c", "gone"])
async def test_a_start_with_a_broken_choice_and_no_good_last_has_none(
    tmp_path: Path, last: str | None, golden: Golden
) -> None:
    """Nothing is made up: the problem is said alone."""
    write(tmp_path, a=GOOD, b=BAD, c=BAD)
    node = remembering(last)
    async with configuring(node, Source(path=tmp_path, name="b")):
        assert in_force(node) is None
        golden(stands(node).text, "")


async def test_one_unreadable_file_costs_nothing_until_it_is_chosen(tmp_path: Path) -> None:
    """Not a word about it before; then its name and the reason, and what was in force stays."""
    write(tmp_path, a=GOOD)
    (tmp_path / "loop").symlink_to("loop")
    node = remembering()
    node.apply(NodeRequestsChanged(NodeObjectRequests(config_name="a")))
    async with configuring(node, Source(path=tmp_path, asks=True)):
        assert (stands(node).state, in_force(node)) == ("ok", ("a", "none"))
        node.apply(NodeRequestsChanged(NodeObjectRequests(config_name="loop")))
        assert await node.wait_until(lambda s: s.statuses[CONFIG_PART].state == "failing", deadline=60)
        assert f"{tmp_path}/loop: {os.strerror(errno.ELOOP)}" in as_shown(stands(node).text)
        assert in_force(node) == ("a", "none")


async def test_a_directory_that_comes_late_is_taken(tmp_path: Path) -> None:
    """There was nothing, then a file, then a directory of named ones, whose label is followed."""
    path = tmp_path / "config"
    node = remembering()
    async with configuring(node, Source(path=path, default="a", asks=True)):
        assert as_shown(stands(node).text) == f"{path}: {os.strerror(errno.ENOENT)}"
        path.write_text(OTHER)
        await until_in_force(node, "", "mixed")
        node.apply(NodeRequestsChanged(NodeObjectRequests()))
        path.unlink()
        write(path, a=GOOD, b=OTHER)
        await until_in_force(node, "a", "none")
        node.apply(NodeRequestsChanged(NodeObjectRequests(config_name="b")))
        await until_in_force(node, "b", "mixed")


@pytest.mark.parametrize(
    ("source", "asked", "last", "name"),
    [
        (Source(name="b", default="a"), None, "c", "b"),
        (Source(name="b", default="a", asks=True), "a", "c", "b"),
        (Source(default="a"), None, "b", "a"),
        (Source(), None, "b", "default"),
        (Source(default="a", asks=True), None, "b", "b"),
        (Source(default="a", asks=True), "", "b", "a"),
        (Source(default="a", asks=True), "c", "b", "c"),
        (Source(default="a", asks=True), "typo", "b", "b"),
        (Source(default="typo", asks=True), "", "b", "b"),
    ],
)
async def test_what_a_start_takes(tmp_path: Path, source: Source, asked: str | None, last: str, name: str) -> None:
    """Name, label, default, fallbacks; the last in force only for a label that is not known yet, or wrong."""
    write(tmp_path, a=GOOD, b=GOOD, c=GOOD, default=GOOD)
    node = remembering(last)
    if asked is not None:
        node.apply(NodeRequestsChanged(NodeObjectRequests(config_name=asked)))
    async with configuring(node, source.but(path=tmp_path)):
        assert in_force(node) == (name, "none")


async def test_a_name_given_by_hand_does_not_stick(tmp_path: Path) -> None:
    """It is this process's: the next one without it goes by the rules, as the first one did."""
    write(tmp_path, a=GOOD, default=OTHER)
    first = remembering()
    async with configuring(first, Source(path=tmp_path, name="a")):
        assert in_force(first) == ("a", "none")
    second = remembering(first.snapshot.ledger.config_name)
    async with configuring(second, Source(path=tmp_path)):
        assert (in_force(second), stands(second).state) == (("default", "mixed"), "ok")


@pytest.mark.parametrize(
    ("source", "last"),
    [
        pytest.param(Source(name="typo"), None, id="option"),
        pytest.param(Source(default="typo"), "a", id="default"),
        pytest.param(Source(fallbacks=("single",)), None, id="fallback"),
        pytest.param(Source(asks=True), "typo", id="last"),
        pytest.param(Source(asks=True), None, id="label"),
    ],
)
async def test_the_error_says_who_requests_an_unknown_configuration(
    tmp_path: Path, source: Source, last: str | None, golden: Golden
) -> None:
    """And no configuration comes into force."""
    write(tmp_path, a=GOOD, b=GOOD)
    node = remembering(last)
    async with configuring(node, source.but(path=tmp_path)):
        assert in_force(node) is None
        golden(stands(node).text)


async def test_what_is_taken_otherwise_than_written_is_said_once_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, golden: Golden
) -> None:
    """The file serves, and again when it changes; the warning is not repeated while it stays the same."""
    path = tmp_path / "config"
    path.write_text("flags:\n  migstrategy: mixed\n")
    node = remembering()
    with caplog.at_level("INFO"):
        async with configuring(node, Source(path=path)):
            assert (in_force(node), stands(node).state) == (("", "mixed"), "ok")
            path.write_text("flags:\n  migstrategy: single\n")
            await until_in_force(node, "", "single")
            (warning,) = node.snapshot.config.warnings
            golden(warning)
            path.write_text("flags: {migStrategy: none}\n")
            await until_in_force(node, "", "none")

    assert not node.snapshot.config.warnings
    assert [(each.levelname, each.message) for each in caplog.records if "migstrategy" in each.message] == [
        ("WARNING", f"config: {warning}")
    ]


async def test_each_mistake_of_a_file_is_told_apart(tmp_path: Path, golden: Golden) -> None:
    """In one sentence of the condition, each with file and line, once."""
    path = tmp_path / "config"
    path.write_text("flagz: {}\nversion: v3\n")
    node = remembering()
    async with configuring(node, Source(path=path)):
        golden(stands(node).text)
