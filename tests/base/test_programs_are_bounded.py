"""Programs of others, run to their end: they are bounded in time and words, and nothing of them stays."""

import asyncio
import os
import sys
import time
import tracemalloc
from pathlib import Path

import psutil
import pytest

from gpuplane.base.programs import MAX_OUTPUT_BYTES, EndedProgram, OutputTooLarge, run

SOON = 60.0


def program(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", text


def descriptors() -> int:
    """How many files this process has open."""
    return psutil.Process().num_fds()


async def gone(name: str) -> None:
    """Wait until no process has this word on its command line."""
    async with asyncio.timeout(SOON):
        while any(name in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])):
            await asyncio.sleep(0.05)


async def test_what_it_says_and_how_it_ends() -> None:
    text = "import sys; print(sys.stdin.read()); print('b', file=sys.stderr); sys.exit(3)"
    assert await run(program(text), SOON, given=b"a", environment={"A": "1"}) == EndedProgram(3, b"a\n", b"b\n")
    assert (await run(program("import os; os.kill(os.getpid(), 9)"), SOON)).status == -9


async def test_as_much_as_is_wanted_is_taken() -> None:
    text = f"print('x' * {MAX_OUTPUT_BYTES}, end='')"
    assert len((await run(program(text), SOON)).output) == MAX_OUTPUT_BYTES
    with pytest.raises(OutputTooLarge):
        await run(program(f"print('x' * {MAX_OUTPUT_BYTES})"), SOON)


@pytest.mark.parametrize("where", ["stdout", "stderr"])
async def test_words_without_end_are_not_listened_to(where: str, tmp_path: Path) -> None:
    """For little memory, and the program is ended with what it has started."""
    mark = f"mark-{os.urandom(4).hex()}"
    text = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", "{mark}"])
while True: sys.{where}.write("x" * 100000)
"""
    tracemalloc.start()
    try:
        with pytest.raises(OutputTooLarge):
            await run(program(text), SOON)
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
    await gone(mark)


async def test_one_that_does_not_end_is_ended() -> None:
    mark, began = f"mark-{os.urandom(4).hex()}", time.monotonic()
    with pytest.raises(TimeoutError):
        await run((*program("import time; time.sleep(1000)"), mark), 0.5)
    assert time.monotonic() - began < SOON
    await gone(mark)


@pytest.mark.parametrize("apart", [False, True])
async def test_what_it_has_started_is_ended_where_it_has_ended_itself(apart: bool) -> None:
    """It holds the pipes, so that nobody knows whether all was said. What has gone `apart`, as a daemon does, goes on;
    of ours nothing stays open for it."""
    await run(program("pass"), SOON)  # after which asyncio has what it keeps open
    mark, began, before = f"mark-{os.urandom(4).hex()}", time.monotonic(), descriptors()
    text = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep({20 if apart else 1000})", "{mark}"],
                 start_new_session={apart})
"""
    with pytest.raises(TimeoutError):
        await run(program(text), 2.0)
    assert time.monotonic() - began < SOON
    if not apart:
        await gone(mark)
    async with asyncio.timeout(SOON):
        while descriptors() > before:
            await asyncio.sleep(0.05)


async def test_one_that_nobody_waits_for_is_ended() -> None:
    mark = f"mark-{os.urandom(4).hex()}"
    waiting = asyncio.create_task(run((*program("import time; time.sleep(1000)"), mark), 1000))
    async with asyncio.timeout(SOON):
        while not psutil.Process().children():
            await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await gone(mark)


async def test_one_that_does_not_read_is_no_trouble() -> None:
    assert (await run(program("pass"), SOON, given=b"x" * 1_000_000)).status == 0


async def test_one_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await run((str(tmp_path / "none"),), SOON)
