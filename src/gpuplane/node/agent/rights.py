"""Which files and sockets the agent needs access to, and what it reports at its start if it has none.

Without kubelet's directory and its own it is of no use, and whoever started it is told so at once. Without the rest it
serves: that is said once, with what it costs. One that may use all that it was told to says nothing, whoever runs it.
"""

import os
from collections.abc import Iterator

from gpuplane.node.agent.options import Options
from gpuplane.node.host.rights import is_inaccessible, process_identity, unwritable_directory
from gpuplane.node.kubelet.podresources import SOCKET


def useless(options: Options) -> str:
    """Why the agent cannot run; "" if it can."""
    if not (refused := "; ".join(_needed(options))):
        return ""
    return (
        f"the agent runs as {process_identity()} and has no permission to {refused}. "
        "Run it as root, or use directories that it can write to"
    )


def lacks(options: Options) -> str:
    """What the agent cannot access and what it therefore does not do; "" for nothing."""
    if not (refused := "; ".join(_used(options))):
        return ""
    return (
        f"the agent runs as {process_identity()} and has no permission to {refused}. "
        "Run it as root, or change these options"
    )


def _needed(options: Options) -> Iterator[str]:
    needed = [("store its state in", options.state_dir, "--state-dir")]
    if options.registers:
        needed.insert(0, ("create sockets for kubelet in", options.plugins, "--kubelet-root"))
    for what, folder, option in needed:
        if (by := unwritable_directory(folder)) is not None:
            at = "" if by == folder else f", because it has no access to {by}"
            yield f"{what} {folder} ({option}){at}"


def _used(options: Options) -> Iterator[str]:
    socket = options.kubelet_root / SOCKET
    if is_inaccessible(socket, os.W_OK):
        yield f"connect to {socket}: the agent offers no devices until it knows the containers' allocations"
    if options.cdi_dir is not None and unwritable_directory(options.cdi_dir) is not None:
        yield f"write to {options.cdi_dir} (--cdi-dir): no CDI specifications are written"
    if options.kernel_log is not None and is_inaccessible(options.kernel_log, os.R_OK):
        yield f"read {options.kernel_log} (--kernel-log): the agent cannot see GPU faults from before its start"
