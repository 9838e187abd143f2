"""The hook puts itself where hook entries name it."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

import gpuplane
from tests.golden import Golden
from tests.node.host.hook.world import NAMESPACE


def install(hook: Path, folder: Path | str) -> subprocess.CompletedProcess[str]:
    """As an init container does."""
    return subprocess.run([hook, "install", folder], capture_output=True, text=True, timeout=20, env={})


def test_it_installs_itself(hook: Path, tmp_path: Path) -> None:
    """The same program, which anybody may read and run; in the place of an older one; a second time, too."""
    folder = tmp_path / "bin"
    for _ in range(2):
        assert install(hook, folder).returncode == 0
    installed = folder / "gpuplane-hook"

    assert installed.read_bytes() == hook.read_bytes()
    assert installed.stat().st_mode & 0o7777 == 0o755
    assert list(folder.iterdir()) == [installed]
    assert subprocess.run([installed, "--version"], capture_output=True, timeout=60).returncode == 0


def test_an_old_one_may_be_running(hook: Path, tmp_path: Path) -> None:
    """It is replaced, never written to."""
    install(hook, tmp_path)
    before = (tmp_path / "gpuplane-hook").stat().st_ino
    with (tmp_path / "gpuplane-hook").open("rb") as running:
        assert install(hook, tmp_path).returncode == 0
        assert running.read() == hook.read_bytes()

    assert (tmp_path / "gpuplane-hook").stat().st_ino != before


def test_links_there_are_not_followed(hook: Path, tmp_path: Path) -> None:
    """What a link names is left alone."""
    victim, folder = tmp_path / "victim", tmp_path / "bin"
    victim.write_text("kept")
    folder.mkdir()
    for name in ("gpuplane-hook", ".gpuplane-hook.new"):
        (folder / name).symlink_to(victim)

    assert install(hook, folder).returncode == 0
    assert victim.read_text() == "kept"
    assert not (folder / "gpuplane-hook").is_symlink()


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_of_everybody_is_refused(hook: Path, tmp_path: Path, mode: int, golden: Golden) -> None:
    """Runtimes start it as root: who may write there would be root."""
    tmp_path.chmod(mode)
    ended = install(hook, tmp_path)

    assert ended.returncode == 1
    golden(ended.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_said(hook: Path, tmp_path: Path, golden: Golden) -> None:
    """With its path."""
    (tmp_path / "file").touch()

    for case, folder in (("a file", tmp_path / "file"), ("two to make", tmp_path / "a/b"), ("not absolute", "bin")):
        ended = install(hook, folder)
        assert ended.returncode != 0
        golden(ended.stderr, case)


def test_a_full_disk_keeps_what_was_there(root: None, hook: Path, tmp_path: Path) -> None:
    """The old program, and nothing half-written beside it."""
    script = f"""
        mount -t tmpfs -o size=128k,mode=755 none {tmp_path}
        echo old > {tmp_path}/gpuplane-hook
        ! {hook} install {tmp_path} || exit 1
        ls -A {tmp_path}
        cat {tmp_path}/gpuplane-hook
    """
    ended = subprocess.run([*NAMESPACE, script], capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stdout) == (0, "gpuplane-hook\nold\n")
    assert os.strerror(errno.ENOSPC) in ended.stderr


def test_its_version_is_the_packages(hook: Path) -> None:
    """Who looks at a node sees which release it has."""
    said = subprocess.run([hook, "--version"], capture_output=True, text=True, timeout=60).stdout

    assert said == f"gpuplane-hook {gpuplane.__version__}\n"
