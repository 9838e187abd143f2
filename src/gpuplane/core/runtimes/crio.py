"""CRI-O: it takes CDI devices since 1.23 and cannot be told not to; only the directories can be set.

The main file is read first, then the files of crio.conf.d by name; the last that says a key has the word about it
(crio.conf.d(5)). `cdi_spec_dirs` of crio.runtime takes the place of the usual directories.
"""

from gpuplane.core.runtimes import tomltext
from gpuplane.core.runtimes.plan import DIRECTORIES, Edit, Plan, Source, Version, change, has, shown, text
from gpuplane.core.strict import InvalidInput

FIRST = (1, 23)
FOLDERS = ("crio", "runtime", "cdi_spec_dirs")


def plan(sources: tuple[Source, ...], version: Version | None, directory: str, new: str, drop_in: str = "") -> Plan:
    """What to change. `sources`: as they are read; `new`: the one that takes what no file says yet. Raises Invalid.

    `drop_in`: the one that is to take it in any case.
    """
    if version is not None and version < FIRST:
        raise InvalidInput([f"CRI-O {shown(version)} takes no CDI devices, whatever is configured: that needs 1.23"])
    notes = () if version is not None else ("which version of CRI-O this is, is not known; it takes CDI from 1.23 on",)
    said = _said(sources)
    found = said[-1] if said else None
    folders = tomltext.get(text(found), FOLDERS, found.path) if found else list(DIRECTORIES)
    if found and not (isinstance(folders, list) and all(isinstance(each, str) for each in folders)):
        raise InvalidInput([f"{_place(found)}: cdi_spec_dirs must be a list of directories"])
    if has(folders, directory):
        why = f"{_place(found)} has {directory}" if found else "CRI-O takes CDI devices as it is"
        return Plan(why, notes=notes)
    why = f"CRI-O looks for specifications in {', '.join(folders) or 'no directory'}, not in {directory}"
    target = found or next(each for each in sources if each.path == new)
    if drop_in:
        target = next(each for each in sources if each.path == drop_in)
        if found and sources.index(found) > sources.index(target):
            raise InvalidInput([f"{found.path} is read after {drop_in} and has the last word about cdi_spec_dirs"])
    return Plan(why, (change("crio", target, (Edit(FOLDERS, (*folders, directory)),)),), notes)


def _said(sources: tuple[Source, ...]) -> list[Source]:
    """The files that set the directories. Raises Invalid for all that cannot be read."""
    errors: list[str] = []
    said: list[Source] = []
    for source in sources:
        try:
            if tomltext.get(text(source), FOLDERS, source.path) is not None:
                said.append(source)
        except InvalidInput as invalid:
            errors += invalid.errors
    if errors:
        raise InvalidInput(errors)
    return said


def _place(source: Source) -> str:
    return f"{source.path}:{tomltext.line(text(source), FOLDERS)}"
