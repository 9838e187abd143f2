"""CRI-O: it supports CDI devices since 1.23, always enabled; only the directories can be configured.

CRI-O reads the main file first, then the files of crio.conf.d by name; the last file that has a key decides it
(crio.conf.d(5)). `cdi_spec_dirs` of crio.runtime replaces the default directories.
"""

from gpuplane.core.runtimes import tomltext
from gpuplane.core.runtimes.plan import (
    DEFAULT_SPEC_DIRECTORIES,
    ConfigFile,
    Plan,
    SettingEdit,
    Version,
    contains_directory,
    decode_text,
    format_version,
    make_change,
)
from gpuplane.core.strict import InvalidInput

FIRST_WITH_CDI = (1, 23)
SPEC_DIRS_KEY = ("crio", "runtime", "cdi_spec_dirs")


def plan_changes(
    config_files: tuple[ConfigFile, ...],
    version: Version | None,
    directory: str,
    default_target: str,
    drop_in: str = "",
) -> Plan:
    """What to change. `config_files`: in the order in which CRI-O reads them. Raises InvalidInput.

    `default_target`: the path of the file to write into if no file sets the directories. `drop_in`: the path of the
    file to write into in any case; "" for none.
    """
    if version is not None and version < FIRST_WITH_CDI:
        raise InvalidInput([f"CRI-O {format_version(version)} does not support CDI devices; 1.23 and later do"])
    notes = () if version is not None else ("the version of CRI-O is not known; 1.23 and later support CDI devices",)
    setting_files = _files_with_spec_dirs(config_files)
    found = setting_files[-1] if setting_files else None
    folders = (
        tomltext.get_value(decode_text(found), SPEC_DIRS_KEY, found.path) if found else list(DEFAULT_SPEC_DIRECTORIES)
    )
    if found and not (isinstance(folders, list) and all(isinstance(each, str) for each in folders)):
        raise InvalidInput([f"{_location(found)}: cdi_spec_dirs must be a list of directories"])
    if contains_directory(folders, directory):
        why = f"{_location(found)} has {directory}" if found else "CRI-O supports CDI devices by default"
        return Plan(why, notes=notes)
    why = f"CRI-O looks for specifications in {', '.join(folders) or 'no directory'}, not in {directory}"
    target = found or next(each for each in config_files if each.path == default_target)
    if drop_in:
        target = next(each for each in config_files if each.path == drop_in)
        if found and config_files.index(found) > config_files.index(target):
            raise InvalidInput([f"{found.path} is read after {drop_in} and overrides cdi_spec_dirs"])
    return Plan(why, (make_change("crio", target, (SettingEdit(SPEC_DIRS_KEY, (*folders, directory)),)),), notes)


def _files_with_spec_dirs(sources: tuple[ConfigFile, ...]) -> list[ConfigFile]:
    """The files that set the directories. Raises InvalidInput with the errors of all files."""
    errors: list[str] = []
    found: list[ConfigFile] = []
    for source in sources:
        try:
            if tomltext.get_value(decode_text(source), SPEC_DIRS_KEY, source.path) is not None:
                found.append(source)
        except InvalidInput as invalid:
            errors += invalid.errors
    if errors:
        raise InvalidInput(errors)
    return found


def _location(source: ConfigFile) -> str:
    return f"{source.path}:{tomltext.line_of(decode_text(source), SPEC_DIRS_KEY)}"
