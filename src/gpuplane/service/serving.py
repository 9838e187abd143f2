"""How a command that serves until a signal ends: it waits for no thread.

What may hang is done in threads, as a write to a disk that does not answer. Python waits for each of them, at the end
of the event loop and again at the end of the process. So the process is ended here, as soon as its work has ended:
that has waited for the disk as long as it is worth while.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import NoReturn

log = logging.getLogger("gpuplane")


def serve(work: Coroutine[None, None, None]) -> NoReturn:
    """Run until the work ends, and end the process: 0, or 1 where the work has raised."""
    status = 1
    try:
        asyncio.Runner().run(work)
        status = 0
    except BaseException:
        log.exception("the program ends because of an internal error")
    finally:
        logging.shutdown()
        with suppress(OSError, ValueError):  # nobody reads them
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
