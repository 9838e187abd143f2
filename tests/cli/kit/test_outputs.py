"""Files that commands write where the user says: regular files alone are replaced, and that is said before the work."""

import os
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gpuplane.cli import root_command
from gpuplane.cli.kit.outputfiles import check_output, write_output
from tests.cli.world import NODES, PODS

COMMANDS = (
    "mig checkpoint --machine {machine} -f {out}",
    "mig generate-config --machine {machine} -f {out}",
    "simulate --nodes {here}/nodes.csv --pods {here}/pods.csv --seeds 1 --csv {out}",
    "simulate --nodes {here}/nodes.csv --pods {here}/pods.csv --seeds 1 --plot {out}",
)


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_what_is_no_regular_file_is_left_as_it_is(tmp_path: Path, words: str, kind: str) -> None:
    """Before anything is looked at: the machine and the nodes are not there."""
    out, other = tmp_path / "out.svg", tmp_path / "other"
    if kind == "link":
        out.symlink_to(other)
        other.write_text("kept")
    else:
        os.mkfifo(out)
    before = out.lstat()
    line = words.format(machine=tmp_path / "none.yaml", here=tmp_path, out=out)
    shown = CliRunner().invoke(root_command(), line.split())

    assert shown.exit_code == 1
    assert f"{out}: it is a {kind}, and must be a regular file" in shown.stderr
    assert os.path.samestat(out.lstat(), before)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_file_is_replaced_and_nothing_else_is_touched(tmp_path: Path, words: str) -> None:
    """Not even a file of the name that others use for what is written aside."""
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    out, beside = tmp_path / "out.svg", tmp_path / "out.svg.new"
    out.write_text("old")
    beside.write_text("kept")
    before = {*tmp_path.iterdir()}
    shown = CliRunner().invoke(root_command(), words.format(machine="dgx-a100", here=tmp_path, out=out).split())

    assert shown.exit_code == 0, shown.output
    assert out.read_text() != "old"
    assert stat.S_IMODE(out.stat().st_mode) == 0o644
    assert beside.read_text() == "kept"
    assert {*tmp_path.iterdir()} == before


def test_a_directory_that_cannot_be_written_to_is_said_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system says it: root may write nearly everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: (os.fspath(path), mode) != (f"{tmp_path}", os.W_OK | os.X_OK))
    with pytest.raises(click.ClickException, match="its directory cannot be written to"):
        check_output(tmp_path / "out")


def test_a_name_without_a_directory_is_beside_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_output(Path("out"))
    write_output(Path("out"), b"new")

    assert (tmp_path / "out").read_bytes() == b"new"


def test_what_has_come_meanwhile_is_not_replaced_either(tmp_path: Path) -> None:
    out = tmp_path / "out"
    check_output(out)
    out.symlink_to(tmp_path / "other")
    with pytest.raises(click.ClickException, match="it is a link"):
        write_output(out, b"new")
    assert out.is_symlink()


def test_what_cannot_be_written_in_the_end_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are printed, and the status says that the file is not there."""
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    monkeypatch.setattr("gpuplane.cli.commands.simulate.check_output", lambda *paths: None)
    line = f"simulate --nodes {tmp_path}/nodes.csv --pods {tmp_path}/pods.csv --seeds 1 --csv {tmp_path}/none/out.csv"
    shown = CliRunner().invoke(root_command(), line.split())

    assert shown.exit_code == 1
    assert f"{tmp_path}/none/out.csv: No such file or directory" in shown.stderr
    assert shown.stdout.startswith("allocated\twaste-price\t")


@pytest.mark.parametrize(
    "line",
    [
        "simulate --nodes nodes.csv --pods pods.csv --csv nodes.csv",
        "simulate --nodes nodes.csv --pods pods.csv --csv ./pods.csv",
        "simulate --nodes nodes.csv --pods pods.csv --csv x.svg --plot x.svg",
    ],
)
def test_no_file_that_the_command_uses_otherwise_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"nodes.csv": NODES, "pods.csv": PODS}
    for name, content in files.items():
        Path(name).write_text(content)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    shown = CliRunner().invoke(root_command(), line.split())

    assert shown.exit_code == 1
    assert "this command has another use for this file" in shown.stderr
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
