"""What gpuplane says that it needs is what it needs: everything that it imports, and nothing older than it can use."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.test_image import ROOT, locked

SOURCES = [*(ROOT / "src/gpuplane").rglob("*.py")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = {str(canonicalize_name(each.name)): each for each in map(Requirement, PROJECT["dependencies"])}
EXTRAS = {
    str(canonicalize_name(each.name)): each
    for extra in PROJECT["optional-dependencies"].values()
    for each in map(Requirement, extra)
}
OPTIONAL = {"cel-expr-python": "sandbox", "cryptography": "sandbox", "numpy": "cluster", "matplotlib": "cluster"}
"""What an extra brings → the one wing that imports it."""


def oldest(name: str) -> Version:
    """The oldest version of a package that is said to do."""
    requirement = (NEEDED | EXTRAS)[name]
    [specifier] = requirement.specifier
    assert specifier.operator == ">=", f"{requirement} has no lower bound, or more than that"
    return Version(specifier.version)


def generated() -> Iterator[tuple[str, Path, Version]]:
    """(package, file, the version of it that generated code asks for at least)."""
    for path in SOURCES:
        text = path.read_text()
        for found in re.findall(r"^GRPC_GENERATED_VERSION = '([\d.]+)'$", text, re.MULTILINE):
            yield "grpcio", path, Version(found)
        for found in re.findall(r"ValidateProtobufRuntimeVersion\(\s*\S+PUBLIC,((?:\s*\d+,){3})", text):
            yield "protobuf", path, Version(re.sub(r"\s*,\s*", ".", found.strip().rstrip(",")))


@pytest.mark.parametrize("name", NEEDED)
def test_the_lock_has_what_is_asked_for(name: str) -> None:
    """Each dependency has a lower bound, and what is tested and shipped is not older."""
    version, _ = locked("deploy/requirements.lock")[name]

    assert oldest(name) <= Version(version)


@pytest.mark.parametrize("name", EXTRAS)
def test_the_lock_of_the_tests_has_what_extras_ask_for(name: str) -> None:
    """And the image, which has no extras, has none of it."""
    version, _ = locked("requirements.lock")[name]

    assert oldest(name) <= Version(version)
    assert name not in locked("deploy/requirements.lock")


def test_generated_code_runs_with_the_oldest() -> None:
    """It refuses to be imported beside a runtime that is older than its generator."""
    asked = [*generated()]

    assert {name for name, *_ in asked} == {"grpcio", "protobuf"}
    assert sum(name == "grpcio" for name, *_ in asked) == len([*(ROOT / "src").rglob("*_pb2_grpc.py")])
    assert sum(name == "protobuf" for name, *_ in asked) == len([*(ROOT / "src").rglob("*_pb2.py")])
    for name, path, version in asked:
        assert version <= oldest(name), path


def test_what_is_imported_is_asked_for() -> None:
    """Not left to what another package happens to bring; and nothing is asked for in vain."""
    providers, ours = packages_distributions(), sys.stdlib_module_names | {"gpuplane"}
    rooms: dict[str, set[str]] = {}
    for path in SOURCES:
        room = path.relative_to(ROOT / "src/gpuplane").parts[0]
        for module in set(imported(path)) - ours:
            rooms.setdefault(_package(module, providers), set()).add(room)

    assert set(rooms) == NEEDED.keys() | EXTRAS.keys()
    assert {name: rooms[name] for name in EXTRAS} == {name: {room} for name, room in OPTIONAL.items()}


def _package(module: str, providers: Mapping[str, list[str]]) -> str:
    """Whose a module is. Several packages may have a part of it: then its namesake's; of `google` we use messages."""
    found = [str(canonicalize_name(each)) for each in providers[module]]
    return "protobuf" if module == "google" else module if module in found else found[0]


def imported(path: Path) -> Iterator[str]:
    """The first names of what a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
