"""What our Node object asks of us, followed for ever.

The word that stands is the last one heard: while the API server is away, while our Node object is missing, and while we
may not read it, what was asked before stays asked, and the condition `apiserver` says what is wrong. Before the first
word nothing is assumed.

What is read, and what it means:
- Label `nvidia.com/device-plugin.config`: the named configuration, as for NVIDIA's plugin.
- Annotation `gpuplane.io/driver-release`: let go of the driver; its value is the reason.
- Annotation `gpuplane.io/drain`: devices that shall not be given out, "DEVICE=WHY; DEVICE=WHY": each by index, UUID,
  PCI address, "0:1" for a MIG device, or "all". An entry that names nothing that a device could be called is ignored,
  and said.
- Label `nvidia.com/gpu.deploy.device-plugin`: the GPU operator's word that no device plugin may hold the driver here,
  "false" from an administrator, "paused-for-…" from its driver and MIG managers while they work. "true", absence and
  every other value ask for nothing. `nvidia.com/gpu.deploy.operands=false` is not honoured: a node taken from the
  operator to be given to us has it.
- `status.nodeInfo.containerRuntimeVersion` and `kubeletVersion`, where kubelet tells which container runtime it has,
  and its own version. They are read at each list, every few minutes, and where the Node is made anew: to watch them
  would mean every heartbeat. Where they may not be read, or are not told, the versions that were known last stand.
"""

import asyncio
import importlib
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuplane.core import requests
from gpuplane.core.text import clip
from gpuplane.model.config import NodeRequests
from gpuplane.model.facts import NodeRequestsChanged, StatusChanged
from gpuplane.model.node import Node
from gpuplane.model.status import API_SERVER, State, Status

if TYPE_CHECKING:
    from httpx2 import AsyncClient

    from gpuplane.apiserver.connection import Metadata

CONFIG = "nvidia.com/device-plugin.config"
RELEASE = "gpuplane.io/driver-release"
DRAIN = "gpuplane.io/drain"
DEVICE = re.compile(r"[0-9A-Za-z][0-9A-Za-z:./_-]{0,99}")  # an index, a UUID, a PCI address; MIG-GPU-…/1/0 of old
MOST_DRAINS = 128  # a node of 16 GPUs, each with 7 MIG devices
DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
NODES = "/api/v1/nodes"
NO_REASON = "no reason given"
BACKOFF = (0.5, 30.0)  # seconds: the first wait after a stream's end or a failure, and the longest
STEADY = 60.0  # seconds after which a stream counts as a good one
CLIENT = "gpuplane.apiserver.connection"
CLOSED = (403, 404)  # refusals of one object that leave the rest as it is
LONGEST_VERSION = 60  # characters of a container runtime's name and version, and of kubelet's


class _Info(msgspec.Struct):
    containerRuntimeVersion: str = ""  # noqa: N815 (the wire's name)
    kubeletVersion: str = ""  # noqa: N815 (the wire's name)


class _Status(msgspec.Struct):
    nodeInfo: _Info | None = None  # noqa: N815 (the wire's name)


class _Node(msgspec.Struct):
    status: _Status | None = None


class Told(NamedTuple):
    """What kubelet tells of its node: the container runtime, and its own version."""

    runtime: str = ""
    kubelet: str = ""


def asked(
    labels: Mapping[str, str], annotations: Mapping[str, str], config: str = CONFIG, told: Told | None = None
) -> NodeRequests:
    """What the labels and annotations of a Node ask for, and what else it says.

    `config` is the label that names a configuration.
    """
    reasons = []
    if RELEASE in annotations:
        reasons.append(f"annotation {RELEASE}: {annotations[RELEASE] or NO_REASON}")
    deploy = labels.get(DEPLOY, "")
    if deploy == "false" or "paused-" in deploy:
        reasons.append(f"label {DEPLOY}={deploy}")
    wanted, _ = drains(annotations.get(DRAIN, ""))
    release, (runtime, kubelet) = clip("; ".join(reasons)), told or Told()
    return NodeRequests(
        config=labels.get(config, ""), runtime=runtime, kubelet=kubelet, driver_release=release, drains=wanted
    )


def drains(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """(device → why it shall not be given out, what is wrong) of the annotation."""
    wanted: dict[str, str] = {}
    wrong = []
    for entry in filter(None, map(str.strip, text.split(";"))):
        device, _, why = (part.strip() for part in entry.partition("="))
        if not DEVICE.fullmatch(device):
            wrong.append(f"{clip(entry, 60)!r} names no device")
        elif device not in wanted and len(wanted) == MOST_DRAINS:
            wrong.append(f"only the first {MOST_DRAINS} devices count")
            break
        else:
            wanted[device] = clip(why) or NO_REASON
    return wanted, tuple(wrong)


async def watch_node(node: Node, name: str, kubeconfig: Path | None, label: str = CONFIG) -> None:
    """Tell what the Node object of this name asks for, now and on every change, for ever.

    `kubeconfig` None: the cluster that this pod runs in.
    """
    await asyncio.to_thread(importlib.import_module, CLIENT)  # 100 ms that the event loop has better use for
    from gpuplane.apiserver.connection import Away

    rested = 0.0
    while True:
        began = node.now()
        try:
            await _follow(node, name, kubeconfig, label)
        except Away as away:
            _report_status(node, "failing", str(away))
        rested = rest(rested, node.now() - began)
        await asyncio.sleep(rested * random.uniform(0.5, 1))  # noqa: S311 (spreads load; no secret)


def rest(rested: float, lasted: float) -> float:
    """Seconds to rest after a list and a stream that lasted so long: twice the rest before, or little after much."""
    first, longest = BACKOFF
    return first if lasted > STEADY else min(max(2 * rested, first), longest)


async def _follow(node: Node, name: str, kubeconfig: Path | None, label: str) -> None:
    """One list and one stream. Each begins with the configuration read anew: files are renewed while we run."""
    from gpuplane.apiserver.connection import connect, listed, watched

    ours = f"metadata.name={name}"
    async with connect(kubeconfig) as client:
        listing = await listed(client, NODES, ours)
        told, unread = await _told(client, node, name) if listing.items else (_known(node), "")
        for each in listing.items:
            _tell(node, each.metadata, label, told)
        async with watched(client, NODES, ours, listing.metadata.resourceVersion) as events:
            well = f"follows Node {name} of {client.base_url}"
            wrong = next((_wrong(each.metadata) for each in listing.items), "")
            missing = f"{client.base_url} has no Node {name}: kubelet makes it when it registers; is --node-name right?"
            _report_status(node, *(("ok", well + unread + wrong) if listing.items else ("waiting", missing)))
            async for event in events:
                if event.type == "DELETED":
                    _report_status(node, "waiting", missing)
                elif event.type in ("ADDED", "MODIFIED"):
                    if event.type == "ADDED":
                        told, unread = await _told(client, node, name)
                    _tell(node, event.object.metadata, label, told)
                    _report_status(node, "ok", well + unread + _wrong(event.object.metadata))


async def _told(client: "AsyncClient", node: Node, name: str) -> tuple[Told, str]:
    """(what kubelet tells, why it could not be asked for). Raises Away."""
    from gpuplane.apiserver.connection import Away, found

    try:
        status = (await found(client, f"{NODES}/{name}", _Node)).status or _Status()
    except Away as away:
        if away.code not in CLOSED:
            raise
        return _known(node), f"; its container runtime cannot be asked for: {away}"
    info, known = status.nodeInfo or _Info(), _known(node)
    runtime = clip(info.containerRuntimeVersion, LONGEST_VERSION) or known.runtime
    return Told(runtime, clip(info.kubeletVersion, LONGEST_VERSION) or known.kubelet), ""


def _known(node: Node) -> Told:
    """What was told last, to an agent before us if need be."""
    before = requests.node_requests(node.snapshot)
    return Told(before.runtime, before.kubelet)


def _tell(node: Node, metadata: "Metadata", label: str, told: Told) -> None:
    node.apply(NodeRequestsChanged(asked(metadata.labels or {}, metadata.annotations or {}, label, told)))


def _wrong(metadata: "Metadata") -> str:
    """What of the annotations is ignored, to be said after how the API server stands."""
    _, wrong = drains((metadata.annotations or {}).get(DRAIN, ""))
    return clip(f"; annotation {DRAIN} is in part ignored: {', '.join(wrong)}") if wrong else ""


def _report_status(node: Node, state: State, reason: str) -> None:
    node.apply(StatusChanged(API_SERVER, Status(state, reason)))
