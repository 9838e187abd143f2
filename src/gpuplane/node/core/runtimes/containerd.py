"""containerd: which key of which file enables CDI devices.

How containerd reads its files (its docs/cri/config.md and the loader of each version):

- The CRI plugin has `enable_cdi` since 1.7. It is true by default since 2.0 (containerd#9621).
- The files are read in this order: the main file, its imports, their imports. Before 2.0 a plugin's table in a later
  file replaces the whole table of the earlier files; the keys are not merged (containerd#5837, changed by
  containerd#9982). So we write a key into the file whose table is in force. A drop-in with one key would remove the
  rest of that table.
- If the version of containerd is not known, we write what is right for every version.
"""

import posixpath
from typing import Any

from gpuplane.base.strict import InvalidInput
from gpuplane.node.core.runtimes import tomltext
from gpuplane.node.core.runtimes.containerdconfig import (
    CONTAINERD_VERSION_2,
    CRI_PLUGIN_BY_VERSION,
    ParsedConfig,
    extends_base,
    location_of_key,
    parse_files,
)
from gpuplane.node.core.runtimes.distributions import Distribution
from gpuplane.node.core.runtimes.plan import (
    DEFAULT_SPEC_DIRECTORIES,
    ConfigChangePlan,
    FileChange,
    RuntimeConfigFileContent,
    SettingEdit,
    Version,
    apply_edits,
    contains_directory,
    decode_text,
    format_version,
)

FIRST_VERSION_WITH_CDI, FIRST_VERSION_WITH_CRI_CDI_FIELD = (1, 7), (1, 7, 2)
"""The first version that supports CDI, and the first that reads CRI's field for it (kubernetes/test-infra#34018)."""
CRI_PLUGIN_NAMES = {*CRI_PLUGIN_BY_VERSION.values(), "io.containerd.cri.v1.images"}
"""The names by which `disabled_plugins` can disable CRI."""

NeededSetting = tuple[ParsedConfig, str, Any]
"""The file that decides a key, the key, and the value that it needs."""


def plan_changes(
    config_files: tuple[RuntimeConfigFileContent, ...],
    version: Version | None,
    spec_directory: str,
    drop_in_path: str = "",
    missing_import: str = "",
    generated_by: Distribution | None = None,
) -> ConfigChangePlan:
    """What to change. Raises InvalidInput.

    `config_files`: in the order in which containerd reads them, the main file first.

    `drop_in_path`: the one of them to write into; "" for the file that decides each key. `missing_import`: what the
    main file has to import so that containerd reads it; "" if that is so.

    `generated_by`: the distribution that overwrites the main file at each start; None if none does, or if the first of
    `config_files` is its template.
    """
    if version is not None and version < FIRST_VERSION_WITH_CDI:
        text = f"containerd {format_version(version)} does not support CDI devices; 1.7 and later do"
        raise InvalidInput(
            [f"{text}: upgrade containerd (best to 2.0), or use the strategy envvar with NVIDIA's runtime"]
        )
    files = parse_files(config_files, version)
    is_merged = version >= CONTAINERD_VERSION_2 if version is not None else files[0].config_version >= 3
    needed, why = (
        _needed_settings_if_files_merge(files, spec_directory)
        if is_merged
        else _needed_settings_if_files_replace(files, version, spec_directory)
    )
    target = _find_requested_drop_in(needed, files, is_merged, drop_in_path)
    edits = _edits(needed, target, files, missing_import)
    if generated_by is not None and files[0].source.path in edits:
        raise _change_would_be_lost_error(generated_by, files[0], needed)
    return ConfigChangePlan(
        why, _file_changes(edits, files), (*_disabled_cri_notes(files), *_version_notes(version, is_merged))
    )


def _needed_settings_if_files_merge(files: list[ParsedConfig], spec_directory: str) -> tuple[list[NeededSetting], str]:
    """The settings that containerd 2.0 and later need: for each key the last file that has it decides."""
    needed: list[NeededSetting] = []
    switch, folders = _last_file_with(files, "enable_cdi"), _last_file_with(files, "cdi_spec_dirs")
    why = "containerd 2.0 and later enable CDI devices by default"
    if switch is not None:
        on = _is_cdi_enabled(switch)
        needed += [] if on else [(switch, "enable_cdi", True)]
        why = f"{switch.location_of_cri_key('enable_cdi')} turns CDI {'on' if on else 'off'}"
    return _add_spec_directory_setting(needed, why, folders or files[0], spec_directory)


def _needed_settings_if_files_replace(
    files: list[ParsedConfig], version: Version | None, spec_directory: str
) -> tuple[list[NeededSetting], str]:
    """The settings that containerd before 2.0 needs: the last file that has the plugin's table decides every key."""
    deciding_file = next((each for each in reversed(files) if each.cri_table is not None), files[0])
    if deciding_file.cri_table is not None and "enable_cdi" in deciding_file.cri_table:
        on = _is_cdi_enabled(deciding_file)
        why = f"{deciding_file.location_of_cri_key('enable_cdi')} turns CDI {'on' if on else 'off'}"
    else:
        on = False
        name = f"containerd {format_version(version)}" if version is not None else "containerd before 2.0"
        why = f"{name} does not enable CDI devices by default"
    return _add_spec_directory_setting(
        [] if on else [(deciding_file, "enable_cdi", True)], why, deciding_file, spec_directory
    )


def _add_spec_directory_setting(
    needed: list[NeededSetting], reason: str, deciding_file: ParsedConfig, spec_directory: str
) -> tuple[list[NeededSetting], str]:
    """Adds cdi_spec_dirs to the needed settings if our directory is missing there."""
    found = (deciding_file.cri_table or {}).get("cdi_spec_dirs", list(DEFAULT_SPEC_DIRECTORIES))
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput(
            [f"{deciding_file.location_of_cri_key('cdi_spec_dirs')}: cdi_spec_dirs must be a list of directories"]
        )
    if contains_directory(found, spec_directory):
        return needed, reason
    text = f"containerd looks for specifications in {', '.join(found) or 'no directory'}, not in {spec_directory}"
    return [
        *needed,
        (deciding_file, "cdi_spec_dirs", (*found, spec_directory)),
    ], f"{reason}; {text}" if needed else text


def _last_file_with(files: list[ParsedConfig], key: str) -> ParsedConfig | None:
    return next((each for each in reversed(files) if each.cri_table is not None and key in each.cri_table), None)


def _is_cdi_enabled(file: ParsedConfig) -> bool:
    value = (file.cri_table or {})["enable_cdi"]
    if not isinstance(value, bool):
        raise InvalidInput([f"{file.location_of_cri_key('enable_cdi')}: enable_cdi must be true or false"])
    return value


def _find_requested_drop_in(
    needed: list[NeededSetting], files: list[ParsedConfig], is_merged: bool, drop_in_path: str
) -> ParsedConfig | None:
    """The drop-in to write the keys into; None if each key goes into the file that decides it."""
    if not drop_in_path or not needed:
        return None
    target = next(each for each in files if each.source.path == drop_in_path)
    for deciding_file, key, _ in needed:
        if deciding_file is target or deciding_file.cri_table is None:
            continue
        if not is_merged:
            path = deciding_file.source.path
            text = f"with containerd before 2.0, a drop-in file replaces the whole CRI plugin table of {path}"
            raise InvalidInput(
                [f"{drop_in_path}: {text}: run without --drop-in-config; then {key} is written into {path}"]
            )
        if files.index(deciding_file) > files.index(target):
            raise InvalidInput([f"{deciding_file.source.path} is read after {drop_in_path} and overrides {key}"])
    return target


def _edits(
    needed: list[NeededSetting], target: ParsedConfig | None, files: list[ParsedConfig], missing_import: str
) -> dict[str, tuple[SettingEdit, ...]]:
    """The edits of each file (path → edits). Raises InvalidInput if a template has no place for them."""
    edits: dict[str, tuple[SettingEdit, ...]] = {}
    for deciding_file, key, value in needed:
        file = target or deciding_file
        path = file.cri_key_path(key)
        if extends_base(file.source) and not tomltext.has_place_for(decode_text(file.source), path, file.source.path):
            raise _base_has_it_error(file, "the CRI plugin's table; TOML allows a table only once")
        edits[file.source.path] = (*edits.get(file.source.path, ()), SettingEdit(path, value))
    if needed and missing_import:
        main = files[0]
        if extends_base(main.source):
            raise _base_has_it_error(main, f"keys before its tables; {missing_import} cannot be added to its imports")
        present = main.content.get("imports", ())  # a list of texts: the files were found by it
        edit = SettingEdit(("imports",), (*present, missing_import))
        edits[main.source.path] = (edit, *edits.get(main.source.path, ()))
    return edits


def _base_has_it_error(file: ParsedConfig, what: str) -> InvalidInput:
    text = f'{file.source.path}: extends the template "base", which already has {what}'
    return InvalidInput([f"{text}: write the whole configuration into this file instead"])


def _file_changes(edits: dict[str, tuple[SettingEdit, ...]], files: list[ParsedConfig]) -> tuple[FileChange, ...]:
    number = files[0].config_version
    header = f"version = {number}\n" if number > 1 else ""
    return tuple(
        apply_edits("containerd", each.source, edits[each.source.path], header)
        for each in files
        if each.source.path in edits
    )


def _change_would_be_lost_error(
    distribution: Distribution, main: ParsedConfig, needed: list[NeededSetting]
) -> InvalidInput:
    """The error for a change that the distribution would overwrite at its next start."""
    path = main.source.path
    keys = ", ".join(f'plugins."{main.cri_plugin}".{key}' for _, key, _ in needed)
    names = [
        name for name in distribution.templates if ("-v3." in name) == (main.config_version >= 3)
    ] or distribution.templates
    template = posixpath.join(posixpath.dirname(path), names[0]) if names else ""
    make_template = f"create a template (cp {path} {template}) and run this command again"
    advice = make_template if template else distribution.advice_without_template
    return InvalidInput([f"{distribution.name} overwrites {path} at each start, so {keys} would be lost: {advice}"])


def _disabled_cri_notes(files: list[ParsedConfig]) -> tuple[str, ...]:
    """A note if CRI is disabled: then kubelet cannot use this containerd at all."""
    for each in files:
        listed = each.content.get("disabled_plugins", [])
        found = [name for name in listed if name in CRI_PLUGIN_NAMES] if isinstance(listed, list) else []
        if found:
            where = location_of_key(each.source, "disabled_plugins")
            return (
                (
                    f"{where} disables CRI ({found[0]}): kubelet cannot use this containerd; remove {found[0]} "
                    "from disabled_plugins"
                ),
            )
    return ()


def _version_notes(version: Version | None, is_merged: bool) -> tuple[str, ...]:
    if version is None:
        text = (
            "the command assumes 2.0 or later, because the configuration file has that format"
            if is_merged
            else "the command assumes 1.7, and the result also works with 2.0"
        )
        return (f"cannot find the version of containerd: {text}; set --runtime-version to the version",)
    if FIRST_VERSION_WITH_CDI < version < FIRST_VERSION_WITH_CRI_CDI_FIELD:
        first = format_version(FIRST_VERSION_WITH_CRI_CDI_FIELD)
        return (
            f"containerd {format_version(version)} reads CDI devices only from annotations (strategy cdi-annotations); "
            f"{first} and later also read them from CRI (strategy cdi-cri)",
        )
    if not is_merged:
        return (
            (
                "with this containerd the strategy auto does not use CDI (auto uses CDI only with containerd 2.0 or "
                "later): set the agent's device list strategy to cdi-cri on this node"
            ),
        )
    return ()
