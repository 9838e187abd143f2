"""How a daemon runs until a signal, and ends: it waits for no thread.

What may hang is done in threads, as a write to a disk that does not answer. Python waits for each of them, at the end
of the event loop and again at the end of the process. So the process is ended here, as soon as its work has ended:
that has waited for the disk as long as it is worth while.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import NoReturn

log = logging.getLogger("gpuplane")


def serve(work: Coroutine[None, None, None]) -> NoReturn:
    """Run until the work ends, and end the process: 0, the status of a SystemExit, or 1 for whatever else is raised."""
    status = 1
    try:
        asyncio.Runner().run(work)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        log.exception("the program ends because of an internal error")
    finally:
        logging.shutdown()
        with suppress(OSError, ValueError):  # nobody reads them
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def stop_at_signal(*more: signal.Signals) -> asyncio.Event:
    """An event that SIGTERM, SIGINT and the signals of `more` set. The next one of them ends the process at once.

    A signal that was ignored when the program started (nohup, a script's `&`) stays ignored.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    heeded = [each for each in (signal.SIGTERM, signal.SIGINT, *more) if signal.getsignal(each) is not signal.SIG_IGN]

    def ask_to_stop() -> None:
        stop.set()
        for each in heeded:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL if os.getpid() != 1 else _end)

    for each in heeded:
        loop.add_signal_handler(each, ask_to_stop)
    return stop


def _end(number: int, frame: FrameType | None) -> None:
    """The first process of a container has to end itself: the system's own way ends no such process."""
    os._exit(128 + number)
