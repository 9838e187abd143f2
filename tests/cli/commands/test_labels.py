"""`gpuplane labels`: of a described machine, and of a running agent (test_every_command has its other ways to end)."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from gpuplane.cli.commands.labels import command
from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.snapshot import Snapshot
from tests.node.core.labels.labelled import profile


def shown(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def test_each_label_is_a_line(tmp_path: Path) -> None:
    """With where it is known from behind a tab; the configuration is followed."""
    config = tmp_path / "config.yaml"
    config.write_text("flags: {migStrategy: mixed}\n")
    snapshot = Snapshot(machine=profile("a100-mig"), config=Config(settings=Settings(mig_strategy="mixed")))

    lines = shown("--machine", "a100-mig", "--config", config).stdout.splitlines()

    found = feature_labels(snapshot)
    assert found and lines == [f"{key}={label.value}\t{label.source}" for key, label in found.items()]


def test_the_document_has_each_label() -> None:
    """By its key."""
    found = feature_labels(Snapshot(machine=profile("t4"), config=Config(settings=Settings())))

    document = json.loads(shown("--machine", "t4", "--json").stdout)

    assert found and document == {
        "labels": {key: {"value": label.value, "source": f"{label.source}"} for key, label in found.items()}
    }


def test_a_machine_without_gpus_has_none(tmp_path: Path) -> None:
    """That is known, and said; one whose GPUs could not be counted is not known."""
    file = tmp_path / "machine.yaml"
    file.write_text("gpus: []\n")
    none = shown("--machine", file)
    assert (none.exit_code, none.stdout, bool(none.stderr)) == (0, "", True)
    assert json.loads(shown("--machine", file, "--json").stdout) == {"labels": {}}

    file.write_text("faults: [{code: driver-missing, message: there is none}]\n")
    unknown = shown("--machine", file, "--json")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "there is none" in unknown.stderr
