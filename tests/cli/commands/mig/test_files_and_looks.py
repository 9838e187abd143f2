"""`gpuplane mig`: each command as a process, with good input and bad."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuplane.node.core.partitions.migparted import parse_configs
from tests.cli.kit.test_program import ended

CONFIGS = Path(__file__).parents[3] / "node/core/partitions/configs"
DEFAULT, CUSTOM = CONFIGS / "default.yaml", CONFIGS / "a100.yaml"


def good(*words: object, **more: Any) -> str:
    """What a command prints that succeeds."""
    done = ended("mig", *words, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bad(*words: object, status: int = 1, **more: Any) -> str:
    """The error of a command that does not, and prints nothing else."""
    done = ended("mig", *words, **more)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    return done.stderr


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """A file with one configuration of the entries that are given; its path."""

    def written(*entries: str) -> Path:
        path = tmp_path / "config.yaml"
        path.write_text("version: v1\nmig-configs:\n  mine:\n" + "".join(f"  - {{{each}}}\n" for each in entries))
        return path

    return written


def test_export_is_a_configuration_that_is_applied() -> None:
    """In both formats, by any name; and `assert` says so."""
    text = good("export", "--machine", "a100-mig")
    assert list(parse_configs(text.encode(), "f")) == ["current"]
    assert good("assert", "-f", "-", "--machine", "a100-mig", typed=text)
    document = json.loads(good("export", "--machine", "a100-mig", "-o", "json", "-l", "mine"))
    assert list(document["mig-configs"]) == ["mine"]


def test_assert_says_what_differs(config: Any) -> None:
    """Of the GPUs that the configuration names; the exit status is the answer."""
    seven = "devices: [2], mig-enabled: true, mig-devices: {1g.10gb: 7}"
    path = config(seven, "devices: [0], mig-enabled: true, mig-devices: {}")
    done = ended("mig", "assert", "-f", path, "-c", "mine", "--machine", "a100-mig", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert (document["config"], document["matches"]) == ("mine", False)
    assert [(each["index"], each["matches"], bool(each["difference"])) for each in document["gpus"]] == [
        (0, False, True), (2, True, False),
    ]  # fmt: skip
    path = config(seven)
    assert good("assert", "-f", path, "--machine", "a100-mig")
    variables = {**os.environ, "MIG_PARTED_CONFIG_FILE": str(path), "MIG_PARTED_MODE_CHANGE_ONLY": "true"}
    assert good("assert", "--machine", "a100-mig", environment=variables)


def test_assert_checks_the_file_alone(config: Any, tmp_path: Path) -> None:
    """Without a machine: `--valid-config`."""
    assert good("assert", "-f", DEFAULT, "-c", "all-balanced", "--valid-config")
    assert "all-balancd" in bad("assert", "-f", DEFAULT, "-c", "all-balancd", "-a")
    assert "config.yaml:4: " in bad("assert", "-a", "-f", config("devices: all, mig-enabled: true"))
    assert "none.yaml" in bad("assert", "-a", "-f", tmp_path / "none.yaml")
    assert "--config-file" in bad("assert", "-a", status=2)


@pytest.mark.parametrize(
    "entries",
    [
        ("devices: [8], mig-enabled: false",),
        ("devices: all, device-filter: '0x20B010DE', mig-enabled: false",),
        ("devices: all, mig-enabled: false", "devices: [1], mig-enabled: true, mig-devices: {}"),
        ("devices: all, mig-enabled: true, mig-devices: {1g.10gb: 0}",),
        ("devices: all, mig-enabled: true, mig-devices: {1g10gb: 1}",),
    ],
)
def test_a_contradictory_configuration_is_refused(entries: tuple[str, ...], config: Any) -> None:
    """An index out of range, a filter that matches nothing, two entries for one GPU, counts of 0, a misspelt name."""
    assert "config.yaml:" in bad("assert", "-f", config(*entries), "--machine", "hgx-h100")


def test_mig_is_not_requested_of_a_gpu_without_it(config: Any) -> None:
    """A T4."""
    path = config("devices: all, mig-enabled: true, mig-devices: {}")
    assert "config.yaml:4: " in bad("assert", "-f", path, "--machine", "t4")
    assert good("assert", "-f", config("devices: all, mig-enabled: false"), "--machine", "t4")
