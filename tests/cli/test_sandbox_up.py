"""What `sandbox up` is asked for, where no program runs yet."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuplane.cli import root_command
from gpuplane.cli.commands.sandbox.wantednodes import InvalidNodes, count_gpus, parse_nodes
from gpuplane.node.hardware.described.machinefile import read_machine
from gpuplane.node.hardware.described.profiles import profile_names


def names(text: str) -> list[str]:
    return [each.name for each in parse_nodes(text)]


@pytest.mark.parametrize("text", ["2×hgx-h100,t4", "2xhgx-h100, t4", "2*hgx-h100,,t4,"])
def test_a_count_and_a_machine(text: str) -> None:
    assert names(text) == ["hgx-h100-0", "hgx-h100-1", "t4-0"]


def test_a_machine_that_comes_again_goes_on_counting() -> None:
    assert names("t4,l40s,2×t4") == ["t4-0", "l40s-0", "t4-1", "t4-2"]


def test_a_file_stands_for_a_profile(tmp_path: Path) -> None:
    machine = tmp_path / "My Machine_1.yaml"
    machine.write_bytes(parse_nodes("t4")[0].machine)
    [found] = parse_nodes(str(machine))
    assert (found.name, count_gpus(found.machine)) == ("my-machine-1-0", 1)


@pytest.mark.parametrize("text", ["", ",", "1001×t4", "0×t4"])
def test_what_names_no_nodes_is_refused(text: str) -> None:
    with pytest.raises(InvalidNodes):
        parse_nodes(text)


@pytest.mark.parametrize("profile", profile_names())
def test_no_two_nodes_have_the_same_gpu(profile: str) -> None:
    """And each has as many as its profile."""
    one, other = (read_machine(each.machine, each.name) for each in parse_nodes(f"2×{profile}"))
    uuids = [{gpu.uuid for gpu in found.gpus or ()} for found in (one, other)]
    devices = [{each.uuid for gpu in found.gpus or () for each in gpu.mig_devices} for found in (one, other)]
    assert not (uuids[0] & uuids[1] or devices[0] & devices[1])
    assert len(uuids[0]) == len(uuids[1]) == len(one.gpus or ())


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its neighbours need nothing of it."""
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in [each for each in sys.modules if each.startswith("gpuplane.sandbox.controlplane")]:
        monkeypatch.delitem(sys.modules, name)
    run = CliRunner()
    said = run.invoke(root_command(), ["sandbox", "up"])
    assert (said.exit_code, "pip install 'gpuplane[sandbox]'" in said.output) == (1, True)
    assert run.invoke(root_command(), ["sandbox", "down", "--state-dir", "/nowhere"]).exit_code == 0
