"""What our Node object asks of us, followed for ever.

The word that stands is the last one heard: while the API server is away, while our Node object is missing, and while we
may not read it, what was asked before stays asked, and the condition `apiserver` says what is wrong. Before the first
word nothing is assumed.

What is read, and what it means:
- Label `nvidia.com/device-plugin.config`: the named configuration, as for NVIDIA's plugin.
- Annotation `gpuplane.io/driver-release`: release the driver; its value is the reason.
- Annotation `gpuplane.io/drain`: devices to drain, "DEVICE=WHY; DEVICE=WHY": each by index, UUID, PCI address, "0:1"
  for a MIG device, or "all". An entry that cannot name a device is ignored, and reported.
- Label `nvidia.com/gpu.deploy.device-plugin`: the GPU operator requests that no device plugin uses the driver here:
  "false" by an administrator, "paused-for-…" by its driver and MIG managers while they work. "true", absence and every
  other value request nothing: `gpuplane` is that of a node given to us. `nvidia.com/gpu.deploy.operands=false` is not
  honoured either.
- Label `nvidia.com/mig.config`: the MIG configuration to partition the GPUs by, as for NVIDIA's MIG manager. It counts
  where the configuration has it followed (`core/partitions/desired`).
- Label `nvidia.com/gpu.deploy.mig-manager`: "true" where that manager acts on this node (its DaemonSet selects that);
  "paused-for-…" where the GPU operator's driver manager works meanwhile, and brings it back then.
- `status.nodeInfo.containerRuntimeVersion` and `kubeletVersion`: the versions of the container runtime and of kubelet.
  They are read at each list, every few minutes, and when the Node is created again: to watch them would mean to receive
  every heartbeat. If they cannot be read, or are empty, the versions that were known last count.
"""

import asyncio
import importlib
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuplane.base.text import clip
from gpuplane.node.core import requests
from gpuplane.node.core.partitions.desired import MIG_LABEL
from gpuplane.node.core.reports.nodelabels import is_label_value
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.facts import NodeRequestsChanged, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import API_SERVER, PartState, Status

if TYPE_CHECKING:
    from httpx2 import AsyncClient

    from gpuplane.kubernetes.client.connection import Metadata

CONFIG_LABEL = "nvidia.com/device-plugin.config"
RELEASE_ANNOTATION = "gpuplane.io/driver-release"
DRAIN_ANNOTATION = "gpuplane.io/drain"
DEVICE_PATTERN = re.compile(
    r"[0-9A-Za-z][0-9A-Za-z:./_-]{0,99}"
)  # an index, a UUID, a PCI address; MIG-GPU-…/1/0 of old
MOST_DRAINS = 128  # a node of 16 GPUs, each with 7 MIG devices
DEPLOY_LABEL = "nvidia.com/gpu.deploy.device-plugin"
MIG_MANAGER_LABEL = "nvidia.com/gpu.deploy.mig-manager"
NODES_PATH = "/api/v1/nodes"
NO_REASON = "no reason given"
BACKOFF = (0.5, 30.0)  # seconds: the first pause after a stream's end or a failure, and the longest
STEADY_AFTER = 60.0  # seconds after which a stream counts as stable
CLIENT_MODULE = "gpuplane.kubernetes.client.connection"
UNREADABLE_CODES = (403, 404)  # refusals of one object, after which the others can be read
LONGEST_VERSION = 60  # characters of a container runtime's name and version, and of kubelet's


class _Info(msgspec.Struct):
    containerRuntimeVersion: str = ""  # noqa: N815 (the wire's name)
    kubeletVersion: str = ""  # noqa: N815 (the wire's name)


class _Status(msgspec.Struct):
    nodeInfo: _Info | None = None  # noqa: N815 (the wire's name)


class _Node(msgspec.Struct):
    status: _Status | None = None


class NodeVersions(NamedTuple):
    """The versions that kubelet reports: of the container runtime, and its own."""

    runtime: str = ""
    kubelet: str = ""


def parse_requests(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    config_label: str = CONFIG_LABEL,
    versions: NodeVersions | None = None,
) -> NodeObjectRequests:
    """What the labels and annotations of a Node request, and its versions.

    `config_label` is the label that names a configuration.
    """
    reasons = []
    if RELEASE_ANNOTATION in annotations:
        reasons.append(f"annotation {RELEASE_ANNOTATION}: {annotations[RELEASE_ANNOTATION] or NO_REASON}")
    deploy = labels.get(DEPLOY_LABEL, "")
    if deploy == "false" or "paused-" in deploy:
        reasons.append(f"label {DEPLOY_LABEL}={deploy}")
    wanted, _ = parse_drains(annotations.get(DRAIN_ANNOTATION, ""))
    mig_config, mig_manager = labels.get(MIG_LABEL, ""), labels.get(MIG_MANAGER_LABEL, "")
    release, (runtime, kubelet) = clip("; ".join(reasons)), versions or NodeVersions()
    return NodeObjectRequests(
        config_name=labels.get(config_label, ""),
        container_runtime=runtime,
        kubelet_version=kubelet,
        driver_release_reason=release,
        drain_reasons=wanted,
        mig_config=mig_config if is_label_value(mig_config) else "",
        has_mig_manager=mig_manager == "true" or "paused-" in mig_manager,
    )


def parse_drains(text: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """(device → why it is drained, what is wrong) of the annotation's value."""
    wanted: dict[str, str] = {}
    wrong = []
    for entry in filter(None, map(str.strip, text.split(";"))):
        device, _, why = (part.strip() for part in entry.partition("="))
        if not DEVICE_PATTERN.fullmatch(device):
            wrong.append(f"{clip(entry, 60)!r} is not a device name")
        elif device not in wanted and len(wanted) == MOST_DRAINS:
            wrong.append(f"there are too many devices: the agent uses only the first {MOST_DRAINS}")
            break
        else:
            wanted[device] = clip(why) or NO_REASON
    return wanted, tuple(wrong)


async def watch_node(node: Node, name: str, kubeconfig: Path | None, config_label: str = CONFIG_LABEL) -> None:
    """Report what the Node object of this name requests, now and on every change, for ever.

    `kubeconfig` None: the cluster that this pod runs in.
    """
    await asyncio.to_thread(importlib.import_module, CLIENT_MODULE)  # it takes 100 ms, which would delay the event loop
    from gpuplane.kubernetes.client.connection import ApiServerError

    rested = 0.0
    while True:
        began = node.now()
        try:
            await _follow_once(node, name, kubeconfig, config_label)
        except ApiServerError as error:
            _report_status(node, "failing", str(error))
        rested = next_pause(rested, node.now() - began)
        await asyncio.sleep(rested * random.uniform(0.5, 1))  # noqa: S311 (spreads load; no secret)


def next_pause(last_pause: float, lasted: float) -> float:
    """Seconds to pause after a list and a stream that lasted `lasted` seconds: twice the last pause, or the shortest
    after a stable stream."""
    first, longest = BACKOFF
    return first if lasted > STEADY_AFTER else min(max(2 * last_pause, first), longest)


async def _follow_once(node: Node, name: str, kubeconfig: Path | None, config_label: str) -> None:
    """One list and one stream. The credentials are read again for each: their files are renewed while we run."""
    from gpuplane.kubernetes.client.connection import connect, list_objects, watch_objects

    ours = f"metadata.name={name}"
    async with connect(kubeconfig) as client:
        listing = await list_objects(client, NODES_PATH, ours)
        told, unread = await _read_versions(client, node, name) if listing.items else (_known_versions(node), "")
        for each in listing.items:
            _apply_requests(node, each.metadata, config_label, told)
        async with watch_objects(client, NODES_PATH, ours, listing.metadata.resourceVersion) as events:
            well = f"watches Node {name} of {client.base_url}"
            wrong = next((_describe_ignored(each.metadata) for each in listing.items), "")
            missing = f"{client.base_url} has no Node {name}: kubelet creates it when it registers; check --node-name"
            _report_status(node, *(("ok", well + unread + wrong) if listing.items else ("waiting", missing)))
            async for event in events:
                if event.type == "DELETED":
                    _report_status(node, "waiting", missing)
                elif event.type in ("ADDED", "MODIFIED"):
                    if event.type == "ADDED":
                        told, unread = await _read_versions(client, node, name)
                    _apply_requests(node, event.object.metadata, config_label, told)
                    _report_status(node, "ok", well + unread + _describe_ignored(event.object.metadata))


async def _read_versions(client: "AsyncClient", node: Node, name: str) -> tuple[NodeVersions, str]:
    """(the versions, why they could not be read, for people). Raises ApiServerError."""
    from gpuplane.kubernetes.client.connection import ApiServerError, get_object

    try:
        status = (await get_object(client, f"{NODES_PATH}/{name}", _Node)).status or _Status()
    except ApiServerError as error:
        if error.code not in UNREADABLE_CODES:
            raise
        return _known_versions(node), f"; the version of its container runtime cannot be read: {error}"
    info, known = status.nodeInfo or _Info(), _known_versions(node)
    runtime = clip(info.containerRuntimeVersion, LONGEST_VERSION) or known.runtime
    return NodeVersions(runtime, clip(info.kubeletVersion, LONGEST_VERSION) or known.kubelet), ""


def _known_versions(node: Node) -> NodeVersions:
    """The versions that were known last, perhaps to an agent before this one."""
    before = requests.node_requests(node.snapshot)
    return NodeVersions(before.container_runtime, before.kubelet_version)


def _apply_requests(node: Node, metadata: "Metadata", config_label: str, versions: NodeVersions) -> None:
    node.apply(
        NodeRequestsChanged(parse_requests(metadata.labels or {}, metadata.annotations or {}, config_label, versions))
    )


def _describe_ignored(metadata: "Metadata") -> str:
    """Which entries of the annotation are ignored, to be appended to the status; "" for none."""
    _, wrong = parse_drains((metadata.annotations or {}).get(DRAIN_ANNOTATION, ""))
    return clip(f"; annotation {DRAIN_ANNOTATION} is partly ignored: {', '.join(wrong)}") if wrong else ""


def _report_status(node: Node, state: PartState, reason: str) -> None:
    node.apply(StatusChanged(API_SERVER, Status(state, reason)))
