"""Commands that are ended by a signal: nothing is left behind, and the exit status is 128 + its number."""

import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, Signals
from typing import Any

import psutil
import pytest

DEADLINE = 120.0
"""Seconds for anything that comes at once where nothing else runs."""
DEMO = ("demo",)
GENERATE = ("cdi", "generate", "--machine", "dgx-a100", "--output")


class Run:
    """A command, with a directory for whatever is temporary."""

    def __init__(self, place: Path, *words: str, program: Sequence[str] = ("-m", "gpuplane"), stdout: int = -1) -> None:
        self.temporary, self.printed = place / "t", place / "printed"
        self.temporary.mkdir(mode=0o700)
        with self.printed.open("wb") as output:
            self.process = psutil.Popen(
                [sys.executable, *program, *words],
                stdin=subprocess.DEVNULL,
                stdout=output if stdout < 0 else stdout,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                start_new_session=True,
            )
        self.seen = set[psutil.Process]()

    def look(self) -> None:
        """Remember the processes below it."""
        with suppress(psutil.NoSuchProcess):
            self.seen |= set(self.process.children(recursive=True))

    def until(self, ready: Callable[["Run"], bool]) -> None:
        """Wait for a moment in its life."""

        def come() -> bool:
            self.look()
            return ready(self) or self.process.poll() is not None

        wait(come)
        assert self.process.poll() is None, self.output()

    def output(self) -> str:
        return self.printed.read_text()

    def ended(self) -> int:
        """The exit status as a shell has it, once it has ended and with it every process that it started."""
        status: int = self.process.wait(DEADLINE)
        wait(lambda: not any(alive(each) for each in self.seen))
        return status if status >= 0 else 128 - status


def wait(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + DEADLINE
    while not ready():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def begun(run: Run) -> bool:
    """The interpreter runs, and reads the program."""
    return True


def directory(run: Run) -> bool:
    """Its directory has just been made."""
    return any(run.temporary.iterdir())


def agent(run: Run) -> bool:
    """An agent has been started, and has not said anything yet."""
    return bool(run.seen)


def serving(run: Run) -> bool:
    """Its agent has written down what it knows."""
    return any(run.temporary.glob("*/s*/health.json"))


def playing(run: Run) -> bool:
    """It is in the midst of it."""
    return "Another pod comes" in run.output()


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory with a short path: there are sockets below it."""
    with tempfile.TemporaryDirectory(prefix="e-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def runs(root: Path) -> Iterator[Callable[..., Run]]:
    """Starts commands; what is left of them at the end is killed."""
    started: list[Run] = []

    def start(*words: str, **how: Any) -> Run:
        started.append(Run(root, *words, **how))
        return started[-1]

    yield start
    for run in started:
        run.look()
        for each in (run.process, *run.seen):
            if alive(each):
                each.kill()
        run.process.wait()


@pytest.mark.parametrize(
    ("moment", "number"),
    [(begun, SIGTERM), (directory, SIGTERM), (agent, SIGHUP), (serving, SIGTERM), (playing, SIGINT)],
    ids=lambda each: each.__name__ if callable(each) else each.name,
)
def test_nothing_is_left_behind(runs: Callable[..., Run], moment: Callable[[Run], bool], number: Signals) -> None:
    """At any moment."""
    run = runs(*DEMO)
    run.until(moment)
    run.process.send_signal(number)

    assert run.ended() == 128 + number, run.output()
    assert [*run.temporary.iterdir()] == []
    assert "Traceback" not in run.output()


def test_the_second_ctrl_c_ends_it_at_once(runs: Callable[..., Run]) -> None:
    """And takes away the same."""
    run = runs(*DEMO)
    run.until(serving)
    run.process.send_signal(SIGINT)
    run.process.send_signal(SIGINT)

    assert run.ended() == 130
    assert [*run.temporary.iterdir()] == []


STUCK = """
import asyncio, sys
from gpuplane.cli.kit import signals
async def work():
    try:
        print("at work", flush=True)
        await asyncio.sleep(1000)
    finally:
        print("ending", flush=True)
        {end}
signals.raise_on_signals()
signals.run(work(), lambda: print("abandoned", flush=True))
"""


@pytest.mark.parametrize("end", ["await asyncio.sleep(1000)", "[None for _ in iter(int, 1)]"], ids=["waits", "loops"])
def test_what_hangs_as_it_ends_is_ended_by_the_next_signal(runs: Callable[..., Run], end: str) -> None:
    run = runs(program=("-c", STUCK.format(end=end)))
    run.until(lambda run: "at work" in run.output())
    run.process.terminate()
    run.until(lambda run: "ending" in run.output())
    run.process.send_signal(SIGINT)

    assert run.ended() == 130
    assert run.output() == "at work\nending\nabandoned\n"


UNNOTICED = """
import asyncio, signal, threading, time
from gpuplane.cli.kit import signals
def speak():
    time.sleep(0.5)
    print("at work", flush=True)
    time.sleep(1000)
async def work():
    threading.Thread(target=speak, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING_SIGNALS)  # so that it comes to the other thread
    await asyncio.sleep(1000)
signals.raise_on_signals()
signals.run(work())
"""


def test_a_signal_that_interrupts_no_waiting_is_heeded(runs: Callable[..., Run]) -> None:
    """It comes right before the event loop waits, or to another thread: that ends the waiting all the same."""
    run = runs(program=("-c", UNNOTICED))
    run.until(lambda run: "at work" in run.output())
    run.process.terminate()

    assert run.ended() == 128 + SIGTERM


def test_a_signal_that_is_ignored_from_the_start_stays_so(runs: Callable[..., Run]) -> None:
    """As nohup has it."""
    ignoring = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{STUCK.format(end='pass')}"
    run = runs(program=("-c", ignoring))
    run.until(lambda run: "at work" in run.output())
    run.process.send_signal(SIGHUP)
    run.process.send_signal(SIGTERM)

    assert run.ended() == 128 + SIGTERM


def hang_up(run: Run, terminal: int) -> None:
    """Close its terminal. It is told before it can find that out by itself, as the kernel tells it."""
    run.process.suspend()
    wait(lambda: run.process.status() == psutil.STATUS_STOPPED)
    os.close(terminal)
    run.process.send_signal(SIGHUP)
    run.process.resume()


def test_a_terminal_that_is_closed_ends_it(runs: Callable[..., Run]) -> None:
    """Nothing can be printed any more, and nothing is left behind."""
    ours, theirs = pty.openpty()
    run = runs(*DEMO, stdout=theirs)
    os.close(theirs)
    run.until(agent)
    hang_up(run, ours)

    assert run.ended() == 128 + SIGHUP
    assert [*run.temporary.iterdir()] == []


def test_a_kubelet_whose_terminal_is_closed_takes_its_sockets_along(runs: Callable[..., Run], root: Path) -> None:
    """It ends as it does by any signal, though nothing can be said any more."""
    ours, theirs = pty.openpty()
    run = runs("sandbox", "kubelet", "--root", str(root / "k"), "--no-input", stdout=theirs)
    os.close(theirs)
    run.until(lambda run: (root / "k/device-plugins/kubelet.sock").exists())
    assert b"kubelet serves" in os.read(ours, 1 << 12)
    hang_up(run, ours)

    assert run.ended() == 0
    assert [*root.glob("k/*/*.sock")] == []


@pytest.mark.parametrize("delay", [0.0, 0.3, 0.6, 0.8, 1.0, 1.3])
def test_a_file_is_written_or_not(runs: Callable[..., Run], root: Path, delay: float) -> None:
    """And its copy aside is not left there."""
    written = root / "cdi/nvidia.yaml"
    run = runs(*GENERATE, str(written))
    time.sleep(delay)
    run.process.terminate()

    assert run.ended() in (0, 128 + SIGTERM)
    assert [path.name for path in written.parent.glob("*")] in ([], [written.name])
