"""Device nodes that have to exist: which, and what does not work without them.

NVIDIA's driver has no entries in sysfs for its nodes, so nothing creates them when it is loaded: nvidia-modprobe does,
when a program on the host needs one. This has two consequences:

- A node that no program has needed yet is missing. In a container that gets /dev/nvidia-uvm from the host, no CUDA
  program starts without it, and no program there can create it.
- udev creates no link in /dev/char for them. If systemd manages the containers' cgroups, runc names a device by that
  link (libcontainer/cgroups/devices/systemd.go). systemd before 240 ignores a missing link, and runc 1.1.3 to 1.1.6
  does not even pass it on; at systemd's next reload a running container loses the device ("NVML: Unknown Error":
  runc#3708 and #3845, nvidia-container-toolkit#48 and #251). Which versions are here is not known, so a missing link is
  reported, but is not a failure.

A GPU's own node is not created here: if it is missing, it may have been withheld from us, and health reports it.
"""

import re
from collections.abc import Mapping

from gpuplane.base.text import join_first_names
from gpuplane.base.value import Value
from gpuplane.node.core.requests import driver_release_reason
from gpuplane.node.core.view import part_view
from gpuplane.node.model.machine import DeviceNodeStat, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import PartState, Status

EFFECT_BY_MISSING_CONTROL_NODE = {
    "/dev/nvidiactl": "nothing can use the driver",
    "/dev/nvidia-uvm": "no CUDA program starts",
    "/dev/nvidia-uvm-tools": "",
    "/dev/nvidia-modeset": "",
}
"""Control node → what does not work without it; "": nothing that CUDA needs."""

CAPABILITY_PREFIX = "/dev/nvidia-caps/nvidia-cap"
MISSING_CAPABILITY_EFFECT = "no container can use the MIG device of a missing device node"
MISSING_LINK_EFFECT = (
    "systemd before 240, or runc 1.1.3 to 1.1.6, removes devices without a link from running containers when "
    "systemd is reloaded"
)
MIG_CONTROL_MODES = {1: 0o400, 2: 0o444}
"""Minor → mode of MIG's `config` and `monitor` (/proc/driver/nvidia-caps/mig-minors)."""

MANAGED_NODE = re.compile(
    r"/dev/(nvidia\d+|nvidiactl|nvidia-modeset|nvidia-uvm|nvidia-uvm-tools|nvidia-nvswitch(ctl|\d+)|nvidia-fs\d*|gdrdrv"
    r"|nvidia-caps/nvidia-cap\d+|nvidia-caps-imex-channels/channel\d+)",
    re.ASCII,
)
"""The nodes that neither the kernel nor udev creates."""

ADVICE = "nvidia-modprobe -u -c 0 creates nodes, and the rule in deploy/udev creates links"
MAX_PATHS_LISTED = 3  # paths in one sentence


class DesiredNodes(Value):
    """The nodes and links that /dev should have.

    `nodes`: path → its numbers; None if its driver is not loaded. `linked_nodes`: nodes that need a link in /dev/char
    if they exist.
    """

    nodes: Mapping[str, DeviceNodeStat | None]
    linked_nodes: tuple[str, ...]


class DeviceNodeReconcileResult(Value):
    """The result of a reconciliation. `is_hidden`: the host's /dev is not visible here, so nothing is known of it."""

    is_hidden: bool = False
    missing: tuple[str, ...] = ()
    without_char_link: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()  # exist with numbers that no loaded driver has
    created: tuple[str, ...] = ()  # nodes and links
    problem: str = ""  # why the rest could not be created


def desired_nodes(snapshot: Snapshot) -> DesiredNodes | None:
    """What has to be there; None while too little is known, or the driver is released: it may be being replaced."""
    machine = snapshot.machine
    return None if machine is None or driver_release_reason(snapshot) else _nodes_of_machine.of(snapshot, machine)


@part_view
def _nodes_of_machine(machine: Machine) -> DesiredNodes | None:
    numbers = {node: each for node, each in machine.device_node_stats.items() if MANAGED_NODE.fullmatch(node)}
    if machine.gpus == () or not numbers:
        return None
    devices = (device for gpu in machine.gpus or () for device in gpu.mig_devices)
    caps = {node: numbers[node] for device in devices for node in device.device_nodes if node in numbers}
    control = {
        f"{CAPABILITY_PREFIX}{minor}": DeviceNodeStat(each.major, minor, mode)
        for each in list(caps.values())[:1]
        for minor, mode in MIG_CONTROL_MODES.items()
    }
    nodes = (
        {
            node: numbers.get(node)
            for node, effect in EFFECT_BY_MISSING_CONTROL_NODE.items()
            if effect or node in numbers
        }
        | control
        | caps
    )
    return DesiredNodes(nodes=nodes, linked_nodes=tuple(numbers | nodes))


def nodes_status(result: DeviceNodeReconcileResult) -> Status:
    """The status of the nodes. A missing node that CUDA does not need is not a failure."""
    if result.is_hidden:
        return Status("ok", "the host's /dev is not visible here, so the agent cannot check it")
    effects = list(dict.fromkeys(filter(None, map(_effect_if_missing, result.missing))))
    said = [
        *([f"missing: {join_first_names(result.missing, MAX_PATHS_LISTED)}"] if result.missing else []),
        *effects,
        *(
            [
                f"no link in /dev/char: {join_first_names(result.without_char_link, MAX_PATHS_LISTED)}; "
                f"{MISSING_LINK_EFFECT}"
            ]
            if result.without_char_link
            else []
        ),
        *(
            [f"no loaded driver uses the device numbers of {join_first_names(result.stale, MAX_PATHS_LISTED)}"]
            if result.stale
            else []
        ),
        *([result.problem] if result.problem else []),
        *([f"created by the agent: {join_first_names(result.created, MAX_PATHS_LISTED)}"] if result.created else []),
    ]
    if result.missing or result.without_char_link or result.stale:
        said.append(ADVICE)
    state: PartState = "failing" if effects or result.stale else "ok"
    return Status(state, "; ".join(said) or "all nodes and links exist")


def _effect_if_missing(node: str) -> str:
    """What does not work in CUDA without a node; "" for nothing."""
    is_capability = (
        node.startswith(CAPABILITY_PREFIX) and int(node.removeprefix(CAPABILITY_PREFIX)) not in MIG_CONTROL_MODES
    )
    return MISSING_CAPABILITY_EFFECT if is_capability else EFFECT_BY_MISSING_CONTROL_NODE.get(node, "")
