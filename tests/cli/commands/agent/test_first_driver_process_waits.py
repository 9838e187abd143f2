"""The driver's process that is started before the agent's imports waits for its options, and never stays alone."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from gpuplane.cli.commands.agent import firstdriver
from gpuplane.node.hardware.nvidia import driverprocess

LONGEST = 60.0


def of(mark: str) -> list[int]:
    """The processes with this mark in their environment."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in each.read_bytes() and (each.parent / "cmdline").read_bytes():
                found.append(int(each.parent.name))
        except OSError:
            continue
    return found


def test_it_is_the_process_that_the_hardware_starts() -> None:
    """The two commands cannot be one: importing the other costs the time that is to be won."""
    assert firstdriver.DRIVER_COMMAND == driverprocess.DRIVER_COMMAND


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        ((), True),
        (("--machine", "nvml"), True),
        (("--mig-strategy=mixed", "--machine=nvml"), True),
        (("--machine", "t4"), False),
        (("--machine=/etc/machine.yaml",), False),
        (("--help",), False),
        (("-V",), False),
    ],
)
def test_it_is_started_for_the_driver_alone(arguments: tuple[str, ...], needed: bool) -> None:
    """And ends when nobody tells it what to do."""
    started = firstdriver.start(arguments)
    assert (started is not None) == needed
    if started is not None:
        process, line = started
        assert process.poll() is None
        line.close()
        assert process.wait(LONGEST) == 0


def test_it_opens_no_driver_before_it_is_told_to() -> None:
    """Somebody may have asked for the driver's release: the state directory says so, which is read later."""
    started = firstdriver.start(())
    assert started is not None
    process, line = started
    with line:
        maps, until = Path(f"/proc/{process.pid}/maps"), time.monotonic() + LONGEST
        while "_socket" not in maps.read_text() and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.3)
        opened = [str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert "libnvidia-ml" not in maps.read_text()
        assert not [each for each in opened if each.startswith("/dev/nvidia")]
    assert process.wait(LONGEST) == 0


def test_an_agent_that_cannot_start_leaves_none_behind() -> None:
    """Wrong arguments are found after it was started."""
    mark = f"MARK={uuid.uuid4()}"
    ended = subprocess.run(
        [sys.executable, "-m", "gpuplane", "agent", "--mig-strategy", "many"],
        env={**os.environ, **dict([mark.split("=")])},
        capture_output=True,
        timeout=LONGEST,
        check=False,
    )
    assert ended.returncode == 2
    until = time.monotonic() + LONGEST
    while of(mark) and time.monotonic() < until:
        time.sleep(0.05)
    assert of(mark) == []
