"""The configuration in force: files, flags and our Node's label, joined into facts.

The last good configuration stays in force whatever happens to the file, and a start that finds the one it is to take
broken takes the one that was in force last. Named configurations:
- A name given by hand is this process's. Else the node's label is asked for, where there is an API server to ask.
  Without a name the default is taken, and without a default the fallbacks are tried.
- The name last in force stands for a label that is not known yet, or is wrong: without an API server it stands for
  nothing. So a first start waits for the API server's word, rather than advertise one thing and then another.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpuplane.base.strict import InvalidInput
from gpuplane.base.value import Value
from gpuplane.node.agent.migconfigs import load_mig_configs
from gpuplane.node.core.advertising import describe_unsupported_settings
from gpuplane.node.core.config.resolve import resolve_with_sources
from gpuplane.node.core.config.selection import REQUESTED_BY_LABEL, select_config
from gpuplane.node.core.requests import read_node_requests
from gpuplane.node.host.filewatch import FolderContents, watch_file_or_folder
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.facts import ConfigLoaded, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import CONFIG_PART, UNSUPPORTED_SHARING_PART, Status


class Source(Value):
    """Where the configuration comes from. `path` is a file, or a directory of named ones; None: flags alone."""

    path: Path | None = None
    name: str | None = None  # of a named one, given by hand: nobody is asked
    default: str = ""
    fallbacks: tuple[str, ...] = ("named", "single", "empty")
    asks: bool = False  # an API server is asked which name our Node's label picks
    flags: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}


async def configure(node: Node, source: Source) -> None:
    """Apply the configuration, now and whenever files or the label change, for ever; report what does not fit."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_say_what_does_not_fit(node))
        if source.path is None:
            await _apply(node, source, None, "flags")
        else:
            group.create_task(_follow(node, source, source.path))


async def _say_what_does_not_fit(node: Node) -> None:
    """One file serves many nodes: a valid configuration may ask for something that this machine cannot have."""
    said: StatusChanged[Status] | None = None
    async for snapshot in node.changes(describe_unsupported_settings):
        reason = describe_unsupported_settings(snapshot)
        now = StatusChanged(UNSUPPORTED_SHARING_PART, Status("failing", reason) if reason else None)
        if now != said:
            said = now
            node.apply(now)


async def _follow(node: Node, source: Source, path: Path) -> None:
    """Follow the path. It may change between a file and a directory at any time, as when a volume is mounted late.

    Files are read in a thread, one after the other: a large one takes a second, and kubelet does not wait for it.
    """
    found: bytes | FolderContents | OSError | None = None
    turn = asyncio.Lock()

    async def follow_files() -> None:
        nonlocal found
        async for found in watch_file_or_folder(path):
            async with turn:
                if isinstance(found, OSError):
                    _fail(node, f"{path}: {found.strerror}")
                elif isinstance(found, bytes):
                    await _apply(node, source, found, str(path))
                else:
                    await _choose_and_apply(node, source, path, found)

    async def follow_label() -> None:
        seen = read_node_requests(node.snapshot)
        async for snapshot in node.changes(read_node_requests):
            asked = read_node_requests(snapshot)
            if asked != seen:
                seen = asked
                async with turn:
                    if isinstance(found, dict):
                        await _choose_and_apply(node, source, path, found)

    async with asyncio.TaskGroup() as group:
        group.create_task(follow_files())
        group.create_task(follow_label())


async def _choose_and_apply(node: Node, source: Source, directory: Path, configs: FolderContents) -> None:
    asked, last = read_node_requests(node.snapshot), node.snapshot.ledger.config_name
    if source.name is None and source.asks and asked is None and last is None:
        reason = "the API server has not reported the Node's configuration label yet"
        way_out = "to start without the label, set --config-name NAME or remove --node-name"
        node.apply(StatusChanged(CONFIG_PART, Status("waiting", f"{reason}: {way_out}")))
        return
    label, who = _label(source, asked, last)
    try:
        choice = select_config(
            configs.keys(), label, source.default, source.fallbacks, last if source.asks else None, who
        )
    except InvalidInput as error:
        _fail(node, "; ".join(error.errors))
        return
    try:
        await _take(node, source, directory, configs, choice.name)
    except InvalidInput as error:
        if node.snapshot.config.settings is None and last is not None and last in ("", *configs):
            with suppress(InvalidInput):
                await _take(node, source, directory, configs, last)
        _fail(node, "; ".join(filter(None, (choice.problem, *error.errors))))
    else:
        file = _called(directory, choice.name)
        if choice.problem:
            node.apply(StatusChanged(CONFIG_PART, Status("failing", f"{choice.problem}; the agent keeps using {file}")))
        else:
            node.apply(StatusChanged(CONFIG_PART, Status("ok", file)))


def _label(source: Source, asked: NodeObjectRequests | None, last: str | None) -> tuple[str, str]:
    """The requested name, "" for none, and who requests it."""
    if source.name is not None:
        return source.name, "given by --config-name"
    if not source.asks:
        return "", ""
    return (
        (asked.config_name, REQUESTED_BY_LABEL)
        if asked is not None
        else (last or "", "the last configuration that was used")
    )


async def _take(node: Node, source: Source, directory: Path, configs: FolderContents, name: str) -> None:
    """Put one of several configurations in force, "" for the empty one. Raises InvalidInput."""
    content, file = configs.get(name), _called(directory, name)
    if isinstance(content, OSError):
        raise InvalidInput([f"{file}: {content.strerror}"])
    resolved = await asyncio.to_thread(resolve_with_sources, content, file, source.flags, source.environment)
    await load_mig_configs(node, resolved.settings)
    node.apply(ConfigLoaded(resolved.settings, name, resolved.warnings))


def _called(directory: Path, name: str) -> str:
    return str(directory / name) if name else "the empty configuration"


async def _apply(node: Node, source: Source, content: bytes | None, file: str) -> None:
    """Put the only configuration in force."""
    try:
        resolved = await asyncio.to_thread(resolve_with_sources, content, file, source.flags, source.environment)
    except InvalidInput as error:
        _fail(node, "; ".join(error.errors))
    else:
        await load_mig_configs(node, resolved.settings)
        node.apply(ConfigLoaded(resolved.settings, warnings=resolved.warnings))
        node.apply(StatusChanged(CONFIG_PART, Status("ok", file)))


def _fail(node: Node, reason: str) -> None:
    config = node.snapshot.config
    which = f"the last good configuration, {config.name!r}" if config.name else "the last good configuration"
    kept = f"; the agent keeps using {which}" if config.settings else ""
    node.apply(StatusChanged(CONFIG_PART, Status("failing", reason + kept)))
