"""Whether our hook is installed is looked at, and what is no program of root's alone is not called."""

import os
from pathlib import Path

import pytest

from gpuplane.node.host.cdi.hook import hook_status
from tests.texts import as_shown


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (path := tmp_path / "gpuplane-hook").write_bytes(b"\x7fELF")
    path.chmod(0o755)
    return path


def test_a_program_is_told_with_its_path(program: Path) -> None:
    """As is one behind a link."""
    assert (hook_status(program).state, hook_status(program).path) == ("ok", str(program))
    (link := program.with_name("link")).symlink_to(program)
    assert hook_status(link).path == str(link)


def test_one_that_is_missing_is_no_trouble(program: Path) -> None:
    """Containers start without."""
    program.unlink()
    assert (hook_status(program).state, hook_status(program).path) == ("ok", "")


@pytest.mark.parametrize("mode", [0o644, 0o775, 0o757])
def test_what_must_not_be_called_is_not_told(program: Path, mode: int) -> None:
    """Neither what cannot be started, nor what others may write; the reason names it."""
    if mode == 0o775 and os.geteuid() == os.getegid() != 0:
        pytest.skip("the group of this user is theirs alone: it is nobody else")
    program.chmod(mode)
    assert (hook_status(program).state, hook_status(program).path) == ("failing", "")
    assert str(program) in as_shown(hook_status(program).text)


def test_a_program_that_somebody_else_could_replace_is_not_told(program: Path) -> None:
    """Nor one behind a link in a directory that is anybody's."""
    (place := program.with_name("place")).mkdir()
    (link := place / "gpuplane-hook").symlink_to(program)
    place.chmod(0o757)
    assert (hook_status(link).state, hook_status(link).path) == ("failing", "")
    assert f"{place} " in as_shown(hook_status(link).text)
    place.chmod(0o755)
    assert hook_status(link).path == str(link)
    program.parent.chmod(0o777)
    assert hook_status(program).state == "failing"
    assert f"{program.parent} " in as_shown(hook_status(program).text)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to somebody else")
def test_a_program_of_another_user_is_not_told(program: Path) -> None:
    """Whatever its mode says: they could change that."""
    os.chown(program, 65534, 65534)
    assert hook_status(program).path == ""
    assert str(program) in as_shown(hook_status(program).text)
    assert "65534" in as_shown(hook_status(program).text)


def test_what_is_no_file_is_not_told(program: Path) -> None:
    """A directory, or a place that cannot be looked into."""
    assert hook_status(program.parent).path == ""
    assert hook_status(program.parent).state == "failing"
    assert hook_status(program / "hook").text == f"{program / 'hook'}: Not a directory"
