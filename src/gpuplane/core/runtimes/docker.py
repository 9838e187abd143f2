"""Docker: `features.cdi` in daemon.json.

Docker takes CDI devices (`docker run --device`) from 25.0 on where features.cdi is true, and from 28.2 on unless it is
false (moby#49963). `cdi-spec-dirs` takes the place of the usual directories; one empty name turns CDI off.
"""

from gpuplane.core.runtimes import jsontext
from gpuplane.core.runtimes.plan import DIRECTORIES, Edit, Plan, Source, Version, change, has, shown, text
from gpuplane.core.strict import InvalidInput

FIRST, DEFAULT = (25, 0), (28, 2)
SWITCH, FOLDERS = ("features", "cdi"), ("cdi-spec-dirs",)


def plan(source: Source, version: Version | None, directory: str) -> Plan:
    """What to change in daemon.json. Raises Invalid."""
    if version is not None and version < FIRST:
        raise InvalidInput([f"Docker {shown(version)} takes no CDI devices, whatever is configured: that needs 25.0"])
    edits: list[Edit] = []
    why: list[str] = []
    switch = jsontext.get(text(source), SWITCH, source.path)
    if switch is not None and not isinstance(switch, bool):
        raise InvalidInput([f"{_place(source, SWITCH)}: features.cdi must be true or false"])
    if switch is False or (switch is None and (version is None or version < DEFAULT)):
        edits.append(Edit(SWITCH, True))
        name = f"Docker {shown(version)}" if version is not None else "Docker before 28.2"
        why.append(
            f"{_place(source, SWITCH)} turns CDI off"
            if switch is False
            else f"{name} takes no CDI devices until it is told to"
        )
    elif switch:
        why.append(f"{_place(source, SWITCH)} turns CDI on")
    else:
        why.append("Docker takes CDI devices from 28.2 on unless it is told not to")
    folders = _folders(source)
    if not has(folders, directory):
        edits.append(Edit(FOLDERS, (*filter(None, folders), directory)))
        why.append(f"Docker looks for specifications in {', '.join(folders) or 'no directory'}, not in {directory}")
    notes = () if version is not None else ("which version of Docker this is, is not known; --runtime-version says it",)
    if not edits:
        return Plan(why[0], notes=notes)
    return Plan("; ".join(why[-len(edits) :]), (change("docker", source, tuple(edits)),), notes)


def _folders(source: Source) -> list[str]:
    found = jsontext.get(text(source), FOLDERS, source.path)
    if found is None:
        return list(DIRECTORIES)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput([f"{_place(source, FOLDERS)}: cdi-spec-dirs must be a list of directories"])
    return found


def _place(source: Source, path: tuple[str, ...]) -> str:
    return f"{source.path}:{jsontext.line(text(source), path)}"
