"""containerd's files, and what they say about the CRI plugin.

The plugin's name goes by the version of the configuration: 1 (also where none is said), 2, 3 and up. Before containerd
2.0 one version holds for all files, the last that is said; from 2.0 on each file has its own.
"""

import posixpath
from typing import Any

from gpuplane.core.runtimes import tomltext
from gpuplane.core.runtimes.distributions import base_version, has_base
from gpuplane.core.runtimes.plan import Source, Version, shown, text
from gpuplane.core.strict import InvalidInput
from gpuplane.model.value import Value

NAMES = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
"""The CRI plugin's name by the version of the file; above 3 as in 3."""
NEWEST = 4
SECOND = (2, 0)
"""The version of containerd from which on files are merged key by key, and CDI is on."""


class File(Value):
    """A file that was read. `version`: of its configuration; `name`: the CRI plugin's name in it."""

    source: Source
    says: dict[str, Any]
    version: int
    name: str

    @property
    def table(self) -> dict[str, Any] | None:
        """The CRI plugin's table."""
        plugins = self.says.get("plugins", {})
        found = plugins.get(self.name) if isinstance(plugins, dict) else None
        return found if isinstance(found, dict) else None

    def where(self, key: str) -> str:
        """A key of the table, as file:line."""
        return place(self.source, *self.path(key))

    def path(self, key: str) -> tuple[str, ...]:
        """The path of a key of the table."""
        return ("plugins", self.name, key)


def place(source: Source, *path: str) -> str:
    """A key that is there, as file:line."""
    return f"{source.path}:{tomltext.line(text(source), path)}"


def imports(source: Source, version: Version | None) -> tuple[str, ...]:
    """The patterns of the files that a file imports, absolute; none where it is no TOML. Raises Invalid.

    Before 2.0 a relative pattern with a star is looked up in the daemon's working directory, which is / under systemd.
    """
    try:
        found = tomltext.read(text(source), source.path).get("imports", [])
    except InvalidInput:
        return ()  # `read` tells, of all files at once
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInput([f"{place(source, 'imports')}: imports must be a list of paths"])
    beside = posixpath.dirname(source.path)
    old = version is None or version < SECOND
    return tuple(posixpath.normpath(posixpath.join("/" if old and "*" in each else beside, each)) for each in found)


def read(sources: tuple[Source, ...], version: Version | None) -> list[File]:
    """The files with what they say. Raises Invalid for all that cannot be read."""
    errors: list[str] = []
    said: list[dict[str, Any]] = []
    for source in sources:
        try:
            said.append(tomltext.read(text(source), source.path))
            _check(source, said[-1], version)
        except InvalidInput as invalid:
            errors += invalid.errors
    if errors:
        raise InvalidInput(errors)
    numbers = [int(each.get("version", 0)) for each in said]
    if has_base(text(sources[0])):
        numbers[0] = numbers[0] or base_version(sources[0].path)
    if version is None or version < SECOND:
        last = next((number for number in reversed(numbers) if number), 1 if any(said) else 2)
        numbers = [last for _ in numbers]
    else:
        numbers[0] = numbers[0] or (1 if any(said) else 3)
        numbers = [number or _guessed(each, numbers[0]) for number, each in zip(numbers, said, strict=True)]
    files = zip(sources, said, numbers, strict=True)
    return [File(source, each, number, NAMES[min(number, 3)]) for source, each, number in files]


def _guessed(said: dict[str, Any], main: int) -> int:
    """The version of a drop-in that says none: that whose name of the plugin it uses, else that of the main file."""
    plugins = said.get("plugins", {})
    return next((number for number, name in NAMES.items() if name in plugins), main)


def _check(source: Source, said: dict[str, Any], version: Version | None) -> None:
    number = said.get("version", 0)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= NEWEST:
        raise InvalidInput([f"{place(source, 'version')}: version must be a number from 1 to {NEWEST}"])
    if version is not None and version < SECOND and number >= 3:
        has = f"has version {number} of the configuration, which is containerd 2's"
        raise InvalidInput([f"{place(source, 'version')}: {has}: containerd {shown(version)} does not start with it"])
