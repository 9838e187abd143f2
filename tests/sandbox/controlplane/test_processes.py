"""Programs that run beside us: they end with us, and nobody waits for them in vain."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuplane.sandbox.controlplane import processes
from gpuplane.sandbox.controlplane.processes import start_child
from tests.sandbox.controlplane.pids import gone


async def test_what_it_says_is_in_its_log(tmp_path: Path) -> None:
    """Both streams, after what was there; in the environment and directory that it was given."""
    log = tmp_path / "log"
    log.write_text("before\n")
    words = 'echo "$NAME"; pwd >&2; cat'
    child = await start_child(["sh", "-c", words], log=log, environment={"NAME": "a"}, directory=Path("/"))

    assert await child.wait() == 0
    assert log.read_text() == "before\na\n/\n"


async def test_its_log_is_ours_alone_and_begins_anew_when_it_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before stays beside it."""
    monkeypatch.setattr(processes, "MAX_LOG_BYTES", 5)
    log = tmp_path / "log"
    for word in ("first", "second", "third"):
        await (await start_child(["echo", word], log=log)).wait()

    assert (log.read_text(), (tmp_path / "log.old").read_text()) == ("third\n", "second\n")
    assert log.stat().st_mode & 0o777 == 0o600


async def test_its_status_is_that_of_the_program(tmp_path: Path) -> None:
    """Also of one that a signal has ended."""
    failing = await start_child(["sh", "-c", "exit 3"], log=tmp_path / "log")
    killed = await start_child(["sleep", "60"], log=tmp_path / "log")
    assert killed.status is None
    killed.signal(signal.SIGUSR1)

    assert await failing.wait() == 3
    assert await killed.wait() == -signal.SIGUSR1
    killed.signal(signal.SIGTERM)  # it may have another's number by now
    killed.kill()


async def test_one_that_heeds_no_sigterm_is_killed(tmp_path: Path) -> None:
    """After its time."""
    log = tmp_path / "log"
    child = await start_child(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"], log=log)
    while "ready" not in log.read_text():
        os.sched_yield()
    await child.stop(0.1)

    assert child.status == -signal.SIGKILL


async def test_what_it_has_started_ends_with_it(tmp_path: Path) -> None:
    """As in a container, whether it ends by itself or is ended."""
    for ending in ("", "; wait"):
        log = tmp_path / f"log{len(ending)}"
        child = await start_child(["sh", "-c", f"sleep 60 & echo $!{ending}"], log=log)
        while not log.read_text().endswith("\n"):
            os.sched_yield()
        if ending:
            await child.stop()

        await child.wait()
        await gone(int(log.read_text()))


@pytest.mark.parametrize("program", ["/none", "none", "/etc/passwd"])
async def test_what_cannot_be_started_is_an_error(tmp_path: Path, program: str) -> None:
    """With its path."""
    with pytest.raises(OSError, match=program):
        await start_child([program], log=tmp_path / "log")


async def test_no_thread_waits_for_a_child(tmp_path: Path) -> None:
    """asyncio of Python 3.11 starts one for each."""
    before = threading.active_count()
    child = await start_child(["sleep", "60"], log=tmp_path / "log")

    assert threading.active_count() <= before
    await child.stop()


async def test_it_ends_with_us_even_by_sigkill(tmp_path: Path) -> None:
    """And so does one that was started a moment ago."""
    code = (
        "import asyncio, os, sys, signal; from pathlib import Path; "
        "from gpuplane.sandbox.controlplane.processes import start_child\n"
        "async def main():\n"
        "    for _ in range(8): print((await start_child(['sleep', '60'], log=Path(sys.argv[1]))).pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    done = await asyncio.create_subprocess_exec(sys.executable, "-c", code, tmp_path / "log", stdout=subprocess.PIPE)
    said, _ = await done.communicate()

    assert done.returncode == -signal.SIGKILL
    for pid in map(int, said.split()):
        await gone(pid)
