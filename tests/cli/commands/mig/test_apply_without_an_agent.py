"""`gpuplane mig apply`, `plan`, `restore` on a node without an agent: the command does the work itself."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from gpuplane.base.files import open_directory
from gpuplane.node.host.lock import open_lock, try_lock
from tests.cli.commands.mig.node import CardGpu, Driver, layouts_file, mig
from tests.node.core.partitions.tables import FOUR, SEVEN

BOTH = {
    "halves": "devices: [0], mig-enabled: true, mig-devices: {3g.40gb: 2}",
    "sevenths": "devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 7}",
    "every": "devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 3, 2c.3g.40gb: 1};"
    "devices: [1], mig-enabled: true, mig-devices: {1g.6gb: 2, 2g.12gb: 1}",
    "off": "devices: all, mig-enabled: false",
    "large": "devices: [0], mig-enabled: true, mig-devices: {7g.79gb: 1}",
    "impossible": "devices: [0], mig-enabled: true, mig-devices: {4g.40gb: 1, 7g.80gb: 1}",
    "unknown": "devices: [0], mig-enabled: true, mig-devices: {1g.5gb: 1}",
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A card of seven slices, and one of four that needs a reset for its MIG mode. Both are outside it."""
    driver = Driver()
    for module in ("site", "seen"):
        monkeypatch.setattr(f"gpuplane.cli.commands.mig.{module}.hardware", driver.hardware)
    return driver


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    """Options for the configurations, and for a state directory in which no agent is."""
    return ["-f", layouts_file(tmp_path, **BOTH), "--state-dir", tmp_path / "s", "--kubelet-root", tmp_path / "k"]


def test_what_is_applied_is_exported(driver: Driver, words: list[object], tmp_path: Path) -> None:
    """On all GPUs, through a mode change with and without a reset; and to apply it again changes nothing."""
    done = mig("apply", "-c", "every", *words)
    assert done.exit_code == 0, done.output
    assert driver.layouts == {0: {"1g.10gb": 3, "2c.3g.40gb": 1}, 1: {"1g.6gb": 2, "2g.12gb": 1}}
    made = len(driver.changes)
    exported = mig("export", "--state-dir", tmp_path / "s")
    (tmp_path / "exported.yaml").write_text(exported.stdout)
    assert mig("assert", "-f", tmp_path / "exported.yaml", "--state-dir", tmp_path / "s").exit_code == 0
    assert mig("apply", "-f", tmp_path / "exported.yaml", *words[2:]).exit_code == 0
    assert mig("assert", "-c", "every", *words[:4]).exit_code == 0
    assert len(driver.changes) == made


def test_another_boards_name_is_the_same_profile(driver: Driver, words: list[object]) -> None:
    """7g.79gb is 7g.80gb here."""
    assert mig("apply", "-c", "large", *words).exit_code == 0
    assert driver.layouts == {0: {"7g.80gb": 1}}


def test_what_a_command_made_a_later_one_may_destroy(driver: Driver, words: list[object]) -> None:
    """The state directory has it, though each command is a new process."""
    assert mig("apply", "-c", "halves", *words).exit_code == 0
    assert mig("apply", "-c", "sevenths", *words).exit_code == 0
    assert driver.layouts == {0: {"1g.10gb": 7}}


def test_what_others_made_stays_unless_all_are_meant(monkeypatch: pytest.MonkeyPatch, words: list[object]) -> None:
    """An instance that is in the way is named, and nothing is touched."""
    driver = Driver(CardGpu(0, SEVEN, [(0, 0)], enabled=True), CardGpu(1, FOUR))
    monkeypatch.setattr("gpuplane.cli.commands.mig.site.hardware", driver.hardware)
    done = mig("apply", "-c", "halves", *words, "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == 1
    assert (document["done"], document["gpus"][0]["code"]) == (False, "foreign-instance")
    assert driver.layouts == {0: {"7g.80gb": 1}}
    assert mig("apply", "-c", "off", *words).exit_code == 0
    assert driver.layouts == {}


@pytest.mark.parametrize("name", ["impossible", "unknown"])
def test_what_cannot_fit_is_said_before_anything_is_touched(driver: Driver, words: list[object], name: str) -> None:
    """The profiles together, or one that the card does not have."""
    for command in ("plan", "apply"):
        done = mig(command, "-c", name, *words, "--json")
        assert done.exit_code == 1
        assert json.loads(done.stdout)["gpus"][0]["code"] == "does-not-fit"
    assert not driver.changes


def test_a_plan_changes_nothing(driver: Driver, words: list[object]) -> None:
    """Also as `apply --dry-run`, and where the layout is there already."""
    plan = json.loads(mig("plan", "-c", "every", *words, "--json").stdout)
    assert plan["possible"] is True
    assert [(gpu["index"], len(gpu["changes"])) for gpu in plan["gpus"]] == [(0, 9), (1, 8)]
    assert (
        mig("apply", "--dry-run", "-c", "every", *words, "--json").stdout
        == json.dumps(plan, indent=2, ensure_ascii=False) + "\n"
    )
    assert mig("plan", "-c", "every", *words).exit_code == 0
    assert not driver.changes
    mig("apply", "-c", "every", *words)
    plan = json.loads(mig("plan", "-c", "every", *words, "--json").stdout)
    assert [gpu["changes"] for gpu in plan["gpus"]] == [[], []]


def test_a_failure_is_told_and_the_layout_before_comes_back(driver: Driver, words: list[object]) -> None:
    """The driver has no place for the second half."""
    assert mig("apply", "-c", "halves", *words).exit_code == 0
    before = driver.layouts
    driver.problems = ["", "", "", "", "insufficient-resources"]
    done = mig("apply", "-c", "sevenths", *words, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["gpus"][0]["code"] == "insufficient-resources"
    assert driver.layouts in (before, {0: {}})
    assert mig("apply", "-c", "sevenths", *words).exit_code == 0


def test_a_failure_that_passes_is_tried_again(driver: Driver, words: list[object]) -> None:
    """Within the same command."""
    driver.problems = ["", "failed"]
    assert mig("apply", "-c", "halves", *words).exit_code == 0


def test_only_the_mode_is_changed(driver: Driver, words: list[object]) -> None:
    """And without a reset only what takes effect without one."""
    done = mig("apply", "-c", "every", "--mode-only", "--skip-reset", *words)
    assert done.exit_code == 1
    assert driver.layouts == {0: {}}
    assert mig("apply", "-c", "every", "-m", *words).exit_code == 0
    assert driver.layouts == {0: {}, 1: {}}
    assert mig("assert", "-c", "every", "-m", *words[:4]).exit_code == 0
    assert mig("assert", "-c", "every", *words[:4]).exit_code == 1


def test_what_was_saved_is_restored_to_its_places(driver: Driver, words: list[object], tmp_path: Path) -> None:
    """After everything was destroyed."""
    place = words[2:4]
    mig("apply", "-c", "every", *words)
    before = [gpu.card.there for gpu in driver.gpus]
    saved = tmp_path / "saved.json"
    assert mig("checkpoint", "-f", saved, *place).exit_code == 0
    assert mig("apply", "-c", "off", *words).exit_code == 0
    assert driver.layouts == {}
    assert mig("restore", "-f", saved, "--dry-run", *words[2:]).exit_code == 0
    assert driver.layouts == {}
    done = mig("restore", "-f", saved, *words[2:])
    assert done.exit_code == 0, done.output
    assert [gpu.card.there for gpu in driver.gpus] == before
    assert mig("restore", "-f", tmp_path / "none.json", *words[2:]).exit_code == 1


def test_generated_configurations_need_no_file(driver: Driver, words: list[object], tmp_path: Path) -> None:
    """As NVIDIA's MIG manager has them; written to a file they are the same."""
    rest = words[2:]
    assert mig("apply", "-c", "all-balanced", *rest).exit_code == 0
    assert driver.layouts == {
        0: {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2},
        1: {"2g.12gb": 1, "1g.6gb": 2},
    }
    assert mig("assert", "-c", "all-balanced", *rest[:2]).exit_code == 0
    assert mig("generate-config", "-f", tmp_path / "g.yaml", *rest[:2]).exit_code == 0
    assert mig("assert", "-f", tmp_path / "g.yaml", "-c", "all-balanced", *rest[:2]).exit_code == 0
    assert mig("apply", "-c", "all-balancd", *rest).exit_code == 1
    assert mig("apply", *rest).exit_code == 2


def test_kubelet_that_does_not_answer_stops_it(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, words: list[object], tmp_path: Path
) -> None:
    """What containers hold is not known then."""
    (tmp_path / "k/device-plugins").mkdir(parents=True)
    done = mig("apply", "-c", "halves", *words)
    assert (done.exit_code, driver.changes) == (1, [])
    assert "kubelet" in done.stderr


def test_a_state_directory_that_another_process_has_stops_it(
    driver: Driver, words: list[object], tmp_path: Path
) -> None:
    """An agent that starts, or another command: it is named."""
    (tmp_path / "s").mkdir(mode=0o700)
    lock = open_lock(tmp_path / "s")
    assert not try_lock(lock)
    done = mig("apply", "-c", "halves", *words)
    os.close(lock)
    assert (done.exit_code, driver.changes) == (1, [])
    assert str(os.getpid()) in done.stderr


def test_what_kubelet_has_written_down_is_held(
    monkeypatch: pytest.MonkeyPatch, words: list[object], tmp_path: Path
) -> None:
    """Another plugin has given it out, kubelet does not answer, and its checkpoint says so: the pod is named."""
    driver = Driver(CardGpu(0, SEVEN, [(9, 0), (9, 4)], enabled=True))
    monkeypatch.setattr("gpuplane.cli.commands.mig.site.hardware", driver.hardware)
    entry = {
        "PodUID": "u-1", "ContainerName": "main", "ResourceName": "nvidia.com/mig-3g.40gb",
        "DeviceIDs": {"-1": ["MIG-0-9-4-0"]}, "AllocResp": "",
    }  # fmt: skip
    place = tmp_path / "k/device-plugins"
    place.mkdir(parents=True)
    (place / "kubelet_internal_checkpoint").write_text(
        json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 0})
    )
    file = layouts_file(tmp_path, all="devices: all, mig-enabled: true, mig-devices: {1g.10gb: 4, 3g.40gb: 1}",
                        whole="devices: all, mig-enabled: true, mig-devices: {7g.80gb: 1}")  # fmt: skip
    done = mig("apply", "-f", file, "-c", "whole", *words[2:], "--json")
    assert (done.exit_code, json.loads(done.stdout)["gpus"][0]["holders"]) == (1, ["u-1"])
    assert mig("apply", "-f", file, "-c", "all", *words[2:]).exit_code == 0
    assert driver.layouts == {0: {"3g.40gb": 1, "1g.10gb": 4}}
    assert (9, 4) in driver.gpus[0].card.there


def test_an_agent_with_another_state_directory_stops_it(driver: Driver, words: list[object], tmp_path: Path) -> None:
    """It serves kubelet, so it has kubelet's lock."""
    (tmp_path / "k/device-plugins").mkdir(parents=True)
    with open_directory(tmp_path / "k/device-plugins") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        done = mig("apply", "-c", "halves", *words)
    assert (done.exit_code, driver.changes) == (1, [])
    assert "--state-dir" in done.stderr
