"""How the GPUs are joined: NVLinks, and the PCIe distance of each to each.

The layout hardly ever changes and costs hundreds of calls, so it is looked at when GPUs appear or MIG is switched, and
once a minute. A GPU that is lost keeps its place in what the others say of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpuplane.hardware.driver.nvml import Subject
from gpuplane.model.machine import Link

AGAIN = 60.0  # seconds
LINKS = 36  # NVML_NVLINK_MAX_LINKS
DISTANCES = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}  # nvmlGpuTopologyLevel_t; 0: one board
SWITCH, UNKNOWN = 2, 0xFF  # nvmlNvLinkDeviceType_t

Joined = tuple[tuple[Link, ...], Mapping[str, str]]


class Fabric:
    """The layout as last seen."""

    def __init__(self) -> None:
        self._known: dict[str, Joined] = {}
        self._mig: dict[str, bool] = {}
        self._seen = 0.0

    def look(self, subjects: Sequence[Subject], switches: Sequence[str], now: float) -> None:
        """Tell the GPUs their links and distances. `now` counts seconds."""
        mig = {s.gpu.uuid: s.gpu.mig is not None and s.gpu.mig.enabled for s in subjects}
        if now - self._seen > AGAIN or any(self._mig.get(uuid) != enabled for uuid, enabled in mig.items()):
            self._known, self._mig, self._seen = {}, mig, now
        peers = {s.gpu.pci: s.handle for s in subjects if s.gpu.pci}
        for each in subjects:
            each.contain(lambda subject: self._join(subject, peers, switches))

    def _join(self, subject: Subject, peers: Mapping[str, Any], switches: Sequence[str]) -> None:
        joined = self._known.get(subject.gpu.uuid)
        if joined is None:
            before = len(subject.faults)
            links = subject.whole((), lambda subject: _links(subject, switches))
            joined = links, subject.whole({}, lambda subject: _distances(subject, peers))
            if len(subject.faults) == before:
                self._known[subject.gpu.uuid] = joined
        subject.gpu = subject.gpu.but(links=joined[0], distances=joined[1])


def address(pci: Any) -> str:
    """A PCI address of NVML's as sysfs writes it."""
    return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"


def _links(subject: Subject, switches: Sequence[str]) -> tuple[Link, ...]:
    """The active NVLinks, counted by the peer that they lead to."""
    lanes = Counter[str]()
    for link in range(LINKS):
        beyond = ("INVALID_ARGUMENT",)
        active = subject.ask(None, "nvmlDeviceGetNvLinkState", subject.handle, link, fine=beyond)
        if active is None:
            break
        if active and (peer := _peer(subject, link, switches)):
            lanes[peer] += 1
    return tuple(Link(peer=peer, lanes=count) for peer, count in lanes.items())


def _peer(subject: Subject, link: int, switches: Sequence[str]) -> str:
    kind = subject.ask(UNKNOWN, "nvmlDeviceGetNvLinkRemoteDeviceType", subject.handle, link)
    if kind == SWITCH:
        return "nvswitch"
    pci = subject.ask(None, "nvmlDeviceGetNvLinkRemotePciInfo", subject.handle, link)
    peer = address(pci) if pci is not None else ""
    return "nvswitch" if peer in switches else peer


def _distances(subject: Subject, peers: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for pci, handle in peers.items():
        if pci != subject.gpu.pci:
            level = subject.ask(None, "nvmlDeviceGetTopologyCommonAncestor", subject.handle, handle)
            if level in DISTANCES:
                found[pci] = DISTANCES[level]
    return found
