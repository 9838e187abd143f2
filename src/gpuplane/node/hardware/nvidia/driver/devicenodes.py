"""Device nodes: which there are, and what numbers they have, or would have if they were there.

The kernel gives drivers major numbers, and tells them in /proc/devices; minor numbers are the drivers' own rules. What
stands in /dev is asked first: there somebody may have set who may use it. What is not there, and belongs to a driver
that is loaded, has the numbers that these rules give.

What somebody else than root could have put there is not there: by a link to another node a container would get that.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuplane.node.hardware.nvidia.driver.tree import Tree
from gpuplane.node.model.machine import DeviceNodeStat, Gpu

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
IMEX_CHANNELS_FOLDER = "/dev/nvidia-caps-imex-channels"
CAPS_FOLDER = "/dev/nvidia-caps"
CHAR_LINKS_FOLDER = "/dev/char"
GPU_NODE_PATTERNS = (
    ("/dev", re.compile(r"nvidia\d+")),
    (CAPS_FOLDER, re.compile(r"nvidia-cap\d+")),
    ("/dev/dri", re.compile(r"(card|renderD)\d+")),
)
FEATURE_NODE_PATTERNS = (  # folder, pattern of a name
    ("/dev", re.compile(r"nvidia-nvswitch(ctl|\d+)")),
    (CAPS_FOLDER, re.compile(r"nvidia-cap[12]")),  # `config` and `monitor` of MIG (/proc/driver/nvidia-caps/mig-minors)
    ("/dev", re.compile(r"nvidia-fs\d*")),
    ("/dev", re.compile(r"gdrdrv")),
    ("/dev/infiniband", re.compile(r"uverbs\d+")),
    ("/dev/infiniband", re.compile(r"rdma_cm")),
    (IMEX_CHANNELS_FOLDER, re.compile(r"channel\d+")),
)


class NumberRule(NamedTuple):
    """Whose nodes they are, by names of /proc/devices, the first that is there; and their minor number.

    That is `minor`, added to the number in the path if it has one. `mode`: who may use it, if nobody decides otherwise.
    """

    path: re.Pattern[str]
    drivers: tuple[str, ...]
    minor: int = 0
    mode: int = 0o666


NUMBER_RULES = tuple(
    NumberRule(re.compile(path), tuple(drivers.split()), *numbers)
    for path, drivers, *numbers in (
        # drivers before 550 have one name for all three (NVIDIA/open-gpu-kernel-modules, kernel-open/common/inc)
        (r"/dev/nvidia(\d+)", "nvidia nvidia-frontend", 0),
        (r"/dev/nvidiactl", "nvidiactl nvidia nvidia-frontend", 255),
        (r"/dev/nvidia-modeset", "nvidia-modeset nvidia-frontend", 254),
        (r"/dev/nvidia-uvm", "nvidia-uvm", 0),
        (r"/dev/nvidia-uvm-tools", "nvidia-uvm", 1),
        # nvidia-modprobe takes the modes from /proc/driver/nvidia/capabilities; 1 is MIG's `config`
        (rf"{CAPS_FOLDER}/nvidia-cap(?=1$)(\d+)", "nvidia-caps", 0, 0o400),
        (rf"{CAPS_FOLDER}/nvidia-cap(\d+)", "nvidia-caps", 0, 0o444),
        (rf"{IMEX_CHANNELS_FOLDER}/channel(\d+)", "nvidia-caps-imex-channels", 0),
        (r"/dev/nvidia-nvswitch(\d+)", "nvidia-nvswitch", 0),
        (r"/dev/nvidia-nvswitchctl", "nvidia-nvswitch", 255),
        (r"/dev/nvidia-fs(\d*)", "nvidia-fs", 0),
        (r"/dev/gdrdrv", "gdrdrv", 0),
        (r"/dev/infiniband/uverbs(\d+)", "infiniband_verbs", 192),
        (r"/dev/dri/(?:card|renderD)(\d+)", "drm", 0),
    )
)
DRIVER_NAMES = tuple(dict.fromkeys(name for rule in NUMBER_RULES for name in rule.drivers))


def expected_node_stat(node: str, majors: Mapping[str, int]) -> DeviceNodeStat | None:
    """The numbers that a node has by its driver's rule; None where there is no rule, or the driver is not loaded.

    `majors`: those of the names in /proc/devices.
    """
    for rule in NUMBER_RULES:
        if match := rule.path.fullmatch(node):
            major = next((majors[name] for name in rule.drivers if name in majors), None)
            own = int((match.groups() or ("0",))[0] or 0)
            return None if major is None else DeviceNodeStat(major=major, minor=rule.minor + own, mode=rule.mode)
    return None


def parse_major_numbers(text: str) -> dict[str, int]:
    """Name → major number of the character devices in the text of /proc/devices."""
    character = text.partition("Block devices:")[0]
    return {name: int(number) for number, name in re.findall(r"^\s*(\d+)\s+(\S+)\s*$", character, re.M)}


def nodes_of_gpus(gpus: Iterable[Gpu]) -> Iterator[str]:
    """The nodes of GPUs and of their MIG devices."""
    for gpu in gpus:
        yield from (*gpu.device_nodes, *gpu.dri)
        for device in gpu.mig_devices:
            yield from device.device_nodes


class DeviceNodes:
    """The nodes under the first of some roots where the driver's are; where none has any, under the last."""

    def __init__(self, *roots: str) -> None:
        self._roots = tuple(dict.fromkeys(roots))

    def exists(self, node: str) -> bool:
        """Whether a node is there."""
        return _is_there(self._tree(), node)

    def there(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Those of these nodes that are there."""
        tree = self._tree()
        return tuple(node for node in nodes if _is_there(tree, node))

    def shared(self) -> tuple[str, ...]:
        """The nodes that are there and no one GPU's: control nodes, those of features, IMEX channels."""
        tree = self._tree()
        return tuple(node for node in (*CONTROL_NODES, *_named(tree, FEATURE_NODE_PATTERNS)) if _is_there(tree, node))

    def left(self) -> dict[str, str]:
        """The nodes that stand there and count as missing, for somebody else could have put them there: node → why."""
        tree = self._tree()
        found = dict.fromkeys((*CONTROL_NODES, *_named(tree, (*FEATURE_NODE_PATTERNS, *GPU_NODE_PATTERNS))))
        return {node: why for node in found if tree.stat(node) is not None and (why := tree.untrusted_reason(node))}

    def absence(self, node: str) -> str:
        """Why a node is not there, in words that go on after its path."""
        tree = self._tree()
        why = tree.untrusted_reason(node) if tree.stat(node) is not None else ""
        return f"is left out: {why}" if why else "does not exist"

    def numbers(self, nodes: Iterable[str], majors: Mapping[str, int]) -> dict[str, DeviceNodeStat]:
        """Of these nodes and the control nodes, the numbers of each that has some."""
        tree, links = self._tree(), self._links()
        told = {
            node: self._stated(tree, node) or expected_node_stat(node, majors)
            for node in dict.fromkeys((*CONTROL_NODES, *nodes))
        }
        return {
            node: each.but(has_char_link=f"{each.major}:{each.minor}" in links)
            for node, each in told.items()
            if each is not None
        }

    def _stated(self, tree: Tree, node: str) -> DeviceNodeStat | None:
        """What the node itself says; None where none is there."""
        found = tree.stat(node)
        if found is None or not stat.S_ISCHR(found.st_mode) or tree.untrusted_reason(node):
            return None
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        return DeviceNodeStat(major=major, minor=minor, mode=stat.S_IMODE(found.st_mode), gid=found.st_gid)

    def _tree(self) -> Tree:
        """A driver's container may have the nodes in a /dev of its own."""
        trees = [Tree(root) for root in self._roots]
        return next((tree for tree in trees if _is_there(tree, CONTROL_NODES[0])), trees[-1])

    def _links(self) -> set[str]:
        """systemd looks for them in the host's /dev, wherever the nodes are."""
        return {name for root in self._roots for name in Tree(root).names(CHAR_LINKS_FOLDER)}


def _is_there(tree: Tree, node: str) -> bool:
    return tree.stat(node) is not None and not tree.untrusted_reason(node)


def _named(tree: Tree, kinds: Iterable[tuple[str, re.Pattern[str]]]) -> Iterator[str]:
    """The nodes of these kinds, each a folder and a pattern of names."""
    return (node for folder, name in kinds for node in _matching(tree, folder, name))


def _matching(tree: Tree, folder: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """The nodes in a folder whose names match, in the order of their numbers."""
    names = [name for name in tree.names(folder) if pattern.fullmatch(name)]
    return (f"{folder}/{name}" for name in sorted(names, key=_natural))


def _natural(name: str) -> tuple[str, int]:
    number = re.search(r"\d*$", name)
    digits = number[0] if number else ""
    return name.removesuffix(digits), int(digits or -1)
