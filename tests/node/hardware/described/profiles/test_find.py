"""`--machine NAME`: a profile, or a file."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuplane.node.hardware.described import profiles
from gpuplane.node.hardware.described.profiles import UnknownMachine, find_machine_file, profile_names
from tests.golden import Golden

ROOT = Path(__file__).parents[5]


@pytest.mark.parametrize("name", profile_names())
def test_a_bare_name_is_a_profile(name: str) -> None:
    """And its file can be read."""
    assert find_machine_file(name).name == f"{name}.yaml"
    assert find_machine_file(name).read_bytes().startswith(b"# ")


@pytest.mark.parametrize("path", ["./dgx-a100", "/nowhere/machine.yaml", "a/b"])
def test_a_path_with_a_slash_is_itself(path: str) -> None:
    """Whether it is there or not: the file may come later."""
    assert find_machine_file(path) == Path(path)
    assert find_machine_file(Path("/nowhere/t4")) == Path("/nowhere/t4")


def test_a_file_that_is_here_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a profile has its name; a directory of that name is nobody's machine file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l40s").mkdir()
    for name in ("mine.yaml", "t4"):
        (tmp_path / name).write_text("gpus: []\n")

        assert find_machine_file(name) == Path(name)
    assert find_machine_file("l40s").parent == Path(profiles.__file__).parent


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("a100", "dgx-a100"),
        ("a100", "a100-mig"),
        ("dgx_a100", "dgx-a100"),
        ("H200", "hgx-h200"),
        ("hgx-h200.yaml", "hgx-h200"),
        ("workstaton", "workstation"),
    ],
)
def test_an_unknown_name_says_what_was_perhaps_meant(name: str, meant: str, golden: Golden) -> None:
    """With the name itself and all that there are."""
    with pytest.raises(UnknownMachine) as error:
        find_machine_file(name)

    said = str(error.value)
    assert meant in said.replace(", ".join(profile_names()), "")
    assert repr(name) in said
    assert ", ".join(profile_names()) in said
    golden(said.replace(", ".join(profile_names()), "…"), name)


def test_a_name_like_none_has_no_guess(golden: Golden) -> None:
    """Only the list, and how a file is named."""
    with pytest.raises(LookupError) as error:
        find_machine_file("zzz")
    golden(str(error.value).replace(", ".join(profile_names()), "…"))


def test_the_wheel_has_every_profile(tmp_path: Path) -> None:
    """As installed, not only in the source tree."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")

    with zipfile.ZipFile(wheel) as file:
        inside = set(file.namelist())
    assert {f"gpuplane/node/hardware/described/profiles/{name}.yaml" for name in profile_names()} <= inside
