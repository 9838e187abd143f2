"""Device nodes that have to be there, and to stay: which, and what it costs where they are not.

NVIDIA's driver has nothing in sysfs for its nodes, so nobody makes them when it is loaded: nvidia-modprobe does, when a
program on the host asks for one. Two things come of that:

- A node for which nobody has asked yet is missing. In a container that gets /dev/nvidia-uvm from the host, no CUDA
  program starts without it, and none there can have it made.
- udev makes no link in /dev/char for them. Where containers' cgroups are systemd's, runc names a device by that link
  (libcontainer/cgroups/devices/systemd.go). systemd before 240 passes over one that is not there, and runc 1.1.3 to
  1.1.6 does not even tell it; at systemd's next reload a container that runs loses the device ("NVML: Unknown Error":
  runc#3708 and #3845, nvidia-container-toolkit#48 and #251). Which of them are here is not known, so what is lost is
  said, and is no failure.

A GPU's own node is not made here: one that is missing may have been kept from us, and health says so.
"""

import re
from collections.abc import Mapping

from gpuplane.core.requests import driver_release_reason
from gpuplane.core.text import list_first
from gpuplane.core.view import part_view
from gpuplane.model.machine import DeviceNumbers, Machine
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import State, Status
from gpuplane.model.value import Value

COSTS = {
    "/dev/nvidiactl": "nothing can use the driver",
    "/dev/nvidia-uvm": "no CUDA program starts",
    "/dev/nvidia-uvm-tools": "",
    "/dev/nvidia-modeset": "",
}
"""The control nodes, and what it costs where one is missing; "": nothing that computing needs."""

CAPS = "/dev/nvidia-caps/nvidia-cap"
CAP_COST = "no container can use its MIG device"
LINK_COST = "systemd before 240, or runc 1.1.3 to 1.1.6, takes them from containers that run when systemd is reloaded"
MIG_CONTROL = {1: 0o400, 2: 0o444}
"""Minor → mode of MIG's `config` and `monitor` (/proc/driver/nvidia-caps/mig-minors)."""

NAME = re.compile(
    r"/dev/(nvidia\d+|nvidiactl|nvidia-modeset|nvidia-uvm|nvidia-uvm-tools|nvidia-nvswitch(ctl|\d+)|nvidia-fs\d*|gdrdrv"
    r"|nvidia-caps/nvidia-cap\d+|nvidia-caps-imex-channels/channel\d+)",
    re.ASCII,
)
"""The nodes that neither the kernel nor udev takes care of."""

ADVICE = "nvidia-modprobe -u -c 0 makes nodes, and deploy/udev has the rule that makes links"
SHOWN = 3  # paths in one sentence


class Wish(Value):
    """What /dev has to hold: nodes, and links to nodes.

    `nodes`: path → what it is to be; None where its driver is not loaded. `linked`: those that have to have a link in
    /dev/char, where they are there.
    """

    nodes: Mapping[str, DeviceNumbers | None]
    linked: tuple[str, ...]


class Found(Value):
    """What became of a wish. `hidden`: the host's /dev is not seen from here, and nothing is known of it."""

    hidden: bool = False
    missing: tuple[str, ...] = ()
    unlinked: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()  # are there, with numbers that no driver has now
    made: tuple[str, ...] = ()  # nodes and links
    problem: str = ""  # why the rest could not be made


def wish(snapshot: Snapshot) -> Wish | None:
    """What has to be there; None while too little is known, or the driver is released: it may be being replaced."""
    machine = snapshot.machine
    return None if machine is None or driver_release_reason(snapshot) else _wish.of(snapshot, machine)


@part_view
def _wish(machine: Machine) -> Wish | None:
    numbers = {node: each for node, each in machine.numbers.items() if NAME.fullmatch(node)}
    if machine.gpus == () or not numbers:
        return None
    devices = (device for gpu in machine.gpus or () for device in gpu.mig_devices)
    caps = {node: numbers[node] for device in devices for node in device.nodes if node in numbers}
    control = {
        f"{CAPS}{minor}": DeviceNumbers(each.major, minor, mode)
        for each in list(caps.values())[:1]
        for minor, mode in MIG_CONTROL.items()
    }
    nodes = {node: numbers.get(node) for node, cost in COSTS.items() if cost or node in numbers} | control | caps
    return Wish(nodes=nodes, linked=tuple(numbers | nodes))


def status(found: Found) -> Status:
    """How the nodes stand. What computing does not need is no failure."""
    if found.hidden:
        return Status("ok", "the host's /dev is not seen from here: nothing is known of it")
    costs = list(dict.fromkeys(filter(None, map(_cost, found.missing))))
    said = [
        *([f"missing: {list_first(found.missing, SHOWN)}"] if found.missing else []),
        *costs,
        *([f"no link in /dev/char: {list_first(found.unlinked, SHOWN)}; {LINK_COST}"] if found.unlinked else []),
        *([f"no driver that is loaded has the numbers of {list_first(found.stale, SHOWN)}"] if found.stale else []),
        *([found.problem] if found.problem else []),
        *([f"made here: {list_first(found.made, SHOWN)}"] if found.made else []),
    ]
    if found.missing or found.unlinked or found.stale:
        said.append(ADVICE)
    state: State = "failing" if costs or found.stale else "ok"
    return Status(state, "; ".join(said) or "all are there, and linked")


def _cost(node: str) -> str:
    """What it costs computing that a node is missing; "" for nothing."""
    own = node.startswith(CAPS) and int(node.removeprefix(CAPS)) not in MIG_CONTROL
    return CAP_COST if own else COSTS.get(node, "")
