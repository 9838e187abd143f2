"""CRI-O: nothing, unless its directories leave ours out."""

import shutil
from pathlib import Path

import pytest

from tests.golden import Golden
from tests.node.core.runtimes.runs import FILES, run, tree, unchanged


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """CRI-O's configuration as packaged, with two drop-ins."""
    shutil.copytree(FILES / "crio", tmp_path / "crio")
    return tmp_path / "crio"


def test_nothing_as_it_is_packaged(node: Path, golden: Golden) -> None:
    """CDI is on since 1.23 and its directories are the usual ones."""
    (node / "crio.conf.d/20-devices.conf").unlink()
    with unchanged(node):
        done = run("crio", "--config", node / "crio.conf", "--runtime-version", "1.30.4")

    assert done.exit_code == 0
    golden(done.output)


def test_the_list_in_force_gets_our_directory_and_loses_it_again(node: Path, tmp_path: Path, golden: Golden) -> None:
    """The last drop-in that says the directories has the word; its comment and its spaces stay."""
    before, state = tree(node), tmp_path / "state"
    done = run("crio", "--config", node / "crio.conf", "--runtime-version", "1.30.4", "--state-dir", state)

    assert done.exit_code == 0
    golden(done.output)
    changed = 'cdi_spec_dirs = [ "/etc/cdi", "/var/run/cdi" ] # see the runbook'
    assert tree(node) == before | {
        "crio.conf.d/20-devices.conf": f"# static devices only\n[crio.runtime]\n{changed}\n".encode()
    }

    run("crio", "--undo", "--state-dir", state)
    assert tree(node) == before


def test_another_directory_goes_into_the_main_file_or_a_drop_in(node: Path, tmp_path: Path) -> None:
    """Into the main file where nobody says anything; with --drop-in-config there; without a file into a new drop-in."""
    (node / "crio.conf.d/20-devices.conf").unlink()
    asked = ("--runtime-version", "1.30", "--cdi-dir", "/opt/cdi", "--state-dir", tmp_path / "state")
    wanted = '[crio.runtime]\n  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "/opt/cdi"]\n'

    drop_in = node / "crio.conf.d/50-ours.conf"
    run("crio", "--config", node / "crio.conf", *asked, "--drop-in-config", drop_in)
    assert drop_in.read_text() == wanted
    drop_in.unlink()

    run("crio", "--config", node / "crio.conf", *asked)
    assert 'default_runtime = "crun"\ncdi_spec_dirs = [' in (node / "crio.conf").read_text()

    run("crio", "--config", tmp_path / "new/crio.conf", *asked)
    assert (tmp_path / "new/crio.conf.d/99-gpuplane.conf").read_text() == wanted


def test_what_cannot_be(node: Path, golden: Golden) -> None:
    """A drop-in elsewhere or before the one in force, a CRI-O without CDI, a list that is none: nothing is written."""
    asked = ("--config", node / "crio.conf", "--runtime-version")
    with unchanged(node):
        for case, more in (
            ("a drop-in elsewhere", ("1.30", "--drop-in-config", "/etc/crio/conf.d/99.conf")),
            ("a drop-in before the one in force", ("1.30", "--drop-in-config", node / "crio.conf.d/05.conf")),
            ("without CDI", ("1.22.5",)),
        ):
            done = run("crio", *asked, *more)
            assert done.exit_code == 1, case
            golden(done.output, case)
    (node / "crio.conf.d/30.conf").write_text('[crio.runtime]\ncdi_spec_dirs = "/etc/cdi"\n')
    done = run("crio", *asked, "1.30")
    assert (done.exit_code, "30.conf:2: " in done.output) == (1, True)
    golden(done.output, "no list")
