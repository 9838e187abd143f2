"""Programs that are not ours, run to their end.

Whatever is started may hang, start others, or print without end. So it has a time and a bound for what it says. One
that keeps neither is ended, with all that it has started in its process group; and so it is where nobody waits for it
any more.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MAX_OUTPUT_BYTES = 1 << 16
"""Bytes that a program may say where nobody says otherwise."""

SECONDS_TO_DIE = 1.0
"""Seconds that a program which is killed may take to end. One that is stuck in the kernel is not waited for."""


class OutputTooLarge(Exception):
    """A program has said more than it may; how much, in words."""


class EndedProgram(NamedTuple):
    """A program that has ended by itself: its exit status, negative for a signal, and what it said."""

    status: int
    output: bytes
    errors: bytes


async def run(
    command: Sequence[str],
    seconds: float,
    *,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    output: int = asyncio.subprocess.PIPE,
    errors: int = asyncio.subprocess.PIPE,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
) -> EndedProgram:
    """Run a program. Raises TimeoutError where it does not end in time, OutputTooLarge, and OSError where it cannot be
    started.

    `given`: its standard input. `directory`: in which it runs; None for ours.
    `output`, `errors`: as for asyncio; where it is given descriptors for both, it may
    leave daemons behind.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env=environment,
        cwd=directory,
        start_new_session=True,
    )
    streams = [
        asyncio.create_task(_read(process.stdout, max_output_bytes)),
        asyncio.create_task(_read(process.stderr, max_output_bytes)),
        asyncio.create_task(_give(process.stdin, given)),
    ]
    try:
        async with asyncio.timeout(seconds):
            said, complained, _ = await asyncio.gather(*streams)
            return EndedProgram(await process.wait(), said, complained)
    except BaseException:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await _end(process)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it and what it has started, and wait a moment until all that it had open is closed.

    It may have ended itself, and only what it has started goes on. As long as one of these is left, no other process
    has its number (Linux, kernel/pid.c): where there is one again, nobody is left.
    """
    if process.returncode is None or not os.path.exists(f"/proc/{process.pid}"):  # noqa: PTH110 (no disk)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_TO_DIE):
            for stream in (process.stdout, process.stderr):
                while stream is not None and await stream.read(1 << 16):
                    pass
            await process.wait()
    process._transport.close()  # type: ignore[attr-defined]


async def _read(stream: asyncio.StreamReader | None, max_output_bytes: int) -> bytes:
    """All that a program says. Raises OutputTooLarge."""
    said = bytearray()
    while stream is not None and (more := await stream.read(1 << 16)):
        said += more
        if len(said) > max_output_bytes:
            raise OutputTooLarge(f"its output has more than {max_output_bytes >> 10} KiB")
    return bytes(said)


async def _give(stream: asyncio.StreamWriter | None, given: bytes) -> bytes:
    assert stream is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it does not want to know
        stream.write(given)
        await stream.drain()
        stream.close()
    return b""
