"""CRI-O: it supports CDI devices since 1.23, always enabled; only the directories can be configured.

CRI-O reads the main file first, then the files of crio.conf.d by name; the last file that has a key decides it
(crio.conf.d(5)). `cdi_spec_dirs` of crio.runtime replaces the default directories.
"""

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.runtimes import tomltext
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

FIRST_VERSION_WITH_CDI = (1, 23)
SPEC_DIRS_KEY = ("crio", "runtime", "cdi_spec_dirs")


def plan_changes(
    config_files: tuple[RuntimeConfigFileContent, ...],
    version: Version | None,
    spec_directory: str,
    default_path: str,
    drop_in_path: str = "",
) -> ConfigChangePlan:
    """What to change. `config_files`: in the order in which CRI-O reads them. Raises InvalidInput.

    `default_path`: the path of the file to write into if no file sets the directories. `drop_in_path`: the path of the
    file to write into in any case; "" for none.
    """
    if version is not None and version < FIRST_VERSION_WITH_CDI:
        raise InvalidInput([f"CRI-O {format_version(version)} does not support CDI devices; 1.23 and later do"])
    notes = (
        ()
        if version is not None
        else ("cannot find the version of CRI-O; check that it is 1.23 or later (these versions support CDI devices)",)
    )
    setting_files = _files_with_spec_dirs(config_files)
    found = setting_files[-1] if setting_files else None
    folders = (
        tomltext.get_value(decode_text(found), SPEC_DIRS_KEY, found.path) if found else list(DEFAULT_SPEC_DIRECTORIES)
    )
    if found and not (isinstance(folders, list) and all(isinstance(each, str) for each in folders)):
        raise InvalidInput([f"{_location_of_spec_dirs(found)}: cdi_spec_dirs must be a list of directories"])
    if contains_directory(folders, spec_directory):
        why = (
            f"{_location_of_spec_dirs(found)} has {spec_directory}"
            if found
            else "CRI-O supports CDI devices by default"
        )
        return ConfigChangePlan(why, notes=notes)
    why = f"CRI-O looks for specifications in {', '.join(folders) or 'no directory'}, not in {spec_directory}"
    target = found or next(each for each in config_files if each.path == default_path)
    if drop_in_path:
        target = next(each for each in config_files if each.path == drop_in_path)
        if found and config_files.index(found) > config_files.index(target):
            raise InvalidInput([f"{found.path} is read after {drop_in_path} and overrides cdi_spec_dirs"])
    return ConfigChangePlan(
        why, (apply_edits("crio", target, (SettingEdit(SPEC_DIRS_KEY, (*folders, spec_directory)),)),), notes
    )


def _files_with_spec_dirs(sources: tuple[RuntimeConfigFileContent, ...]) -> list[RuntimeConfigFileContent]:
    """The files that set the directories. Raises InvalidInput with the errors of all files."""
    errors: list[str] = []
    found: list[RuntimeConfigFileContent] = []
    for source in sources:
        try:
            if tomltext.get_value(decode_text(source), SPEC_DIRS_KEY, source.path) is not None:
                found.append(source)
        except InvalidInput as invalid:
            errors += invalid.errors
    if errors:
        raise InvalidInput(errors)
    return found


def _location_of_spec_dirs(source: RuntimeConfigFileContent) -> str:
    return f"{source.path}:{tomltext.line_of(decode_text(source), SPEC_DIRS_KEY, source.path)}"
