"""The device list strategy in force: how the container runtime learns the devices of a container.

`auto` means CDI over CRI if two things are known: the node's runtime supports CDI devices by default, and this agent
writes the specifications. Otherwise it means `envvar`, which NVIDIA's runtime reads.

A wrong decision has no error: a runtime that does not read the devices starts the container without its GPU. So nothing
is guessed. The runtime is known from our Node's `status.nodeInfo.containerRuntimeVersion`, which kubelet writes; its
socket is never used, because access to it means root on the node. The last known value stays in force over restarts and
while the API server is unreachable. A change affects new containers only; running ones keep what they have.
"""

import re
from collections.abc import Iterator

from gpuplane.base.value import Value
from gpuplane.node.core.requests import node_requests
from gpuplane.node.model.config import ListStrategy
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import CDI_FILES_PART
from gpuplane.node.model.views import News

FIRST_RUNTIME_VERSIONS_WITH_CDI = {"containerd": (2, 0), "cri-o": (1, 30)}
"""Runtime → its first version that supports the CDI devices of a CRI request by default, and reads our files.

containerd supports them since 1.7.2, with `enable_cdi` false by default; it is true since 2.0 (containerd#8252, #9621).
CRI-O supports them since 1.28, always enabled (cri-o#6944); it reads files of version 0.7.0, which ours have if DRM
nodes belong to a group, since 1.30 (container-device-interface#199). Docker is used through cri-dockerd, whose version
would decide (cri-dockerd#522), but is not reported.
"""

FIRST_KUBELET_VERSION_WITH_CDI = (1, 29)
"""Kubelet's first version that passes on a device plugin's CDI devices by default (DevicePluginCDIDevices, beta)."""

RUNTIME_VERSION_PATTERN = re.compile(r"(?P<name>[a-z-]+)://v?(?P<major>\d+)\.(?P<minor>\d+)", re.ASCII)
"""A runtime's version as kubelet reports it: "containerd://2.1.4-k3s1"."""

KUBELET_VERSION_PATTERN = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)", re.ASCII)
"""Kubelet's own version: "v1.36.2", "v1.30.4+k3s1"."""

AUTO_STRATEGY_TEXT = (
    "cdi-cri if the node's runtime supports CDI devices by default ("
    + ", ".join(f"{name} {major}.{minor} or later" for name, (major, minor) in FIRST_RUNTIME_VERSIONS_WITH_CDI.items())
    + ") and the agent writes the specifications, else envvar"
)
"""What `auto` means, for people."""


class StrategyDecision(Value):
    """The strategies in force, and why; `reason` is "" if they are configured."""

    strategies: tuple[ListStrategy, ...]
    reason: str = ""

    def __str__(self) -> str:
        return f"{', '.join(self.strategies)}: {self.reason or 'as configured'}"


def effective_list_strategies(snapshot: Snapshot) -> tuple[ListStrategy, ...]:
    """The strategies in force, none of them `auto`."""
    return decide_strategy(snapshot).strategies


def decide_strategy(snapshot: Snapshot) -> StrategyDecision:
    """Decides the strategies in force, with the reason."""
    settings = snapshot.config.settings
    if settings is None:
        return StrategyDecision(("envvar",), "there is no valid configuration yet")
    if settings.device_list_strategy != ("auto",):
        return StrategyDecision(settings.device_list_strategy)
    if CDI_FILES_PART not in snapshot.statuses:
        return StrategyDecision(("envvar",), "this agent writes no CDI specifications")
    runtime = node_requests(snapshot).container_runtime
    if not runtime:
        return StrategyDecision(("envvar",), "the container runtime of this Node is not known yet")
    if runtime_supports_cdi(runtime) and not kubelet_passes_on_cdi_devices(
        kubelet := node_requests(snapshot).kubelet_version
    ):
        return StrategyDecision(("envvar",), f"kubelet {kubelet} does not pass on CDI devices; 1.29 and later do")
    if runtime_supports_cdi(runtime):
        return StrategyDecision(("cdi-cri",), f"{runtime} supports CDI devices")
    return StrategyDecision(
        ("envvar",), f"{runtime} is not known to support CDI devices by default; configure cdi-cri if it does"
    )


def runtime_supports_cdi(runtime_version: str) -> bool:
    """Whether a runtime, as kubelet reports it ("containerd://2.1.4"), supports CDI devices over CRI by default."""
    found = RUNTIME_VERSION_PATTERN.match(runtime_version)
    if found is None or found["name"] not in FIRST_RUNTIME_VERSIONS_WITH_CDI:
        return False
    return (int(found["major"]), int(found["minor"])) >= FIRST_RUNTIME_VERSIONS_WITH_CDI[found["name"]]


def kubelet_passes_on_cdi_devices(kubelet_version: str) -> bool:
    """Whether a kubelet of this version passes on a device plugin's CDI devices. True if the version is not known:
    kubelets that do not are older than the Kubernetes that we require (deploy/README.md)."""
    found = KUBELET_VERSION_PATTERN.match(kubelet_version)
    return found is None or (int(found["major"]), int(found["minor"])) >= FIRST_KUBELET_VERSION_WITH_CDI


def strategy_news(before: Snapshot, after: Snapshot) -> Iterator[News]:
    """A log line when `auto` is decided for the first time, and for each change of the decision."""
    now, last = decision_if_inputs_known(after), decision_if_inputs_known(before)
    if now is not None and now != last and (now.reason or last is not None):
        yield News(level="info", about="device list strategy", text=str(now))


def decision_if_inputs_known(snapshot: Snapshot) -> StrategyDecision | None:
    """The decision; None before machine and configuration are known, since what it depends on may be missing too."""
    if snapshot.machine is None or snapshot.config.settings is None:
        return None
    return decide_strategy(snapshot)
