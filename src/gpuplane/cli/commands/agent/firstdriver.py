"""The first of the driver's processes, started before the agent imports what it needs itself.

It imports meanwhile, and then waits for its options (`node/hardware/nvidia/driver`): before those come it touches no
driver and no device node. If they never come, because the arguments are wrong or the driver is released, it ends with
the agent.
"""

import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise

DRIVER_COMMAND = (  # that of `node/hardware/nvidia/driverprocess.py`, without what is imported there
    sys.executable,
    "-P",
    "-m",
    "gpuplane.node.hardware.nvidia.driver",
)


def start(arguments: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket] | None:
    """The process and the socket that it waits at; None where it is not needed, or cannot be started."""
    if any(each.startswith(("--machine", "-h", "--help", "-V", "--version")) for each in arguments) and not _is_nvml(
        arguments
    ):
        return None
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                DRIVER_COMMAND, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            ours.close()
            return None
    return process, ours


def _is_nvml(arguments: Sequence[str]) -> bool:
    return "--machine=nvml" in arguments or ("--machine", "nvml") in pairwise(arguments)
