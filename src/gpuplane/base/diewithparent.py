"""Becomes another program, which the kernel ends as soon as whoever started it has ended.

    python diewithparent.py PARENT PROGRAM ARGUMENT…

It is run by its path and imports nothing of ours. `PARENT` is the process that starts it, which may have ended before
the kernel was told. (A `preexec_fn` would do the same in a fork of the agent, amid its threads.)
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(command: list[str]) -> list[str]:
    """The command line of a program, given by its path, that ends with us, even by SIGKILL.

    For the kernel "us" is the thread that starts it (prctl(2), PR_SET_PDEATHSIG): let it be one that stays.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    """Never returns."""
    import ctypes

    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that started this has ended")
    try:
        os.execv(command[0], command)  # noqa: S606 (no shell is wanted)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
