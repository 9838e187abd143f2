"""`gpuplane`, and `python -m gpuplane`.

Until a command heeds signals itself (`cli/kit/signals.py`) they end the process at once: nothing is made yet. Python
would raise KeyboardInterrupt in the midst of an import, and show where.
"""

import _signal as signal  # type: ignore[import-not-found]  # the usual name imports much more, which takes time
import os


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container, which a signal does not end


for _each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_each) != signal.SIG_IGN:
        signal.signal(_each, _end)

from gpuplane.cli import main  # noqa: E402 (first of all, what a signal does)

if __name__ == "__main__":
    main()
