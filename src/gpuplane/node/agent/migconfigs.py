"""The admin's file of named MIG configurations, followed for ever.

The last good version stays in force whatever happens to the file. Before the first good one no configuration is known
by name, so nothing is partitioned. Settings that name a file are applied after the file was read (`load_mig_configs`):
a request is never taken for a generated configuration of the same name.
"""

import asyncio
from pathlib import Path

from gpuplane.base import files
from gpuplane.base.document import MAX_BYTES
from gpuplane.base.strict import InvalidInput
from gpuplane.base.tasks import run_until
from gpuplane.base.text import join, join_first_names
from gpuplane.node.core.partitions.migparted import parse_configs
from gpuplane.node.host.filewatch import watch_file
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import MigConfigsLoaded, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import MIG_CONFIGS_FILE_PART, Status

MOST_PROBLEMS = 10
"""Mistakes of a file that are named."""


async def load_mig_configs(node: Node, settings: Settings) -> None:
    """Read the file that new settings name, before they are applied, where the settings in force name another one."""
    path = settings.partitions.config_file
    if path == _config_file(node.snapshot):
        return
    if not path:
        node.apply(MigConfigsLoaded(None))
        _report(node, None)
        return
    content: bytes | OSError
    try:
        content = files.read(Path(path), MAX_BYTES)
    except OSError as error:
        content = error
    await _load(node, path, content, known_before=False)


async def follow_mig_configs(node: Node) -> None:
    """Follow the file that the settings name, for ever."""
    while True:
        path = _config_file(node.snapshot)
        other = node.wait_until(lambda now, path=path: _config_file(now) != path, None)  # type: ignore[misc]
        await run_until(other, *([_follow_file(node, path)] if path else []))


async def _follow_file(node: Node, path: str) -> None:
    async for content in watch_file(Path(path)):
        if _config_file(node.snapshot) != path:
            return
        await _load(node, path, content, known_before=node.snapshot.config.mig_configs is not None)


async def _load(node: Node, path: str, content: bytes | OSError, *, known_before: bool) -> None:
    """Apply what the file has. `known_before`: whether a version of this file is in force, which then stays."""
    try:
        if isinstance(content, OSError):
            raise InvalidInput([f"{path}: {content.strerror}"])
        configs = await asyncio.to_thread(parse_configs, content, path)
    except InvalidInput as error:
        if not known_before:
            node.apply(MigConfigsLoaded({}))
        stays = ("the agent keeps using the last good version",) if node.snapshot.config.mig_configs else ()
        _report(node, Status("failing", join("; ", (*error.errors[:MOST_PROBLEMS], *stays))))
    else:
        node.apply(MigConfigsLoaded(configs))
        _report(node, Status("ok", f"{path}: {join_first_names(sorted(configs), 10)}"))


def _report(node: Node, status: Status | None) -> None:
    node.apply(StatusChanged(MIG_CONFIGS_FILE_PART, status))


def _config_file(snapshot: Snapshot) -> str:
    settings = snapshot.config.settings
    return settings.partitions.config_file if settings is not None else ""
