"""Where the programs of a control plane are, and what versions they have.

They are looked for in the directory that an option names, in GPUPLANE_CONTROL_PLANE, in KUBEBUILDER_ASSETS (which who
develops controllers may have set: envtest's directory, often with the first two programs alone), and where `gpuplane
sandbox fetch` puts them.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuplane.base import programs
from gpuplane.base.text import clip
from gpuplane.sandbox.record import own_directory

ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER = "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"
NAMES = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER)
OPTION, OWN_VARIABLE, ENVTEST_VARIABLE = "--control-plane", "GPUPLANE_CONTROL_PLANE", "KUBEBUILDER_ASSETS"
HINT = f"`gpuplane sandbox fetch` downloads them; {OPTION} DIR names a directory that has them"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""uname(2) → as the names of releases have it."""
SECONDS_FOR_VERSION = 60.0
Version = tuple[int, ...]


class ProgramsMissing(Exception):
    """The programs are not there, or do not run here. The message says what to do."""


def find_programs(option: Path | None, environment: Mapping[str, str]) -> Path:
    """The directory of the programs. Raises ProgramsMissing."""
    problems = list[str]()
    for origin, directory in _candidates(option, environment):
        if not (missing := [name for name in NAMES if not os.access(directory / name, os.X_OK)]):
            return directory.absolute()
        problems.append(f"{origin} {directory} {_describe_missing(directory, missing)}".lstrip())
        if origin in (OPTION, OWN_VARIABLE):  # the others were not meant for us, or are ours to complete
            break
    raise ProgramsMissing(f"{'; '.join(problems) or 'the programs of a control plane are not here'}. {HINT}")


def fetched_root(environment: Mapping[str, str]) -> Path:
    """Where `gpuplane sandbox fetch` makes a directory for each version (XDG Base Directory Specification)."""
    return own_directory(environment, "XDG_CACHE_HOME", ".cache") / "control-plane"


def own_architecture() -> str:
    """This machine's, as the names of releases have it."""
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def parse_version(text: str) -> Version:
    """(1, 36, 2) of "v1.36.2". Raises ValueError."""
    if (found := re.search(r"(\d+)\.(\d+)\.(\d+)", text)) is None:
        raise ValueError(f"no version: {clip(text)}")
    return tuple(map(int, found.groups()))


async def program_version(directory: Path, name: str) -> str:
    """The version of a program: "1.36.2". Raises ProgramsMissing."""
    try:
        ended = await programs.run([str(directory / name), "--version"], SECONDS_FOR_VERSION)
        return ".".join(map(str, parse_version(ended.output.decode(errors="replace"))))
    except TimeoutError:
        reason = f"it says no version within {SECONDS_FOR_VERSION:g} s"
    except OSError as error:  # a program of another machine: ENOEXEC
        reason = error.strerror or str(error)
    except (ValueError, programs.OutputTooLarge) as error:
        reason = str(error)
    raise ProgramsMissing(f"{directory / name} does not run here: {reason}. {HINT}")


def _candidates(option: Path | None, environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Who names a directory, and the directory. What is fetched is complete."""
    if option is not None:
        yield OPTION, option
    for name in (OWN_VARIABLE, ENVTEST_VARIABLE):
        if value := environment.get(name):
            yield name, Path(value)
    own = fetched_root(environment).glob(f"*-linux-{own_architecture()}")
    yield from (("", directory) for directory in sorted(own, key=_version_of, reverse=True))


def _version_of(directory: Path) -> Version:
    try:
        return parse_version(directory.name)
    except ValueError:
        return ()


def _describe_missing(directory: Path, missing: list[str]) -> str:
    """What is wrong with a directory."""
    if not directory.is_dir():
        return "is no directory"
    if missing == [CONTROLLER_MANAGER, SCHEDULER]:
        return f"has etcd and kube-apiserver alone, as envtest's; {' and '.join(missing)} are missing"
    return f"has no {', no '.join(missing)} that can be executed"
