"""`gpuplane inspect --watch` with real agents: what it shows as they come, change and go, and how it ends."""

import asyncio
import fcntl
import json
import os
import re
import signal
import struct
import sys
import termios
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest

from gpuplane.sandbox.kubelet import Kubelet
from tests.cli.terminals import screen
from tests.golden import Golden
from tests.node.agent.test_process import GPU, Place, gpuplane


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Four GPUs."""
    return Place(tmp_path)


class Watch:
    """`async with Watch(place, 80, "health") as watch`: a watch in a terminal of so many columns, or in pipes."""

    def __init__(self, place: Place, columns: int | None, *words: str) -> None:
        self.words, self.columns = ("inspect", *words, "--watch", "--state-dir", str(place.state)), columns
        self.out, self.err = "", ""

    async def __aenter__(self) -> Self:
        ours, theirs = os.openpty() if self.columns else os.pipe()
        if self.columns:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, self.columns, 0, 0))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gpuplane", *self.words, stdout=theirs, stderr=asyncio.subprocess.PIPE
        )
        os.close(theirs)
        self._reading = asyncio.gather(self._read(ours), self._hear())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self._reading
        await self.process.wait()

    async def _read(self, ours: int) -> None:
        with os.fdopen(ours, "rb", buffering=0) as stream, suppress(OSError):  # so a terminal ends
            while part := await asyncio.to_thread(stream.read, 1 << 16):
                self.out += part.decode()

    async def _hear(self) -> None:
        assert self.process.stderr
        while part := await self.process.stderr.read(1 << 16):
            self.err += part.decode()

    async def until(self, text: str) -> None:
        """Wait until it has written that, wherever."""
        async with asyncio.timeout(60):
            while text not in self.out + self.err:
                assert self.process.returncode is None, self.out + self.err
                await asyncio.sleep(0.05)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status after a signal, as a shell shows it."""
        self.process.send_signal(number)
        async with asyncio.timeout(60):
            await self._reading
            status = await self.process.wait()
        return 128 - status if status < 0 else status


async def play(watch: Watch, place: Place) -> None:
    """Watch a node whose agent is stopped, and started again, and drains a GPU."""
    async with Kubelet(place.kubelet) as kubelet:
        async with place.agent():
            await kubelet.until_capacity(GPU, 4, 4)
            await watch.__aenter__()
            await watch.until("GPU-2")
        await watch.until("no agent answers")
        async with place.agent():
            await kubelet.until_capacity(GPU, 4, 4)
            assert (await gpuplane("health", "drain", 2, "--why", "fan is loud", "--state-dir", place.state))[0] == 0
            await watch.until("fan is loud")
            assert await watch.end() == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_on_a_terminal_it_is_drawn_again_and_ends_cleanly(place: Place, number: signal.Signals) -> None:
    """With the status of the signal, the cursor shown, and the last picture left."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        async with Watch(place, 80) as watch:
            await watch.until("\x1b[1A")
            assert await watch.end(number) == 128 + number

    assert watch.err == ""
    assert watch.out.rindex("\x1b[?25h") > watch.out.rindex("\x1b[?25l")
    shown = screen(watch.out.replace("\r\n", "\n"))
    assert sum("GPU-2" in line for line in shown) == 1, shown


async def test_on_a_terminal_it_says_that_the_agent_is_away_and_goes_on(place: Place) -> None:
    """What it said last stays meanwhile, below the socket that does not answer."""
    watch = Watch(place, 80)
    await play(watch, place)

    written = re.sub(r"\x1b\[[0-9;]*m", "", watch.out)
    away = written.rindex("no agent answers")
    assert "GPU-2" in written[away:]
    shown = "\n".join(screen(watch.out.replace("\r\n", "\n")))
    assert "fan is loud" in shown
    assert "no agent answers" not in shown


async def test_for_programs_each_change_is_a_document(place: Place, golden: Golden) -> None:
    """Of the same shape, one a line, with nothing else between; that the agent was away is on standard error."""
    watch = Watch(place, None, "health", "--json")
    await play(watch, place)
    documents = [json.loads(line) for line in watch.out.splitlines()]

    assert all(document["version"] == 2 for document in documents)
    assert documents[0]["devices"][2]["state"] == "healthy"
    assert documents[-1]["devices"][2]["state"] == "drained"
    assert all({**one, "time": ""} != {**two, "time": ""} for one, two in pairwise(documents))
    golden(re.sub(r"\((Connection refused|No such file or directory)\)", "(…)", watch.err))


async def test_lines_come_in_blocks(place: Place) -> None:
    """Apart by empty lines."""
    watch = Watch(place, None)
    await play(watch, place)
    blocks = watch.out.split("\n\n")

    assert len(blocks) > 2
    assert all(block.startswith("agent\t") for block in blocks[:-1])
    assert [line.split("\t")[3:5] for line in blocks[-2].splitlines() if "GPU-2" in line] == [
        ["drained", "fan is loud"]
    ]
    assert blocks[-1] == ""


async def test_where_no_agent_answers_at_first_it_ends(place: Place, golden: Golden) -> None:
    """A mistyped directory is not waited for."""
    async with Watch(place, 60) as watch:
        async with asyncio.timeout(60):
            assert await watch.process.wait() == 1

    golden(watch.err)


async def test_a_reader_that_goes_ends_it(place: Place) -> None:
    """As `| head -1` does, without a traceback."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        command = f"{sys.executable} -m gpuplane inspect --watch --json --state-dir {place.state} | head -c 10"
        shell = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        watching = asyncio.create_task(shell.communicate())
        async with asyncio.timeout(120):
            while not watching.done():
                await gpuplane("health", "drain", 1, "--why", str(time.monotonic()), "--state-dir", place.state)
        out, err = await watching

    assert out == b'{"version"'
    assert b"Traceback" not in err
