"""containerd's configuration files, parsed, and the CRI plugin's table in each.

The plugin's name depends on the version of the configuration: 1 (also if the file has none), 2, 3 and later. Before
containerd 2.0 one version applies to all files: the last one given. Since 2.0 each file has its own.
"""

import posixpath
from typing import Any

from gpuplane.base.strict import InvalidInput
from gpuplane.base.value import Value
from gpuplane.node.core.runtimes import templates, tomltext
from gpuplane.node.core.runtimes.plan import RuntimeConfigFileContent, Version, decode_text, format_version

CRI_PLUGIN_BY_VERSION = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
"""Version of the configuration → name of the CRI plugin; later versions have the name of 3."""
NEWEST_CONFIG_VERSION = 4
CONTAINERD_VERSION_2 = (2, 0)
"""The first version of containerd that merges files key by key, and that enables CDI by default."""


class ParsedConfig(Value):
    """A parsed file. `config_version`: of its configuration; `cri_plugin`: the CRI plugin's name in this version."""

    source: RuntimeConfigFileContent
    content: dict[str, Any]
    config_version: int
    cri_plugin: str

    @property
    def cri_table(self) -> dict[str, Any] | None:
        """The CRI plugin's table; None if this file has none."""
        plugins = self.content.get("plugins", {})
        found = plugins.get(self.cri_plugin) if isinstance(plugins, dict) else None
        return found if isinstance(found, dict) else None

    def location_of_cri_key(self, key: str) -> str:
        """The place of a key of the CRI plugin's table, as file:line. The key has to exist."""
        return location_of_key(self.source, *self.cri_key_path(key))

    def cri_key_path(self, key: str) -> tuple[str, ...]:
        """The path of a key of the CRI plugin's table."""
        return ("plugins", self.cri_plugin, key)


def location_of_key(source: RuntimeConfigFileContent, *path: str) -> str:
    """The place of an existing key, as file:line."""
    return f"{source.path}:{tomltext.line_of(decode_text(source), path, source.path)}"


def extends_base(source: RuntimeConfigFileContent) -> bool:
    """Whether a file is a template that includes the distribution's own, which has the CRI plugin's table."""
    return templates.extends_base(decode_text(source), source.path)


def import_patterns(source: RuntimeConfigFileContent, version: Version | None) -> tuple[str, ...]:
    """The patterns of the files that a file imports, absolute; none if it is not TOML. Raises InvalidInput.

    Before 2.0 a relative pattern with a star is resolved in the daemon's working directory, which is / under systemd.
    """
    try:
        found = tomltext.parse(decode_text(source), source.path).get("imports", [])
    except InvalidInput:
        return ()  # `parse_files` reports this error, together with those of the other files
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput([f"{location_of_key(source, 'imports')}: imports must be a list of paths"])
    beside = posixpath.dirname(source.path)
    old = version is None or version < CONTAINERD_VERSION_2
    return tuple(posixpath.normpath(posixpath.join("/" if old and "*" in each else beside, each)) for each in found)


def parse_files(sources: tuple[RuntimeConfigFileContent, ...], version: Version | None) -> list[ParsedConfig]:
    """The files with their contents. Raises InvalidInput with the errors of all files."""
    errors: list[str] = []
    contents: list[dict[str, Any]] = []
    for source in sources:
        try:
            contents.append(tomltext.parse(decode_text(source), source.path))
            _require_supported_config_version(source, contents[-1], version)
        except InvalidInput as invalid:
            errors += invalid.errors
    if errors:
        raise InvalidInput(errors)
    numbers = [int(each.get("version", 0)) for each in contents]
    if extends_base(sources[0]):
        numbers[0] = numbers[0] or templates.config_version_of_base(sources[0].path)
    if version is None or version < CONTAINERD_VERSION_2:
        last = next((number for number in reversed(numbers) if number), 1 if any(contents) else 2)
        numbers = [last for _ in numbers]
    else:
        numbers[0] = numbers[0] or (1 if any(contents) else 3)
        numbers = [
            number or _config_version_of_drop_in(each, numbers[0])
            for number, each in zip(numbers, contents, strict=True)
        ]
    files = zip(sources, contents, numbers, strict=True)
    return [ParsedConfig(source, each, number, CRI_PLUGIN_BY_VERSION[min(number, 3)]) for source, each, number in files]


def _config_version_of_drop_in(content: dict[str, Any], main_config_version: int) -> int:
    """The version of a drop-in that gives none: that of the plugin name that it uses, else that of the main file."""
    plugins = content.get("plugins", {})
    return next((number for number, name in CRI_PLUGIN_BY_VERSION.items() if name in plugins), main_config_version)


def _require_supported_config_version(
    source: RuntimeConfigFileContent, content: dict[str, Any], containerd_version: Version | None
) -> None:
    number = content.get("version", 0)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= NEWEST_CONFIG_VERSION:
        raise InvalidInput(
            [f"{location_of_key(source, 'version')}: version must be a number from 1 to {NEWEST_CONFIG_VERSION}"]
        )
    if containerd_version is not None and containerd_version < CONTAINERD_VERSION_2 and number >= 3:
        has = f"this configuration has version {number}, which only containerd 2 reads"
        refuses = f"containerd {format_version(containerd_version)} does not start with it"
        raise InvalidInput([f"{location_of_key(source, 'version')}: {has}: {refuses}"])
