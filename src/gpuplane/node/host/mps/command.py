"""Commands that are run to their end, each with a deadline."""

import asyncio
from collections.abc import Mapping, Sequence

from gpuplane.base import programs
from gpuplane.base.text import MAX_CHARACTERS, clip


class CommandFailed(Exception):
    """A command that did not do what it was asked; in words."""


class CommandTimedOut(CommandFailed):
    """One that takes too long."""


async def run_command(
    command: Sequence[str],
    deadline: float,
    *,
    given: str = "",
    environment: Mapping[str, str] | None = None,
    output: int = asyncio.subprocess.PIPE,
) -> str:
    """What a command prints, where it is not given a descriptor for that.

    Raises CommandFailed: it cannot be started, says that it failed, or says too much; CommandTimedOut: it takes longer.
    """
    name = command[0]
    merged = asyncio.subprocess.STDOUT
    try:
        ended = await programs.run(
            command, deadline, given=given.encode(), environment=environment, output=output, errors=merged
        )
    except TimeoutError:
        raise CommandTimedOut(f"{name} did not end within {deadline:g} s") from None
    except programs.OutputTooLarge as wordy:
        raise CommandFailed(f"{name} was stopped: {wordy}") from None
    except OSError as error:
        raise CommandFailed(f"{name} cannot be started: {error.strerror}") from error
    said = ended.output.decode(errors="replace").strip()
    if ended.status:
        raise CommandFailed(f"{name} failed with status {ended.status}{': ' * bool(said)}{last_line(said)}")
    return said


def last_line(said: str) -> str:
    """The end of what a program said, where it says what went wrong: one line that can be printed."""
    return clip(said[-MAX_CHARACTERS:])
