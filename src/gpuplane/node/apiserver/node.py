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

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpuplane.base.text import clip
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.informer import Informer
from gpuplane.kubernetes.objects import ApiNode, NodeSystemInfo, ObjectMetadata
from gpuplane.node.core import requests
from gpuplane.node.core.partitions.desired import MIG_LABEL
from gpuplane.node.core.reports.nodelabels import is_label_value
from gpuplane.node.model.config import NodeObjectRequests
from gpuplane.node.model.facts import NodeRequestsChanged, StatusChanged
from gpuplane.node.model.node import Node
from gpuplane.node.model.status import API_SERVER_PART, PartState, Status

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient, Event

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
UNREADABLE_CODES = (403, 404)  # refusals of one object, after which the others can be read
LONGEST_VERSION = 60  # characters of a container runtime's name and version, and of kubelet's


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
    informer = Informer(kubeconfig, NODES_PATH, ApiNode, fields=f"metadata.name={name}", metadata_only=True)
    await informer.run(_NodeFollower(node, name, config_label))


class _NodeFollower:
    """Tells the agent what its Node object requests."""

    def __init__(self, node: Node, name: str, config_label: str) -> None:
        self._node, self._name, self._config_label = node, name, config_label
        self._metadata: ObjectMetadata | None = None  # None: there is no such Node
        self._unread_versions = ""  # why they could not be read, for people

    async def on_list(self, client: "ApiClient", objects: list[ApiNode]) -> None:
        self._metadata, self._unread_versions = None, ""
        for each in objects:
            self._accept(each.metadata, await self._read_versions(client))

    def on_watch_started(self, client: "ApiClient") -> None:
        self._report(client)

    async def on_change(self, client: "ApiClient", event: "Event[ApiNode]") -> None:
        if event.type == "DELETED":
            self._metadata = None
        else:
            is_new = event.type == "ADDED"
            self._accept(event.object.metadata, await self._read_versions(client) if is_new else None)
        self._report(client)

    def on_failure(self, error: ApiServerError) -> float:
        _report_status(self._node, "failing", str(error))
        return 0.0

    def _accept(self, metadata: ObjectMetadata, versions: NodeVersions | None) -> None:
        """Tell what is requested. `versions` None: those that were known."""
        labels, annotations = metadata.labels or {}, metadata.annotations or {}
        known = versions or _known_versions(self._node)
        self._node.apply(NodeRequestsChanged(parse_requests(labels, annotations, self._config_label, known)))
        self._metadata = metadata

    async def _read_versions(self, client: "ApiClient") -> NodeVersions:
        """Raises ApiServerError."""
        known, self._unread_versions = _known_versions(self._node), ""
        try:
            found = await client.get(f"{NODES_PATH}/{self._name}", ApiNode)
        except ApiServerError as error:
            if error.code not in UNREADABLE_CODES:
                raise
            self._unread_versions = f"; the version of its container runtime cannot be read: {error}"
            return known
        info = found.status.node_info or NodeSystemInfo()
        runtime = clip(info.container_runtime_version, LONGEST_VERSION) or known.runtime
        return NodeVersions(runtime, clip(info.kubelet_version, LONGEST_VERSION) or known.kubelet)

    def _report(self, client: "ApiClient") -> None:
        if self._metadata is None:
            missing = f"{client.url} has no Node {self._name}: kubelet creates it when it registers; check --node-name"
            _report_status(self._node, "waiting", missing)
        else:
            ignored = _describe_ignored(self._metadata)
            text = f"watches Node {self._name} of {client.url}{self._unread_versions}{ignored}"
            _report_status(self._node, "ok", text)


def _known_versions(node: Node) -> NodeVersions:
    """The versions that were known last, perhaps to an agent before this one."""
    before = requests.node_requests(node.snapshot)
    return NodeVersions(before.container_runtime, before.kubelet_version)


def _describe_ignored(metadata: ObjectMetadata) -> str:
    """Which entries of the annotation are ignored, to be appended to the status; "" for none."""
    _, wrong = parse_drains((metadata.annotations or {}).get(DRAIN_ANNOTATION, ""))
    return clip(f"; annotation {DRAIN_ANNOTATION} is partly ignored: {', '.join(wrong)}") if wrong else ""


def _report_status(node: Node, state: PartState, reason: str) -> None:
    node.apply(StatusChanged(API_SERVER_PART, Status(state, reason)))
