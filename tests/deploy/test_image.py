"""The image: what goes in is locked, and what the Containerfile says holds together. No engine is needed."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import requires
from itertools import takewhile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpuplane import __version__

ROOT = Path(__file__).parents[2]


def locked(path: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → (version, hashes) of a lock file."""
    text = (ROOT / path).read_text()
    entries = re.findall(r"^([a-z0-9._-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", text, re.MULTILINE)
    return {name: (version, frozenset(re.findall(r"sha256:\w+", hashes))) for name, version, hashes in entries}


def needed(package: str, seen: set[str]) -> Iterator[str]:
    """What a package needs to run here, all the way down."""
    for text in requires(package) or ():
        requirement = Requirement(text)
        extras = requirement.extras or {""}
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        name = canonicalize_name(requirement.name)
        if wanted and name not in seen:
            seen.add(name)
            yield name
            yield from needed(name, seen)
        for extra in extras - {""}:
            yield from needed_by_extra(name, extra, seen)


def needed_by_extra(package: str, extra: str, seen: set[str]) -> Iterator[str]:
    """What one extra of a package adds."""
    for requirement in map(Requirement, requires(package) or ()):
        name = canonicalize_name(requirement.name)
        if requirement.marker and requirement.marker.evaluate({"extra": extra}) and name not in seen:
            seen.add(name)
            yield name
            yield from needed(name, seen)


def test_the_images_lock_is_a_part_of_the_projects() -> None:
    """Same versions, same hashes: what is tested is what ships."""
    whole, part = locked("requirements.lock"), locked("deploy/requirements.lock")

    assert part
    assert part == {name: whole[name] for name in part}
    assert all(hashes for _, hashes in part.values())


def test_the_images_lock_is_whole_and_no_more() -> None:
    """Everything that gpuplane needs to run is in it; nothing that only its tests need."""
    part = locked("deploy/requirements.lock")

    assert set(needed("gpuplane", set())) == set(part)


def instructions() -> list[tuple[str, str]]:
    """The Containerfile, one instruction each, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy/Containerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(line.split(" ", 1)[0], re.sub(r"\s+", " ", line.split(" ", 1)[1])) for line in lines if line]


def test_what_is_copied_is_there_and_let_through() -> None:
    """Every COPY from the source tree names something that exists and that .dockerignore does not hide."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    shown = [line[1:] for line in ignored if line.startswith("!")]
    copied = [text.split(" ")[:-1] for name, text in instructions() if name == "COPY" and "--from" not in text]

    assert ignored[0] == "*"
    for path in (path for paths in copied for path in paths):
        assert (ROOT / path).exists(), path
        assert any(fnmatch(path, each) or path.startswith(f"{each}/") for each in shown), path


def test_podman_and_docker_read_the_same_file() -> None:
    """podman would prefer a .containerignore, which docker does not read."""
    assert (ROOT / ".dockerignore").is_file()
    assert not [*ROOT.glob(".containerignore"), *ROOT.glob("deploy/*ignore")]


def test_nothing_is_said_to_be_fixed_that_is_not() -> None:
    """A base image without a digest and packages of the day are called that, and README.md says how to fix them."""
    text = (ROOT / "deploy/Containerfile").read_text()
    [base] = [text for name, text in instructions() if name == "ARG" and text.startswith("BASE=")]

    assert ("@sha256:" in base) != ("whatever its tag means today" in text)
    assert "--build-arg BASE=" in (ROOT / "deploy/README.md").read_text()


def test_debian_as_on_the_day_of_the_base_image(tmp_path: Path) -> None:
    """APT=snapshot takes the archive that the image's own list of sources names in comments."""
    [line] = [text for name, text in instructions() if name == "RUN" and "$APT" in text]
    sources = tmp_path / "debian.sources"
    for each in ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/apt.conf.d/snapshot"):
        line = line.replace(each, str(tmp_path / Path(each).name))
    for apt, uri in (("latest", "http://now.example/debian"), ("snapshot", "http://then.example/20250520T000000Z")):
        sources.write_text("Types: deb\n# http://then.example/20250520T000000Z\nURIs: http://now.example/debian\n")
        subprocess.run(["sh", "-euc", line], env={"APT": apt, "PATH": os.environ["PATH"]}, check=True, timeout=60)

        assert [each for each in sources.read_text().splitlines() if each.startswith("URIs")] == [f"URIs: {uri}"]
        assert (tmp_path / "snapshot").exists() == (apt == "snapshot")


def test_how_it_is_built() -> None:
    """By hashes, compiled in both stages, without an installer or a compiler at the end, on one base."""
    stages = " | ".join(f"{name} {text}" for name, text in instructions()).split("FROM ")
    _, _, build, last = stages

    assert build.count("--require-hashes") == 2
    assert "--no-deps --no-index" in build
    assert all("compileall" in stage and "unchecked-hash" in stage for stage in (build, last))
    assert "pip" not in last.replace("/usr/local/bin/pip*", "").replace("ensurepip", "")
    assert "apt-get" not in build + last
    assert 'ENTRYPOINT ["gpuplane", "agent"]' in last
    assert [text.split(" ")[0] for name, text in instructions() if name == "FROM"] == ["${BASE}"] * 3


def test_the_hook_is_built_as_the_containerfile_says(tmp_path: Path) -> None:
    """From what is copied into its stage and nothing else; it installs itself where it is told."""
    if missing := [each for each in ("cc", "make") if shutil.which(each) is None]:
        pytest.skip(f"needs {' and '.join(missing)}, to compile the hook")
    stage = list(takewhile(lambda each: each != ("FROM", "${BASE} AS build"), instructions()))
    for *paths, to in (text.split(" ") for name, text in stage if name == "COPY"):
        for path in paths:
            copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
            (tmp_path / to).parent.mkdir(parents=True, exist_ok=True)
            copy(ROOT / path, tmp_path / to)
    [line] = [text for name, text in stage if name == "RUN" and text.startswith("make ")]
    line = line.replace("OUT=/hook", f"OUT={tmp_path}/hook").replace(" /hook/", f" {tmp_path}/hook/")
    subprocess.run(["sh", "-euc", line], cwd=tmp_path, capture_output=True, check=True, timeout=100)
    program = tmp_path / "hook/gpuplane-hook"

    version = subprocess.run([program, "--version"], env={}, capture_output=True, text=True, check=True, timeout=60)
    assert __version__ in version.stdout
    subprocess.run([program, "install", tmp_path / "bin"], env={}, check=True, timeout=60)
    installed = tmp_path / "bin/gpuplane-hook"
    assert installed.read_bytes() == program.read_bytes()
    assert stat.S_IMODE(installed.stat().st_mode) == 0o755


def test_the_node_sees_none_of_the_images_paths() -> None:
    """What a DaemonSet mounts hides nothing that the image runs from."""
    mounted = re.findall(
        r"mountPath: ([^,}\s]+)", "".join(each.read_text() for each in (ROOT / "deploy").rglob("*.yaml"))
    )
    [path] = [text for name, text in instructions() if name == "ENV"]
    folders = re.findall(r"PATH=(\S+)", path)[0].split(":")

    assert "/opt/gpuplane/bin" in mounted
    assert not [(mount, each) for mount in mounted for each in folders if f"{each}/".startswith(f"{mount}/")]
