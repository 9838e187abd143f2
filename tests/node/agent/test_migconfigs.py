"""The file of named MIG configurations: read before settings that name it count, and followed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gpuplane.node.agent.configure import Source, configure
from gpuplane.node.agent.migconfigs import follow_mig_configs
from gpuplane.node.agent.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import MIG_CONFIGS_FILE_PART

ENTRY = "- {devices: all, mig-enabled: false}"


class Recorder(Node):
    """A node that keeps every snapshot."""

    def __init__(self) -> None:
        super().__init__(Snapshot())
        self.seen: list[Snapshot] = []

    def apply(self, fact: object) -> None:
        super().apply(fact)  # type: ignore[arg-type]
        self.seen.append(self.snapshot)


@asynccontextmanager
async def following(node: Node, config: Path) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(configure(node, Source(path=config))),
            group.create_task(follow_mig_configs(node)),
        ]
        yield
        for task in tasks:
            task.cancel()


def write(path: Path, *names: str) -> Path:
    configs = "".join(f"  {name}:\n  {ENTRY}\n" for name in names)
    path.write_text(f"version: v1\nmig-configs:\n{configs}")
    return path


def names(snapshot: Snapshot) -> list[str] | None:
    known = snapshot.config.mig_configs
    return None if known is None else sorted(known)


async def until(node: Node, ready: Callable[[Snapshot], bool]) -> None:
    assert await node.wait_until(ready, 30), (names(node.snapshot), node.snapshot.statuses)


def said(snapshot: Snapshot) -> str:
    status = snapshot.statuses.of(MIG_CONFIGS_FILE_PART)
    return f"{status.state}: {status.text}" if status is not None else ""


async def test_a_request_is_never_looked_up_before_its_file_was_read(tmp_path: Path) -> None:
    """Whenever the settings name a file, the configurations are those of that file, or of what comes in the moment
    after it; never those of the file before."""
    node = Recorder()
    first, second = write(tmp_path / "a.yaml", "a"), write(tmp_path / "b.yaml", "b")
    config = tmp_path / "config.yaml"
    config.write_text(f"mig: {{configFile: {first}, label: true}}")
    async with following(node, config):
        await until(node, lambda now: names(now) == ["a"])
        assert node.snapshot.config.settings is not None
        assert node.snapshot.config.settings.partitions.follow_label
        config.write_text(f"mig: {{configFile: {second}}}")
        await until(node, lambda now: names(now) == ["b"])
        write(second, "b", "c")
        await until(node, lambda now: names(now) == ["b", "c"])
        write(first, "d")
        config.write_text("version: v1")
        await until(node, lambda now: names(now) is None)
        assert said(node.snapshot) == ""
    for each in node.seen:
        if (settings := each.config.settings) is not None and (path := settings.partitions.config_file):
            assert names(each) in ([["a"], ["b"]] if path == str(first) else [["b"], ["b", "c"], None])


async def test_a_bad_version_leaves_the_last_good_one_in_force(tmp_path: Path) -> None:
    """It is said why, with its line; a file that is gone leaves it too."""
    node, file, config = Recorder(), write(tmp_path / "a.yaml", "a"), tmp_path / "config.yaml"
    config.write_text(f"mig: {{configFile: {file}}}")
    async with following(node, config):
        await until(node, lambda now: said(now).startswith("ok") and names(now) == ["a"])
        file.write_text("version: v1\nmig-configs:\n  x:\n  - {devices: some, mig-enabled: true}\n")
        await until(node, lambda now: "a.yaml:4" in said(now))
        assert "keeps using the last good version" in said(node.snapshot)
        file.unlink()
        await until(node, lambda now: "No such file" in said(now))
        assert names(node.snapshot) == ["a"]
        write(file, "e")
        await until(node, lambda now: said(now).startswith("ok") and names(now) == ["e"])


async def test_a_start_with_a_bad_file_knows_no_configuration(tmp_path: Path) -> None:
    """Not even those that are generated where there is no file: they may be others of the same name."""
    node, config, file = Recorder(), tmp_path / "config.yaml", tmp_path / "a.yaml"
    config.write_text(f"mig: {{configFile: {file}}}")
    async with following(node, config):
        await until(node, lambda now: "No such file" in said(now))
        assert all(names(each) == [] for each in node.seen if each.config.settings is not None)
        file.write_text("mig-configs: 3")
        await until(node, lambda now: "a.yaml:1" in said(now))
        assert names(node.snapshot) == []
        write(file, "a")
        await until(node, lambda now: names(now) == ["a"])
