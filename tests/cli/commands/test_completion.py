"""`gpuplane completion`, in a real bash: what a person types, and what it becomes."""

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE = 60.0
"""Seconds."""


class Bash:
    """An interactive bash with the completion, on a terminal."""

    def __init__(self, place: Path) -> None:
        program = place / "gpuplane"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gpuplane "$@"\n')
        program.chmod(0o755)
        self._master, slave = pty.openpty()
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=place,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={"PATH": f"{place}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ ", "HISTFILE": ""},
            start_new_session=True,
        )
        os.close(slave)
        self.type('eval "$(gpuplane completion bash)"; bind "set bell-style none"; echo rea""dy\n')
        self.until("ready")

    def type(self, text: str) -> None:
        """Keys are pressed."""
        os.write(self._master, text.encode())

    def until(self, text: str) -> str:
        """What stands there from now on, once this stands there too."""
        seen, end = "", time.monotonic() + PATIENCE
        while text not in seen:
            assert time.monotonic() < end, f"bash never wrote {text!r}: {seen!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                seen += os.read(self._master, 4096).decode(errors="replace")
        return seen

    def close(self) -> None:
        """Hang up."""
        os.close(self._master)
        self._bash.kill()
        self._bash.wait()


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Bash]:
    (tmp_path / "machine-here.yaml").write_text("")
    shell = Bash(tmp_path)
    yield shell
    shell.close()


def test_bash_completes_what_is_typed(bash: Bash) -> None:
    """Commands, options, their values, names of profiles, files; of the agent, which click does not parse, too."""
    for typed, completed in (
        ("gpuplane cho\t", "choose "),
        ("gpuplane cdi va\t", "cdi validate "),
        ("gpuplane choose --av\t", "--available "),
        ("gpuplane choose --policy pa\t", "--policy packed "),
        ("gpuplane choose --machine dgx-\t", "--machine dgx-a100 "),
        ("gpuplane choose --machine machine-\t", "--machine machine-here.yaml "),
        ("gpuplane agent --metrics\t", "--metrics-address "),
        ("gpuplane agent --mig-strategy mi\t", "--mig-strategy mixed "),
        ("gpuplane agent --log-format j\t", "--log-format json "),
        ("gpuplane agent --state-dir machine-\t", "--state-dir machine-here.yaml "),
    ):
        bash.type(typed)
        bash.until(completed)
        bash.type("\x15\n")
        bash.until("$ ")


def test_both_scripts_are_scripts(bash: Bash) -> None:
    """Of bash and of zsh, each with its own way to be registered."""
    bash.type("gpuplane completion zsh | head -1; gpuplane completion bash | bash -n && echo go''od\n")
    bash.until("#compdef gpuplane")
    bash.until("good")
