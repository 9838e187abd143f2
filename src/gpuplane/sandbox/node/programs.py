"""What runs in a container of a played node: our own program as a process, or nothing, for as long as it would run.

Nobody runs somebody else's image here. What is played of it is how long it runs and how it ends: as its command says
where that is a `sleep` or a shell's `exit`, and else as its pod's restart policy expects.
"""

import asyncio
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

from gpuplane.sandbox.node.objects import Json

SECONDS_OF_A_JOB = 0.5
"""How long the program of an init container runs, or of a pod that is not always restarted, and says nothing else."""
TERMINATED_STATUS = 143
"""The exit status of what was ended by SIGTERM (128 + the signal's number)."""
SHELLS = ("sh", "bash", "ash", "dash")
DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Program(Protocol):
    """One run of a container."""

    async def wait(self) -> int:
        """Its exit status, once it has ended."""

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, and kill it if it does not. Returns once it has ended."""


class PlayedCommand(NamedTuple):
    """What is played of a command. `seconds`: how long it runs, None for ever; `status`: its exit status."""

    seconds: float | None
    status: int = 0


class PlayedProgram:
    """Nothing runs. It ends by itself after its time, or when it is asked to."""

    def __init__(self, command: PlayedCommand) -> None:
        self._command, self._stopped = command, asyncio.Event()

    async def wait(self) -> int:
        try:
            async with asyncio.timeout(self._command.seconds):
                await self._stopped.wait()
        except TimeoutError:
            return self._command.status
        return TERMINATED_STATUS

    async def stop(self, grace_seconds: float) -> None:
        self._stopped.set()


def played_command(container: Json, runs_on: bool) -> PlayedCommand:
    """What is played of a container's command. `runs_on`: whether its program is expected to have no end."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    default = PlayedCommand(None if runs_on else SECONDS_OF_A_JOB)
    return _played_words(words, default) if words else default


def _played_words(words: Sequence[str], default: PlayedCommand) -> PlayedCommand:
    """Of one command without a shell, or of a shell's script."""
    name = PurePosixPath(words[0]).name
    if name in SHELLS:
        script = next((words[at + 1] for at, word in enumerate(words[:-1]) if re.fullmatch(r"-[a-z]*c", word)), None)
        return default if script is None else _played_script(script, default)
    if name == "sleep":
        return PlayedCommand(_duration(words[1:]))
    if name == "tail" and "-f" in words[1:]:
        return PlayedCommand(None)
    return {"true": default._replace(seconds=0.0), "false": PlayedCommand(0.0, 1)}.get(name, default)


def _played_script(script: str, default: PlayedCommand) -> PlayedCommand:
    """The sum of its sleeps, and its last `exit` or `false`. A loop without an end runs for ever."""
    seconds, status, found = 0.0, 0, False
    for command in _commands(script):
        if command[0] in ("while", "until") and command[1:2] in (["true"], [":"], ["false"]):
            return PlayedCommand(None)
        played = _played_words(command, PlayedCommand(-1.0))
        if command[0] == "exit":
            code = int(command[1]) & 0xFF if command[1:] and command[1].isdecimal() else status
            return PlayedCommand(seconds, code)
        if played.seconds is None:
            return PlayedCommand(None)
        if played.seconds >= 0:
            seconds, status, found = seconds + played.seconds, played.status, True
    return PlayedCommand(seconds, status) if found else default


def _commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script, as far as words and separators tell them apart."""
    for part in re.split(r"&&|\|\||[;&|\n]", script):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            words = part.split()
        words = [word for word in words if word not in ("do", "then", "{", "(", "exec", "wait")]
        if words:
            yield words


def _duration(words: Sequence[str]) -> float | None:
    """What coreutils' sleep takes: the sum of numbers with units; None for ever."""
    found = [DURATION.fullmatch(word) for word in words]
    if not found or any(word in ("infinity", "inf") for word in words):
        return None
    return sum(float(each[1]) * UNIT_SECONDS[each[2]] for each in found if each)
