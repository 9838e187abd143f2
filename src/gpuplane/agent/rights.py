"""What an agent needs the right to, and what it says at its start where it has not.

Without kubelet's directory and its own it is of no use, and whoever started it is told so at once. Without the rest it
serves: that is said once, with what it costs. One that may use all that it was told to says nothing, whoever runs it.
"""

import os
from collections.abc import Iterator

from gpuplane.agent.parts import Options
from gpuplane.host.rights import closed, unwritable, who
from gpuplane.kubelet.podresources import SOCKET


def useless(options: Options) -> str:
    """Why it makes no sense to run; "" if it does."""
    if not (refused := "; ".join(_needed(options))):
        return ""
    return f"as {who()} the agent may not {refused}. Run it as root, or give it directories that it may write to"


def lacks(options: Options) -> str:
    """What it does without, and what that costs; "" if nothing."""
    if not (refused := "; ".join(_used(options))):
        return ""
    return f"as {who()} the agent may not {refused}. Run it as root, or say what it shall use instead, or nothing"


def _needed(options: Options) -> Iterator[str]:
    needed = [("keep what it promises in", options.state_dir, "--state-dir")]
    if options.registers:
        needed.insert(0, ("meet kubelet in", options.plugins, "--kubelet-root"))
    for what, folder, option in needed:
        if (by := unwritable(folder)) is not None:
            at = "" if by == folder else f", for {by} is closed to it"
            yield f"{what} {folder} ({option}){at}"


def _used(options: Options) -> Iterator[str]:
    socket = options.kubelet_root / SOCKET
    if closed(socket, os.W_OK):
        yield f"connect to {socket}: what containers hold is not known, and nothing is offered"
    if options.cdi_dir is not None and unwritable(options.cdi_dir) is not None:
        yield f"write to {options.cdi_dir} (--cdi-dir): no CDI specifications are kept"
    if options.kernel_log is not None and closed(options.kernel_log, os.R_OK):
        yield f"read {options.kernel_log} (--kernel-log): what befell GPUs while no agent ran is not known"
