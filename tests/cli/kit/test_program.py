"""What all commands have in common: misspellings, and how they end."""

import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from gpuplane.cli import root_command
from gpuplane.cli.kit.options import OneOf
from tests.cli.terminals import run_command
from tests.lengths import length

GPUPLANE = (sys.executable, "-m", "gpuplane")


def walk(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command below, by its words."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from walk(below, f"{name} {each}".strip())


def ended(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    """A command, as it ended. `more`: of a `Request`."""
    done = run_command(*words, **more)
    return subprocess.CompletedProcess((), done.status, done.out, done.err)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("chose", "No such command 'chose'. Did you mean 'choose'?"),
        ("cdi lst", "No such command 'lst'. Did you mean 'list'?"),
        ("health drian 0", "No such command 'drian'. Did you mean 'drain'?"),
        ("sandbox kubelet --roof 3", "No such option '--roof'. Did you mean '--root'?"),
        ("choose --machine t4 --size 1 --policy pakced", "Did you mean 'packed'?"),
        ("completion bas", "Did you mean 'bash'?"),
    ],
)
def test_what_was_perhaps_meant_is_said(words: str, error: str) -> None:
    """Of a command, an option and one of a few values."""
    done = ended(*words.split())

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert done.stderr.splitlines()[-1].endswith(error)


def test_every_choice_suggests() -> None:
    """None of them is click's own, which only lists them."""
    choices = [
        (name, parameter)
        for name, command in walk(root_command())
        for parameter in command.params
        if isinstance(parameter.type, click.Choice)
    ]

    assert choices
    assert [(name, each.name) for name, each in choices if not isinstance(each.type, OneOf)] == []


def test_a_file_that_cannot_be_read_is_no_wrong_command_line() -> None:
    """Whoever opens it says so, with status 1: click looks at no path before."""
    paths = [
        (name, parameter.name)
        for name, command in walk(root_command())
        for parameter in command.params
        if isinstance(parameter.type, click.Path) and name != "agent"
        if parameter.type.exists or parameter.type.readable
    ]

    assert paths == []


@pytest.mark.parametrize(
    "words",
    [
        "choose --machine t4 --size 1",
        "choose --machine t4 --size 1 --json",
        "--version",
        "agent --version",
        "agent --help",
    ],
)
def test_an_output_that_takes_nothing_is_an_error(words: str) -> None:
    """As a full disk: nobody may take what is there for the answer."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*GPUPLANE, *words.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (1, "Error: No space left on device\n")


CLOSED = ("<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-")
STATUSES = {
    "choose --machine t4 --size 1": 0,
    "choose --machine t4 --size 1 --json": 0,
    "config reference": 0,
    "choose --machine t4 --size 2": 1,
    "chose": 2,
    "--version": 0,
    "agent --version": 0,
    "agent --mashine t4": 2,
}


@pytest.mark.parametrize(
    ("words", "status", "closed"),
    [
        (words, status, closed)
        for row, (words, status) in enumerate(STATUSES.items())
        for column, closed in enumerate(CLOSED)
        if (row + column) % len(CLOSED) < length(2, len(CLOSED))
    ],
)
def test_a_closed_stream_is_as_one_that_takes_nothing(words: str, status: int, closed: str) -> None:
    """Nobody gets the answer that standard output does not take; what standard error does not take is lost."""
    shell = f"exec {' '.join(map(shlex.quote, GPUPLANE))} {words} {closed}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=60)
    lost = status == 0 and ">&-" in closed.split()

    assert "Traceback" not in done.stderr
    assert done.returncode == (1 if lost else status)
    if lost and "2>&-" not in closed:
        assert done.stderr == "Error: Bad file descriptor\n"


@pytest.mark.parametrize(
    "words", ["config check NAME --json", "cdi validate NAME --json", "cdi list --json --spec-dir NAME"]
)
def test_what_is_no_text_is_an_error_where_text_is_needed(words: str, tmp_path: Path) -> None:
    """A path is bytes, and JSON has none."""
    typed = words.replace("NAME", f"{tmp_path}/\udcff").split()
    done = subprocess.run([*GPUPLANE, *typed], capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: '{tmp_path}/\\udcff' is not UTF-8 text\n"


def test_an_error_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """A name of a file comes from outside."""
    done = ended("cdi", "validate", tmp_path / "a\x1b[31m")

    assert done.returncode == 1
    assert "\x1b" not in done.stderr


def test_ctrl_c_ends_a_command_as_it_ends_any() -> None:
    """So that a shell's loop ends with it; no word but what the command has said."""
    with subprocess.Popen(
        [*GPUPLANE, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        assert demo.stdout is not None
        while "1." not in demo.stdout.readline():
            assert demo.poll() is None
        time.sleep(0.1)
        demo.send_signal(signal.SIGINT)
        _, err = demo.communicate(timeout=60)

    assert (demo.returncode, err.strip()) == (-signal.SIGINT, "")
