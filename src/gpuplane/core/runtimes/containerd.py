"""containerd: which key of which file makes it take CDI devices.

What it does with its files (its docs/cri/config.md and the loader of each version):

- `enable_cdi` of the CRI plugin is there from 1.7 on, and true by default from 2.0 on (containerd#9621).
- Files are read in the order main file, its imports, their imports. Before 2.0 a later file's table of a plugin takes
  the place of all that was said before, not key by key (containerd#5837, changed by containerd#9982): so a key goes
  into the file whose table is in force, and a drop-in of one key would undo the rest of the configuration.
- Where the version of containerd is not known, what is written is right for all of them.
"""

import posixpath
from typing import Any

from gpuplane.core.runtimes.containerdfiles import NAMES, SECOND, File, place, read
from gpuplane.core.runtimes.distributions import Distribution, has_base
from gpuplane.core.runtimes.plan import (
    DIRECTORIES,
    Change,
    Edit,
    Plan,
    Source,
    Version,
    change,
    has,
    shown,
    text,
)
from gpuplane.core.strict import InvalidInput

FIRST, IN_FIELD = (1, 7), (1, 7, 2)
"""The versions that know CDI at all, and that take it over CRI's own field (kubernetes/test-infra#34018)."""
CRI = {*NAMES.values(), "io.containerd.cri.v1.images"}
"""Names under which CRI may be disabled."""

Wanted = tuple[File, str, Any]
"""A key that needs another value, and the file that has the say about it."""


def plan(
    sources: tuple[Source, ...],
    version: Version | None,
    directory: str,
    drop_in: str = "",
    generated_by: Distribution | None = None,
) -> Plan:
    """What to change. `sources`: the main file first, then as they are read. Raises Invalid.

    `generated_by`: who writes the main file anew at each start, from no template that is there.
    """
    if version is not None and version < FIRST:
        lacking = (
            f"containerd {shown(version)} takes no CDI devices, whatever is configured: it needs 1.7 for that, better"
        )
        raise InvalidInput([f"{lacking} 2.0; until then choose the strategy envvar, with NVIDIA's runtime"])
    files = read(sources, version)
    merged = version >= SECOND if version is not None else files[0].version >= 3
    wanted, why = _merged(files, directory) if merged else _replaced(files, version, directory)
    target = _target(wanted, files, merged, drop_in)
    if generated_by is not None and any((target or force) is files[0] for force, _, _ in wanted):
        raise _lost(generated_by, files[0], wanted)
    return Plan(why, _changes(wanted, target, files), (*_disabled(files), *_doubts(version, merged)))


def _merged(files: list[File], directory: str) -> tuple[list[Wanted], str]:
    """From 2.0 on: the last file that says a key has the last word about it."""
    wanted: list[Wanted] = []
    switch, folders = _last(files, "enable_cdi"), _last(files, "cdi_spec_dirs")
    why = "containerd takes CDI devices from 2.0 on unless it is told not to"
    if switch is not None:
        on = _switch(switch)
        wanted += [] if on else [(switch, "enable_cdi", True)]
        why = f"{switch.where('enable_cdi')} turns CDI {'on' if on else 'off'}"
    return _with_folders(wanted, why, folders or files[0], directory)


def _replaced(files: list[File], version: Version | None, directory: str) -> tuple[list[Wanted], str]:
    """Before 2.0: the last file that has the plugin's table has the whole say."""
    force = next((each for each in reversed(files) if each.table is not None), files[0])
    if force.table is not None and "enable_cdi" in force.table:
        on = _switch(force)
        why = f"{force.where('enable_cdi')} turns CDI {'on' if on else 'off'}"
    else:
        on = False
        name = f"containerd {shown(version)}" if version is not None else "containerd before 2.0"
        why = f"{name} takes no CDI devices until it is told to"
    return _with_folders([] if on else [(force, "enable_cdi", True)], why, force, directory)


def _with_folders(wanted: list[Wanted], why: str, force: File, directory: str) -> tuple[list[Wanted], str]:
    """The same, and cdi_spec_dirs where our directory is not among them."""
    found = (force.table or {}).get("cdi_spec_dirs", list(DIRECTORIES))
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput([f"{force.where('cdi_spec_dirs')}: cdi_spec_dirs must be a list of directories"])
    if has(found, directory):
        return wanted, why
    told = f"containerd looks for specifications in {', '.join(found) or 'no directory'}, not in {directory}"
    return [*wanted, (force, "cdi_spec_dirs", (*found, directory))], f"{why}; {told}" if wanted else told


def _last(files: list[File], key: str) -> File | None:
    return next((each for each in reversed(files) if each.table is not None and key in each.table), None)


def _switch(file: File) -> bool:
    value = (file.table or {})["enable_cdi"]
    if not isinstance(value, bool):
        raise InvalidInput([f"{file.where('enable_cdi')}: enable_cdi must be true or false"])
    return value


def _target(wanted: list[Wanted], files: list[File], merged: bool, drop_in: str) -> File | None:
    """The drop-in that is to take the keys; None: each goes into the file that has the say about it."""
    if not drop_in or not wanted:
        return None
    target = next((each for each in files if each.source.path == drop_in), None)
    if target is None:
        main = files[0].source.path
        raise InvalidInput([f"{main} does not import {drop_in}: add it to its imports, or leave --drop-in-config out"])
    for force, key, _ in wanted:
        if force is target or force.table is None:
            continue
        if not merged:
            whole = f"before containerd 2.0 a drop-in takes the place of the whole table, which {force.source.path} has"
            raise InvalidInput([f"{drop_in}: {whole}: leave --drop-in-config out, and {key} goes there"])
        if files.index(force) > files.index(target):
            raise InvalidInput([f"{force.source.path} is read after {drop_in} and has the last word about {key}"])
    return target


def _changes(wanted: list[Wanted], target: File | None, files: list[File]) -> tuple[Change, ...]:
    edits: dict[str, list[Edit]] = {}
    for force, key, value in wanted:
        file = target or force
        if file.table is None and has_base(text(file.source)):
            base = (
                'takes over the template "base", which has the table of the CRI plugin; a table may be there only once'
            )
            raise InvalidInput([f"{file.source.path}: {base}: write the whole configuration into it instead"])
        edits.setdefault(file.source.path, []).append(Edit(file.path(key), value))
    number = files[0].version
    header = f"version = {number}\n" if number > 1 else ""
    return tuple(
        change("containerd", each.source, tuple(edits[each.source.path]), header)
        for each in files
        if each.source.path in edits
    )


def _lost(by: Distribution, main: File, wanted: list[Wanted]) -> InvalidInput:
    """The error where a change would be lost at the next start."""
    path = main.source.path
    keys = ", ".join(f'plugins."{main.name}".{key}' for _, key, _ in wanted)
    names = [name for name in by.templates if ("-v3." in name) == (main.version >= 3)] or by.templates
    template = posixpath.join(posixpath.dirname(path), names[0]) if names else ""
    what = f"make a template of it (cp {path} {template}) and run this again" if template else by.instead
    return InvalidInput([f"{path} is written anew by {by.name} at each start, so {keys} would be lost: {what}"])


def _disabled(files: list[File]) -> tuple[str, ...]:
    """What is to be said where kubelet cannot use this containerd at all."""
    for each in files:
        listed = each.says.get("disabled_plugins", [])
        found = [name for name in listed if name in CRI] if isinstance(listed, list) else []
        if found:
            where = place(each.source, "disabled_plugins")
            return (f"{where} disables CRI ({found[0]}): kubelet cannot use this containerd until that is taken away",)
    return ()


def _doubts(version: Version | None, merged: bool) -> tuple[str, ...]:
    if version is None:
        judged = "by its configuration it is 2.0 or later" if merged else "judged as 1.7, which is right for 2.0, too"
        return (f"which version of containerd this is, is not known: {judged}; --runtime-version says it",)
    if FIRST < version < IN_FIELD:
        field = f"{shown(IN_FIELD)} takes them over CRI, too"
        return (f"containerd {shown(version)} takes CDI devices by annotation only (cdi-annotations); {field}",)
    if not merged:
        return ("the agent's strategy auto counts on CDI from containerd 2.0 on: here say cdi-cri",)
    return ()
