"""Commands that are run to their end, each with a deadline."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpuplane.core.text import LONGEST, clip


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

    Raises Failed: it cannot be started or says that it failed; Silent: it takes longer.
    """
    name = command[0]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise Failed(f"{name} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(deadline):
            printed, _ = await process.communicate(given.encode())
    except TimeoutError:
        raise Silent(f"{name} did not end within {deadline:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    said = (printed or b"").decode(errors="replace").strip()
    if process.returncode:
        raise Failed(f"{name} failed with status {process.returncode}{': ' * bool(said)}{ending(said)}")
    return said


def ending(said: str) -> str:
    """The end of what a program said, where it says what went wrong: one line that can be printed."""
    return clip(said[-LONGEST:])
