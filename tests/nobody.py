"""Run a program with no rights: `python nobody.py USER ARGUMENT…` is `python ARGUMENT…` by that user, a number.

Started by root it becomes that user for good, without capabilities, also where that is root. It keeps the right to read
(CAP_DAC_READ_SEARCH), where it has that, for the interpreter that the tests run on may lie where only root can look.
Started by somebody else it changes nothing.
"""

import ctypes
import os
import struct
import sys
from pathlib import Path

NOBODY = 65534
READ = 2
"""CAP_DAC_READ_SEARCH (Linux, include/uapi/linux/capability.h); the numbers of prctl are those of sys/prctl.h."""
VERSION = 0x20080522
PR_SET_KEEPCAPS, PR_SET_SECUREBITS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 8, 28, 47, 2
NO_ROOT = 0b11
"""SECBIT_NOROOT, locked: a program that root runs gets no capabilities for that."""


def become(user: int) -> None:
    """Be that user from now on. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), name)

    kept = _permitted() & 1 << READ
    if user == 0:
        call("prctl", PR_SET_SECUREBITS, NO_ROOT, 0, 0, 0)
    call("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    header, sets = struct.pack("=Ii", VERSION, 0), struct.pack("=6I", kept, kept, kept, 0, 0, 0)
    call("capset", header, sets)
    if kept:
        call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, READ, 0, 0)


def _permitted() -> int:
    """The capabilities that this process may use, a bit each."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("CapPrm:")).split()[1], 16)


if __name__ == "__main__":
    if os.geteuid() == 0:
        become(int(sys.argv[1]))
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
