"""The first signal asks a daemon to end, the second one ends it at once."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

DAEMON = """
import asyncio, signal, sys, time
from gpuplane.service.serving import serve, stop_at_signal

async def work():
    stop = stop_at_signal(*map(signal.Signals, map(int, sys.argv[2:])))
    print("serving", flush=True)
    await stop.wait()
    print("stopping", flush=True)
    if sys.argv[1] == "stuck":
        time.sleep(600)

serve(work())
"""


@contextmanager
def daemon(how: str, *more: signal.Signals, ignored: signal.Signals | None = None) -> Iterator["subprocess.Popen[str]"]:
    """A daemon that serves; one that is `stuck` blocks its event loop when it is asked to end."""

    def ignore() -> None:
        if ignored is not None:
            signal.signal(ignored, signal.SIG_IGN)

    process = subprocess.Popen(
        (sys.executable, "-c", DAEMON, how, *(str(int(each)) for each in more)),
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=ignore,
    )
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == "serving\n"
            yield process
        finally:
            process.kill()


def said(process: "subprocess.Popen[str]") -> str:
    """The next line."""
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_it_to_end(first: signal.Signals) -> None:
    """It ends with 0, as a daemon that did what it was told."""
    with daemon("ready") as process:
        process.send_signal(first)
        assert said(process) == "stopping\n"
        assert process.wait(60) == 0


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_it_at_once(first: signal.Signals, second: signal.Signals) -> None:
    """Even one whose event loop is stuck. It ends by that signal."""
    with daemon("stuck") as process:
        process.send_signal(first)
        assert said(process) == "stopping\n"
        process.send_signal(second)
        assert process.wait(60) == -second


def test_the_first_process_of_a_container_ends_too() -> None:
    """The kernel keeps the system's own action from it, so it ends itself."""
    namespaces = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
    if subprocess.run((*namespaces, "true"), stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine allows no PID namespace")
    inside = DAEMON.replace("time.sleep(600)", "os.kill(1, 15); time.sleep(600)")
    script = inside.replace('print("serving", flush=True)', "asyncio.get_running_loop().call_soon(os.kill, 1, 15)")
    done = subprocess.run(
        (*namespaces, sys.executable, "-c", f"import os\n{script}", "stuck"), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("stopping\n", 128 + signal.SIGTERM)


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    """As by nohup, or for what a script starts in the background."""
    with daemon("ready", signal.SIGHUP, ignored=signal.SIGHUP) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert said(process) == "stopping\n"
        assert process.wait(60) == 0
