"""The configuration in force: files, flags and our Node's label, joined into facts.

The last good configuration stays in force whatever happens to the file. With named configurations a first start waits
for the API server's word, rather than advertise one thing and then another; a later start takes the name last in force.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from gpuplane.core.config.named import Choice, choose
from gpuplane.core.config.resolve import resolve
from gpuplane.core.strict import Invalid
from gpuplane.host.files import contents, folder
from gpuplane.model.facts import Configured, Stood
from gpuplane.model.node import Node
from gpuplane.model.snapshot import Condition
from gpuplane.model.value import Value


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
    """Tell what is configured, now and whenever files or label change, for ever."""
    if source.path is None:
        _apply(node, source, None, "flags")
        await asyncio.Event().wait()
    elif source.path.is_dir():
        await _follow_named(node, source, source.path)
    else:
        async for content in contents(source.path):
            if isinstance(content, OSError):
                _fail(node, f"{source.path}: {content.strerror}")
            else:
                _apply(node, source, content, str(source.path))


async def _follow_named(node: Node, source: Source, directory: Path) -> None:
    configs: dict[str, bytes] | None = None

    def choose_and_apply() -> None:
        if configs is None:
            return
        asked, last = node.snapshot.config.asked, node.snapshot.ledger.config_name
        if source.name is None and source.asks and asked is None and last is None:
            reason = "the API server has not said yet which configuration the node's label picks"
            way_out = "start with --config-name NAME, or without --node-name, to go on without it"
            node.tell(Stood("config", Condition(standing="waiting", reason=f"{reason}: {way_out}")))
            return
        label = source.name if source.name is not None else asked.config if asked is not None else last or ""
        try:
            choice = choose(configs.keys(), label, source.default, source.fallbacks, last)
        except Invalid as error:
            _fail(node, str(error))
        else:
            file = str(directory / choice.name) if choice.name else "the empty configuration"
            _apply(node, source, configs.get(choice.name), file, choice)

    async def follow_files() -> None:
        nonlocal configs
        async for found in folder(directory):
            if isinstance(found, OSError):
                _fail(node, f"{directory}: {found.strerror}")
            else:
                configs = found
                choose_and_apply()

    async def follow_label() -> None:
        seen: object = ...
        async for snapshot in node.changes():
            asked = snapshot.config.asked
            if asked != seen:
                seen = asked
                choose_and_apply()

    async with asyncio.TaskGroup() as group:
        group.create_task(follow_files())
        group.create_task(follow_label())


def _apply(node: Node, source: Source, content: bytes | None, file: str, choice: Choice | None = None) -> None:
    try:
        settings = resolve(content, file, source.flags, source.environment)
    except Invalid as error:
        _fail(node, str(error))
        return
    node.tell(Configured(settings, choice.name if choice else None))
    if choice and choice.problem:
        node.tell(Stood("config", Condition(standing="failing", reason=f"{choice.problem}; in force is {file}")))
    else:
        node.tell(Stood("config", Condition(standing="ok", reason=file)))


def _fail(node: Node, reason: str) -> None:
    kept = "; the last good configuration stays in force" if node.snapshot.config.settings else ""
    node.tell(Stood("config", Condition(standing="failing", reason=reason + kept)))
