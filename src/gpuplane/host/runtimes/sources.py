"""A runtime's configuration as it lies on this node, in the order in which the runtime reads it."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from gpuplane import programs
from gpuplane.core.runtimes import containerd, containerdconfig, crio, distributions, docker, tomltext
from gpuplane.core.runtimes.distributions import KUBERNETES_DISTRIBUTIONS
from gpuplane.core.runtimes.plan import ConfigChangePlan, RuntimeConfigFileContent, Version, decode_text, parse_version
from gpuplane.files import read
from gpuplane.model.value import Value

CONTAINERD, DOCKER, CRIO = "/etc/containerd/config.toml", "/etc/docker/daemon.json", "/etc/crio/crio.conf"
BINARIES = {"containerd": "containerd", "docker": "dockerd", "crio": "crio"}
RESTARTS = {
    "containerd": "systemctl restart containerd",
    "docker": "systemctl restart docker",
    "crio": "systemctl restart crio",
}
PATIENCE = 5.0
"""Seconds that a program may take to say its version."""


class Failed(Exception):
    """A file or program of the node does not let us: which, and why."""


class Wish(Value):
    """What somebody asks for; "" means: as usual."""

    runtime: str
    directory: str
    config: str = ""
    drop_in: str = ""
    version: str = ""
    binary: str = ""


class Judged(Value):
    """What is to change, and how the runtime is restarted to see it."""

    plan: ConfigChangePlan
    version: Version | None
    restart: str


@contextmanager
def told(path: str | Path) -> Iterator[None]:
    """An OSError becomes Failed, with the path."""
    try:
        yield
    except OSError as error:
        root = ": run this as root" if isinstance(error, PermissionError) and os.geteuid() else ""
        raise Failed(f"{error.filename or path}: {error.strerror}{root}") from None


def judge(wish: Wish) -> Judged:
    """What a runtime needs. Raises Failed and Invalid."""
    if wish.runtime == "containerd":
        return _containerd(wish)
    number = _version(wish, BINARIES[wish.runtime])
    main = _read(wish.config or {"docker": DOCKER, "crio": CRIO}[wish.runtime])
    if wish.runtime == "docker":
        if wish.drop_in:
            raise Failed("Docker reads only one file and no drop-in files: remove --drop-in-config")
        _there(main, number, "Docker")
        plan = docker.plan_changes(main, number, wish.directory)
    else:
        plan = _crio(wish, main, number)
    return Judged(plan, number, RESTARTS[wish.runtime])


def _version(wish: Wish, binary: str) -> Version | None:
    """The runtime's version as it is told, or as its program says; None where it cannot be had. Raises Failed."""
    if wish.version:
        number = parse_version(wish.version)
        if number is None:
            raise Failed(f"--runtime-version {wish.version}: is not a version such as 1.7.24")
        return number
    try:
        said = asyncio.run(programs.run((wish.binary or binary, "--version"), PATIENCE))
    except (OSError, programs.Wordy) as error:
        if wish.binary:
            raise Failed(f"{wish.binary}: does not print its version: {_why(error)}") from None
        return None
    return parse_version(said.output.decode(errors="replace"))


def _why(error: OSError | programs.Wordy) -> str:
    if isinstance(error, TimeoutError):
        return f"timed out after {PATIENCE:g} s"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _containerd(wish: Wish) -> Judged:
    path = wish.config or _main()
    main = _read(path)
    by = distributions.find_distribution(path, decode_text(main))
    number = _version(wish, by.containerd_binary if by else "containerd")
    if by is None:
        _there(main, number, "containerd")
    notes: tuple[str, ...] = ()
    if by is not None:
        said = tomltext.get_value(decode_text(main), ("version",), path)
        beside = {str(each) for each in Path(path).parent.glob("*")}
        found = distributions.find_template(by, path, said if isinstance(said, int) else 0, beside)
        if found:
            notes = (f"{path} is generated from {found} by {by.name} at each start, so {found} is the file to change",)
            main = _read(found)
    sources = _with_imports(main, number, wish.drop_in)
    plan = containerd.plan_changes(sources, number, wish.directory, wish.drop_in, None if notes else by)
    return Judged(plan.but(notes=(*notes, *plan.notes)), number, by.restart_command if by else RESTARTS["containerd"])


def _main() -> str:
    """The file that containerd reads: the usual one, else that of the one distribution that is here."""
    usual = [f"{each.config_root}{each.config_path_below_root}" for each in KUBERNETES_DISTRIBUTIONS]
    found = [each for each in usual if Path(each).exists()]
    return found[0] if len(found) == 1 and not Path(CONTAINERD).exists() else CONTAINERD


def _with_imports(
    main: RuntimeConfigFileContent, number: Version | None, drop_in: str
) -> tuple[RuntimeConfigFileContent, ...]:
    """The files in containerd's order: the main file, what it imports, what that imports. Raises Failed and Invalid."""
    sources: dict[str, RuntimeConfigFileContent] = {}
    pending = [main]
    while pending:
        source = pending.pop(0)
        if source.path in sources:
            continue
        sources[source.path] = source
        for pattern in containerdconfig.import_patterns(source, number):
            for path in _matches(pattern, drop_in):
                found = _read(path)
                if found.data is None and path != drop_in:
                    raise Failed(f"{path}: is imported by {source.path}, but does not exist")
                pending.append(found)
    return tuple(sources.values())


def _matches(pattern: str, drop_in: str) -> list[str]:
    """The files of a pattern, with the one that is to come."""
    if "*" not in pattern:
        return [pattern]
    found = {str(each) for each in Path("/").glob(pattern.lstrip("/"))}
    return sorted({*found, drop_in} if drop_in and PurePath(drop_in).match(pattern) else found)


def _there(main: RuntimeConfigFileContent, number: Version | None, name: str) -> None:
    """Raises Failed where nothing shows that the runtime is on this node."""
    if main.data is None and number is None:
        raise Failed(f"{main.path}: does not exist, and the version of {name} is unknown: set --runtime-version")


def _crio(wish: Wish, main: RuntimeConfigFileContent, number: Version | None) -> ConfigChangePlan:
    folder = Path(main.path).with_name("crio.conf.d")
    if wish.drop_in and Path(wish.drop_in).parent != folder:
        raise Failed(f"{wish.drop_in}: CRI-O reads drop-ins in {folder} only")
    new = wish.drop_in or (main.path if main.data is not None else str(folder / "99-gpuplane.conf"))
    with told(folder):
        paths = {str(each) for each in folder.iterdir() if each.is_file()} if folder.is_dir() else set()
    if not paths:
        _there(main, number, "CRI-O")
    added = sorted({*paths, new} - {main.path})
    return crio.plan_changes((main, *map(_read, added)), number, wish.directory, new, wish.drop_in)


def _read(path: str) -> RuntimeConfigFileContent:
    """A file; without data where there is none. Raises Failed."""
    with told(path):
        try:
            return RuntimeConfigFileContent(path, read(path))
        except FileNotFoundError:
            return RuntimeConfigFileContent(path, None)
