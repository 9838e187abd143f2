"""A runtime's configuration as it lies on this node, in the order in which the runtime reads it."""

import asyncio
import glob
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from gpuplane.base import programs
from gpuplane.base.files import read
from gpuplane.base.value import Value
from gpuplane.node.core.runtimes import containerd, containerdconfig, crio, distributions, docker, tomltext
from gpuplane.node.core.runtimes.distributions import KUBERNETES_DISTRIBUTIONS
from gpuplane.node.core.runtimes.plan import (
    ConfigChangePlan,
    RuntimeConfigFileContent,
    Version,
    decode_text,
    parse_version,
)

CONTAINERD_CONFIG, DOCKER_CONFIG, CRIO_CONFIG = (
    "/etc/containerd/config.toml",
    "/etc/docker/daemon.json",
    "/etc/crio/crio.conf",
)
RUNTIME_BINARIES = {"containerd": "containerd", "docker": "dockerd", "crio": "crio"}
RESTART_COMMANDS = {
    "containerd": "systemctl restart containerd",
    "docker": "systemctl restart docker",
    "crio": "systemctl restart crio",
}
VERSION_TIMEOUT = 5.0
"""Seconds that a program may take to say its version."""


MAX_FILES, MAX_BYTES, MAX_PATTERN_DEPTH = 256, 256 << 10, 2
"""What is read of a runtime's configuration: files, bytes of all of them, and directories of a pattern with stars."""


class NodeAccessFailed(Exception):
    """A file or program of the node does not let us: which, and why."""


class RuntimeRequest(Value):
    """What somebody asks for; "" means: as usual."""

    runtime: str
    directory: str
    config: str = ""
    drop_in: str = ""
    version: str = ""
    binary: str = ""


class RuntimePlan(Value):
    """What is to change, and how the runtime is restarted to see it."""

    plan: ConfigChangePlan
    version: Version | None
    restart: str


@contextmanager
def as_node_access_failure(path: str | Path) -> Iterator[None]:
    """An OSError becomes NodeAccessFailed, with the path."""
    try:
        yield
    except OSError as error:
        root = ": run this as root" if isinstance(error, PermissionError) and os.geteuid() else ""
        raise NodeAccessFailed(f"{error.filename or path}: {error.strerror}{root}") from None


def plan_runtime_change(request: RuntimeRequest) -> RuntimePlan:
    """What a runtime needs. Raises NodeAccessFailed and Invalid."""
    if request.runtime == "containerd":
        return _plan_containerd_change(request)
    number = _runtime_version(request, RUNTIME_BINARIES[request.runtime])
    main = _read_config_file(request.config or {"docker": DOCKER_CONFIG, "crio": CRIO_CONFIG}[request.runtime])
    if request.runtime == "docker":
        if request.drop_in:
            raise NodeAccessFailed("Docker reads only one file and no drop-in files: remove --drop-in-config")
        _require_runtime_on_node(main, number, "Docker")
        plan = docker.plan_changes(main, number, request.directory)
    else:
        plan = _plan_crio_change(request, main, number)
    return RuntimePlan(plan, number, RESTART_COMMANDS[request.runtime])


def _runtime_version(request: RuntimeRequest, binary: str) -> Version | None:
    """The runtime's version as it is told, or as its program says; None without one. Raises NodeAccessFailed."""
    if request.version:
        number = parse_version(request.version)
        if number is None:
            raise NodeAccessFailed(f"--runtime-version {request.version}: is not a version such as 1.7.24")
        return number
    try:
        said = asyncio.run(programs.run((request.binary or binary, "--version"), VERSION_TIMEOUT))
    except (OSError, programs.OutputTooLarge) as error:
        if request.binary:
            raise NodeAccessFailed(
                f"{request.binary}: does not print its version: {_version_error_text(error)}"
            ) from None
        return None
    return parse_version(said.output.decode(errors="replace"))


def _version_error_text(error: OSError | programs.OutputTooLarge) -> str:
    if isinstance(error, TimeoutError):
        return f"timed out after {VERSION_TIMEOUT:g} s"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _plan_containerd_change(request: RuntimeRequest) -> RuntimePlan:
    path = request.config or _containerd_config_path()
    main = _read_config_file(path)
    by = distributions.find_distribution(path, decode_text(main))
    number = _runtime_version(request, by.containerd_binary if by else "containerd")
    if by is None:
        _require_runtime_on_node(main, number, "containerd")
    notes: tuple[str, ...] = ()
    if by is not None:
        said = tomltext.get_value(decode_text(main), ("version",), path)
        beside = {str(each) for each in Path(path).parent.glob("*")}
        found = distributions.find_template(by, path, said if isinstance(said, int) else 0, beside)
        if found:
            notes = (f"{path} is generated from {found} by {by.name} at each start, so {found} is the file to change",)
            main = _read_config_file(found)
    sources, missing = _with_drop_in(main, number, request.drop_in)
    plan = containerd.plan_changes(
        sources, number, request.directory, request.drop_in, missing, generated_by=None if notes else by
    )
    return RuntimePlan(
        plan.but(notes=(*notes, *plan.notes)), number, by.restart_command if by else RESTART_COMMANDS["containerd"]
    )


def _containerd_config_path() -> str:
    """The file that containerd reads: the usual one, else that of the one distribution that is here."""
    usual = [f"{each.config_root}{each.config_path_below_root}" for each in KUBERNETES_DISTRIBUTIONS]
    found = [each for each in usual if Path(each).exists()]
    return found[0] if len(found) == 1 and not Path(CONTAINERD_CONFIG).exists() else CONTAINERD_CONFIG


def _with_drop_in(
    main: RuntimeConfigFileContent, number: Version | None, drop_in: str
) -> tuple[tuple[RuntimeConfigFileContent, ...], str]:
    """The files in containerd's order, and what the main file has to import so that the drop-in is one of them.

    That is a pattern, as nvidia-ctk writes it: containerd does not start without a file that is imported by its name,
    and a drop-in may be removed by hand. Raises NodeAccessFailed and InvalidInput.
    """
    sources = _with_imports(main, number, drop_in)
    if not drop_in or any(each.path == drop_in for each in sources):
        return sources, ""
    pattern = str(PurePath(drop_in).with_name("*.toml"))
    if not drop_in.endswith(".toml"):
        raise NodeAccessFailed(f"{drop_in}: {main.path} does not import it: give it a name that ends in .toml")
    with_pattern = _with_imports(main, number, drop_in, pattern)
    if others := [each.path for each in with_pattern if each not in sources and each.path != drop_in]:
        raise NodeAccessFailed(
            f"{main.path} does not import {drop_in}, and with {pattern} it would import {', '.join(others)}, too: "
            f"add what it shall import to imports of {main.path}, or choose another directory"
        )
    return with_pattern, pattern


def _with_imports(
    main: RuntimeConfigFileContent, number: Version | None, drop_in: str, *more_patterns: str
) -> tuple[RuntimeConfigFileContent, ...]:
    """The files in containerd's order: the main one, its imports, theirs. Raises NodeAccessFailed, Invalid.

    `more_patterns`: what the main file imports besides what it says. Nobody has so many files: the limits are for a
    pattern that matches too much, and for files that import each other.
    """
    sources = {main.path: main}
    found: dict[str, list[str]] = {}
    for source in (pending := [main]):
        for pattern in (*containerdconfig.import_patterns(source, number), *(more_patterns if source is main else ())):
            if pattern not in found:
                found[pattern] = _files_of_pattern(pattern, drop_in)
                _require_few(sources, found, main.path)
            for path in found[pattern]:
                if path in sources:
                    continue
                sources[path] = _read_config_file(path)
                if sources[path].data is None and path != drop_in:
                    raise NodeAccessFailed(f"{path}: is imported by {source.path}, but does not exist")
                pending.append(sources[path])
                _require_few(sources, found, main.path)
    return tuple(sources.values())


def _require_few(sources: dict[str, RuntimeConfigFileContent], patterns: Collection[str], main: str) -> None:
    """Raises NodeAccessFailed where a file imports more than is read."""
    size = sum(len(each.data or b"") for each in sources.values())
    if max(len(sources), len(patterns)) > MAX_FILES or size > MAX_BYTES:
        raise NodeAccessFailed(
            f"{main}: it and what it imports are more than {MAX_FILES} files or {MAX_BYTES >> 10} KiB: "
            "see what imports so many, and make its pattern narrower"
        )


def _files_of_pattern(pattern: str, drop_in: str) -> list[str]:
    """The files of a pattern, with the one that is to come. As in Go's filepath.Glob, two stars mean the same as one.

    Raises NodeAccessFailed for a pattern with so many stars that it walks whole trees.
    """
    if "*" not in pattern:
        return [pattern]
    if sum("*" in part for part in pattern.split("/")) > MAX_PATTERN_DEPTH:
        raise NodeAccessFailed(f"imports {pattern}: has stars in more than {MAX_PATTERN_DEPTH} directories: name them")
    found = glob.glob(pattern, include_hidden=True)  # noqa: PTH207  (pathlib's would walk a tree for two stars)
    return sorted({*found, drop_in} if drop_in and PurePath(drop_in).match(pattern) else found)


def _require_runtime_on_node(main: RuntimeConfigFileContent, number: Version | None, name: str) -> None:
    """Raises NodeAccessFailed where nothing shows that the runtime is on this node."""
    if main.data is None and number is None:
        raise NodeAccessFailed(
            f"{main.path}: does not exist, and the version of {name} is unknown: set --runtime-version"
        )


def _plan_crio_change(
    request: RuntimeRequest, main: RuntimeConfigFileContent, number: Version | None
) -> ConfigChangePlan:
    folder = Path(main.path).with_name("crio.conf.d")
    if request.drop_in and Path(request.drop_in).parent != folder:
        raise NodeAccessFailed(f"{request.drop_in}: CRI-O reads drop-ins in {folder} only")
    new = request.drop_in or (main.path if main.data is not None else str(folder / "99-gpuplane.conf"))
    with as_node_access_failure(folder):
        paths = {str(each) for each in folder.iterdir() if each.is_file()} if folder.is_dir() else set()
    if not paths:
        _require_runtime_on_node(main, number, "CRI-O")
    added = sorted({*paths, new} - {main.path})
    return crio.plan_changes((main, *map(_read_config_file, added)), number, request.directory, new, request.drop_in)


def _read_config_file(path: str) -> RuntimeConfigFileContent:
    """A file; without data where there is none. Raises NodeAccessFailed."""
    with as_node_access_failure(path):
        try:
            return RuntimeConfigFileContent(path, read(path, MAX_BYTES))
        except FileNotFoundError:
            return RuntimeConfigFileContent(path, None)
