"""How the GPUs are joined: NVLinks, and the PCIe distance of each to each.

The layout hardly ever changes and costs hundreds of calls, so it is looked at when GPUs appear or MIG is switched, and
once a minute; which NVLinks are active is asked at every thorough look, and the layout again where that has changed. A
GPU that is lost keeps its place in what the others say of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.node.hardware.nvidia.driver.nvml import Subject
from gpuplane.node.model.machine import Link

LAYOUT_INTERVAL = 60.0  # seconds
MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS
DISTANCE_NAMES = {
    0: "PIX",
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}  # nvmlGpuTopologyLevel_t; 0: one board
NVSWITCH_PEER, UNKNOWN_PEER = 2, 0xFF  # nvmlNvLinkDeviceType_t


@dataclass(frozen=True)
class _GpuTopology:
    """How one GPU is joined to others. `active`: the numbers of its NVLinks that are."""

    active: tuple[int, ...]
    links: tuple[Link, ...]
    distances: Mapping[str, str]


class Topology:
    """The layout as last seen."""

    def __init__(self) -> None:
        self._known: dict[str, _GpuTopology] = {}
        self._mig: dict[str, bool] = {}
        self._seen = 0.0

    def observe(self, subjects: Sequence[Subject], switches: Sequence[str], now: float, *, thorough: bool) -> None:
        """Tell the GPUs their links and distances. `now` counts seconds."""
        mig = {s.gpu.uuid: s.gpu.mig_enabled for s in subjects}
        if now - self._seen > LAYOUT_INTERVAL or any(self._mig.get(uuid) != enabled for uuid, enabled in mig.items()):
            self._known, self._mig, self._seen = {}, mig, now
        peers = {s.gpu.pci: s.handle for s in subjects if s.gpu.pci}
        for each in subjects:
            each.contain(lambda subject: self._join(subject, peers, switches, thorough))

    def active(self, uuid: str) -> tuple[int, ...]:
        """The numbers of a GPU's active NVLinks."""
        known = self._known.get(uuid)
        return known.active if known is not None else ()

    def _join(self, subject: Subject, peers: Mapping[str, Any], switches: Sequence[str], thorough: bool) -> None:
        known = self._known.get(subject.gpu.uuid)
        if known is not None and (not thorough or subject.whole(None, _active) == known.active):
            joined = known
        else:
            before = len(subject.faults)
            active = subject.whole((), _active)
            links = subject.whole((), lambda subject: _links(subject, active, switches))
            joined = _GpuTopology(active, links, subject.whole({}, lambda subject: _distances(subject, peers)))
            self._known.pop(subject.gpu.uuid, None)
            if len(subject.faults) == before:
                self._known[subject.gpu.uuid] = joined
        subject.gpu = subject.gpu.but(links=joined.links, distances=joined.distances)


def sysfs_address(pci: Any) -> str:
    """A PCI address of NVML's as sysfs writes it."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _active(subject: Subject) -> tuple[int, ...]:
    """The numbers of the active NVLinks."""
    found = []
    for link in range(MAX_NVLINKS):
        beyond = ("INVALID_ARGUMENT",)
        active = subject.ask(None, "nvmlDeviceGetNvLinkState", subject.handle, link, fine=beyond)
        if active is None:
            break
        if active:
            found.append(link)
    return tuple(found)


def _links(subject: Subject, active: Sequence[int], switches: Sequence[str]) -> tuple[Link, ...]:
    """The active NVLinks, counted by the peer that they lead to."""
    lanes = Counter(peer for link in active if (peer := _peer(subject, link, switches)))
    return tuple(Link(peer=peer, nvlink_count=count) for peer, count in lanes.items())


def _peer(subject: Subject, link: int, switches: Sequence[str]) -> str:
    kind = subject.ask(UNKNOWN_PEER, "nvmlDeviceGetNvLinkRemoteDeviceType", subject.handle, link)
    if kind == NVSWITCH_PEER:
        return "nvswitch"
    pci = subject.ask(None, "nvmlDeviceGetNvLinkRemotePciInfo", subject.handle, link)
    peer = sysfs_address(pci) if pci is not None else ""
    return "nvswitch" if peer in switches else peer


def _distances(subject: Subject, peers: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for pci, handle in peers.items():
        if pci != subject.gpu.pci:
            level = subject.ask(None, "nvmlDeviceGetTopologyCommonAncestor", subject.handle, handle)
            if level in DISTANCE_NAMES:
                found[pci] = DISTANCE_NAMES[level]
    return found
