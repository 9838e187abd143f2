"""Docker: `features.cdi` in daemon.json.

Docker supports CDI devices (`docker run --device`) since 25.0 if features.cdi is true, and since 28.2 unless it is
false (moby#49963). `cdi-spec-dirs` replaces the default directories; one empty name turns CDI off.
"""

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.runtimes import jsontext
from gpuplane.node.core.runtimes.plan import (
    DEFAULT_SPEC_DIRECTORIES,
    ConfigChangePlan,
    RuntimeConfigFileContent,
    SettingEdit,
    Version,
    apply_edits,
    contains_directory,
    decode_text,
    format_version,
)

FIRST_VERSION_WITH_CDI, FIRST_VERSION_WITH_CDI_BY_DEFAULT = (25, 0), (28, 2)
CDI_KEY, SPEC_DIRS_KEY = ("features", "cdi"), ("cdi-spec-dirs",)


def plan_changes(
    config_file: RuntimeConfigFileContent, version: Version | None, spec_directory: str
) -> ConfigChangePlan:
    """What to change in daemon.json. Raises InvalidInput."""
    if version is not None and version < FIRST_VERSION_WITH_CDI:
        raise InvalidInput([f"Docker {format_version(version)} does not support CDI devices; 25.0 and later do"])
    edits: list[SettingEdit] = []
    reasons: list[str] = []
    switch = jsontext.get_value(decode_text(config_file), CDI_KEY, config_file.path)
    if switch is not None and not isinstance(switch, bool):
        raise InvalidInput([f"{_location_of_key(config_file, CDI_KEY)}: features.cdi must be true or false"])
    if switch is False or (switch is None and (version is None or version < FIRST_VERSION_WITH_CDI_BY_DEFAULT)):
        edits.append(SettingEdit(CDI_KEY, True))
        name = f"Docker {format_version(version)}" if version is not None else "Docker before 28.2"
        reasons.append(
            f"{_location_of_key(config_file, CDI_KEY)} turns CDI off"
            if switch is False
            else f"{name} does not enable CDI devices by default"
        )
    elif switch:
        reasons.append(f"{_location_of_key(config_file, CDI_KEY)} turns CDI on")
    else:
        reasons.append("Docker 28.2 and later enable CDI devices by default")
    folders = _spec_directories(config_file)
    if not contains_directory(folders, spec_directory):
        edits.append(SettingEdit(SPEC_DIRS_KEY, (*filter(None, folders), spec_directory)))
        reasons.append(
            f"Docker looks for specifications in {', '.join(folders) or 'no directory'}, not in {spec_directory}"
        )
    notes = () if version is not None else ("cannot find the version of Docker; set --runtime-version to the version",)
    if not edits:
        return ConfigChangePlan(reasons[0], notes=notes)
    return ConfigChangePlan(
        "; ".join(reasons[-len(edits) :]), (apply_edits("docker", config_file, tuple(edits)),), notes
    )


def _spec_directories(source: RuntimeConfigFileContent) -> list[str]:
    found = jsontext.get_value(decode_text(source), SPEC_DIRS_KEY, source.path)
    if found is None:
        return list(DEFAULT_SPEC_DIRECTORIES)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput([f"{_location_of_key(source, SPEC_DIRS_KEY)}: cdi-spec-dirs must be a list of directories"])
    return found


def _location_of_key(source: RuntimeConfigFileContent, path: tuple[str, ...]) -> str:
    return f"{source.path}:{jsontext.line_of(decode_text(source), path)}"
