"""The udev rule: the command that it runs makes the links that the agent would make.

udev itself is not asked: what it makes of a command is done here, as its manual has it.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

RULE = Path(__file__).parents[2] / "deploy/udev/71-gpuplane-dev-char.rules"
THEIRS = "devnode tempnode attr sysfs env kernel number driver devpath id major minor result parent name links root sys"
"""What udev puts something in the place of, where a word begins so (udev(7), "SUBSTITUTIONS")."""

DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
508 nvidia-caps
511 nvidia-uvm

Block devices:
195 nvidia-not
"""
MINORS = """config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu1/gi0/access 138
gpu10/gi2/ci7/access 1407
"""
LINKS = {
    "195:0": "../nvidia0",
    "195:10": "../nvidia10",
    "195:254": "../nvidia-modeset",
    "195:255": "../nvidiactl",
    "508:1": "../nvidia-caps/nvidia-cap1",
    "508:2": "../nvidia-caps/nvidia-cap2",
    "508:3": "../nvidia-caps/nvidia-cap3",
    "508:4": "../nvidia-caps/nvidia-cap4",
    "508:1407": "../nvidia-caps/nvidia-cap1407",
    "511:0": "../nvidia-uvm",
    "511:1": "../nvidia-uvm-tools",
}


def written() -> str:
    """The command as the rule has it, on one line."""
    text = re.sub(r"\\\n\s*", "", RULE.read_text())
    (found,) = re.finditer(r'^RUN\+="/bin/sh -c \'(.*)\'"$', text, re.M)
    return found[1]


def run(root: Path, *shell: str) -> subprocess.CompletedProcess[str]:
    """The command as udev runs it, on a tree of the test's own."""
    command = written().replace("$$", "$").replace("%%", "%")
    for place in ("dev", "proc"):
        command = re.sub(rf"(?<![\w.])/{place}/", f"{root}/{place}/", command)
    return subprocess.run([*shell, "-c", command], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "dev/char").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "proc/devices").write_text(DEVICES)
    (tmp_path / "proc/driver/nvidia-caps/mig-minors").write_text(MINORS)
    for minor in (0, 10):
        gpu = tmp_path / f"proc/driver/nvidia/gpus/0000:{minor:02}:00.0"
        gpu.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 24\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n"
        (gpu / "information").write_text(text)
    return tmp_path


def links(root: Path) -> dict[str, str]:
    return {each.name: str(each.readlink()) for each in (root / "dev/char").iterdir() if each.is_symlink()}


@pytest.mark.parametrize("shell", [("sh",), ("bash", "--posix"), ("busybox", "sh")], ids=" ".join)
def test_each_node_of_the_driver_gets_its_link(tree: Path, shell: tuple[str, ...]) -> None:
    """Of the GPUs that are there, and of their MIG capabilities; a second run changes nothing."""
    if shutil.which(shell[0]) is None:
        pytest.skip(f"needs {shell[0]}")
    done = run(tree, *shell)
    assert (done.stdout, done.stderr) == ("", "")
    assert links(tree) == LINKS
    assert run(tree, *shell).stderr == ""
    assert links(tree) == LINKS


def test_what_is_there_is_left_as_it_is(tree: Path) -> None:
    """Whatever it is."""
    (tree / "dev/char/195:0").symlink_to("../other")
    (tree / "dev/char/511:0").write_text("mine")
    run(tree, "sh")
    assert links(tree) == {**{name: to for name, to in LINKS.items() if name != "511:0"}, "195:0": "../other"}
    assert (tree / "dev/char/511:0").read_text() == "mine"


def test_a_driver_without_mig_or_gpus_is_no_trouble(tree: Path) -> None:
    """Of a driver before 550, for which there is one name, with nvidia-uvm not loaded yet."""
    shutil.rmtree(tree / "proc/driver")
    (tree / "proc/devices").write_text("Character devices:\n195 nvidia-frontend\n")
    run(tree, "sh")
    assert links(tree) == {"195:254": "../nvidia-modeset", "195:255": "../nvidiactl"}


def test_udev_passes_the_command_on_as_it_stands() -> None:
    """Neither cut off (at 1,023 characters up to systemd 249), nor with words of udev's put in, nor ended too soon."""
    command = written()
    assert len(f"/bin/sh -c '{command}'") < 1024
    assert not {"'", '"', "\\"} & set(command)
    assert "%" not in command
    used = re.findall(r"\$\$\{?(\w*)", command)
    assert len(used) == command.count("$") / 2
    assert not [word for word in used if word.startswith(tuple(THEIRS.split()))]


def test_it_runs_when_the_driver_is_loaded() -> None:
    """At the driver's registration, for then it has its number, and when nvidia-uvm has come."""
    lines = RULE.read_text().splitlines()
    assert 'SUBSYSTEM=="drivers", DEVPATH=="/bus/pci/drivers/nvidia", GOTO="gpuplane_dev_char"' in lines
    assert 'SUBSYSTEM=="module", KERNEL=="nvidia_uvm", GOTO="gpuplane_dev_char_uvm"' in lines
    jumps, labels = (set(re.findall(rf'{key}="(\w+)"', RULE.read_text())) for key in ("GOTO", "LABEL"))
    assert jumps - labels == set()
