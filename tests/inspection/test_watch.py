"""`gpuplane inspect --watch` with real agents: what it shows as they come, change and go, and how it ends."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.kubelet import Kubelet
from tests.agent.test_process import GPU, Place, gpuplane
from tests.cli.forked import Ended
from tests.cli.terminals import Terminals, screen


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Four GPUs."""
    return Place(tmp_path)


@pytest.fixture(scope="module")
def terminals() -> Iterator[Terminals]:
    """Where commands are played."""
    with Terminals() as terminals:
        yield terminals


async def watched(terminals: Terminals, place: Place, *words: str, **more: Any) -> Ended:
    """How a watch ended."""
    asked = ("inspect", *words, "--watch", "--state-dir", place.state)
    return await asyncio.to_thread(lambda: terminals.run(*asked, **more))


async def restarted(kubelet: Kubelet, place: Place) -> None:
    """What happens to a node while it is watched: its agent is killed and started again, and a GPU is drained."""
    async with place.agent() as first:
        await kubelet.until_capacity(GPU, 4, 4)
        await first.kill()
        await asyncio.sleep(3)
    async with place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        assert (await gpuplane("health", "drain", 2, "--why", "fan is loud", "--state-dir", place.state))[0] == 0
        await kubelet.until_capacity(GPU, 4, 3)
        await asyncio.sleep(3)


async def play(terminals: Terminals, place: Place, *words: str, **more: Any) -> Ended:
    """How a watch of these happenings ended, which sees them from an agent that serves on."""
    async with Kubelet(place.kubelet) as kubelet:
        async with place.agent():
            await kubelet.until_capacity(GPU, 4, 4)
            watching = asyncio.create_task(watched(terminals, place, *words, until="fan is loud", **more))
            await asyncio.sleep(2)
        await restarted(kubelet, place)
        return await watching


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_on_a_terminal_it_is_drawn_again_and_ends_cleanly(
    terminals: Terminals, place: Place, number: signal.Signals
) -> None:
    """With the status of the signal, the cursor shown, and the last picture left."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        ended = await watched(terminals, place, columns=80, until="\x1b[1A", signal=number)

    assert ended.status in (128 + number, -number)
    assert ended.err == ""
    assert ended.out.rindex("\x1b[?25h") > ended.out.rindex("\x1b[?25l")
    shown = screen(ended.out)
    assert sum("GPU-2" in line for line in shown) == 1, shown


async def test_on_a_terminal_it_says_that_the_agent_is_away_and_goes_on(terminals: Terminals, place: Place) -> None:
    """What it said last stays meanwhile."""
    ended = await play(terminals, place, columns=80)

    assert "no agent answers at" in ended.out
    assert "This is what it said" in " ".join(re.sub(r"\x1b\[[0-9;]*m", "", ended.out).split())
    shown = "\n".join(screen(ended.out))
    assert "GPU 2 is drained: fan is loud" in shown
    assert "no agent answers" not in shown


async def test_for_programs_each_change_is_a_document(terminals: Terminals, place: Place) -> None:
    """Of the same shape, one a line, with nothing else between; that the agent was away is on standard error."""
    ended = await play(terminals, place, "health", "--json")
    documents = [json.loads(line) for line in ended.out.splitlines()]

    assert all(document["version"] == 1 for document in documents)
    assert documents[-1]["devices"][2]["state"] == "drained"
    assert documents[0]["devices"][2]["state"] == "healthy"
    assert all(one["devices"] != two["devices"] or one["node"] != two["node"] for one, two in pairwise(documents))
    assert "no agent answers at" in ended.err
    assert "The agent answers again." in ended.err


async def test_lines_come_in_blocks(terminals: Terminals, place: Place) -> None:
    """Apart by empty lines."""
    ended = await play(terminals, place)
    blocks = ended.out.split("\n\n")

    assert len(blocks) > 2
    assert all(block.startswith("agent\t") for block in blocks if block)
    assert "\tdrained\tfan is loud\t" in blocks[-2]


async def test_where_no_agent_answers_at_first_it_ends(terminals: Terminals, place: Place) -> None:
    """A mistyped directory is not waited for."""
    ended = await watched(terminals, place, columns=60)

    assert ended.status == 1
    assert ended.err.startswith("Error: no agent answers at")


async def test_a_reader_that_goes_ends_it(terminals: Terminals, place: Place) -> None:
    """As `| head -1` does, without a traceback."""
    async with Kubelet(place.kubelet) as kubelet, place.agent():
        await kubelet.until_capacity(GPU, 4, 4)
        command = f"{sys.executable} -m gpuplane inspect --watch --json --state-dir {place.state} | head -c 10"
        shell = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        watching = asyncio.create_task(shell.communicate())
        for why in ("a", "b", "c", "d"):
            await asyncio.sleep(2)
            await gpuplane("health", "drain", 1, "--why", why, "--state-dir", place.state)
        async with asyncio.timeout(60):
            out, err = await watching

    assert out == b'{"version"'
    assert b"Traceback" not in err
