"""Commands that are run to their end, each with a deadline."""

import asyncio
from collections.abc import Mapping, Sequence

from gpuplane.base import programs
from gpuplane.base.text import MAX_CHARACTERS, clip


class Failed(Exception):
    """A command that did not do what it was asked; in words."""


class Silent(Failed):
    """One that takes too long."""


async def run(
    command: Sequence[str],
    deadline: float,
    *,
    given: str = "",
    environment: Mapping[str, str] | None = None,
    output: int = asyncio.subprocess.PIPE,
) -> str:
    """What a command prints, where it is not given a descriptor for that.

    Raises Failed: it cannot be started, says that it failed, or says too much; Silent: it takes longer.
    """
    name = command[0]
    merged = asyncio.subprocess.STDOUT
    try:
        ended = await programs.run(
            command, deadline, given=given.encode(), environment=environment, output=output, errors=merged
        )
    except TimeoutError:
        raise Silent(f"{name} did not end within {deadline:g} s") from None
    except programs.Wordy as wordy:
        raise Failed(f"{name} was stopped: {wordy}") from None
    except OSError as error:
        raise Failed(f"{name} cannot be started: {error.strerror}") from error
    said = ended.output.decode(errors="replace").strip()
    if ended.status:
        raise Failed(f"{name} failed with status {ended.status}{': ' * bool(said)}{ending(said)}")
    return said


def ending(said: str) -> str:
    """The end of what a program said, where it says what went wrong: one line that can be printed."""
    return clip(said[-MAX_CHARACTERS:])
