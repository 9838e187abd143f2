"""How the container runtime is told of a container's devices, where nobody says how.

`auto` is CDI, passed over CRI, where two things are known: that the node's runtime takes CDI devices without any
configuration, and that this agent keeps the specifications. Everything else is `envvar`, which NVIDIA's runtime reads.

A wrong answer is silent: a runtime that does not read what it is told starts the container without its GPU. So nothing
is guessed. The runtime is known from our Node's `status.nodeInfo.containerRuntimeVersion`, which kubelet writes; its
socket is never asked, for who can reach that is root on the node. What was told last stands over restarts, and while
the API server is away. A change is for containers that are made after it; those that run keep what they got.
"""

import re
from collections.abc import Iterator

from gpuplane.core.requests import node_requests
from gpuplane.model.config import ListStrategy
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.status import CDI_FILES
from gpuplane.model.value import Value
from gpuplane.model.views import News

FIRST_WITH_CDI = {"containerd": (2, 0), "cri-o": (1, 30)}
"""Runtime → its first version that takes the CDI devices of a CRI request as it is installed, and reads our files.

containerd reads them since 1.7.2, where `enable_cdi` is false; it is true since 2.0 (containerd#8252, #9621). CRI-O
reads them since 1.28 and cannot be told not to (cri-o#6944); files of version 0.7.0, as ours are where DRM nodes belong
to a group, since 1.30 (container-device-interface#199). Docker comes by cri-dockerd, whose own version decides
(cri-dockerd#522) and is not told.
"""

FIRST_KUBELET_WITH_CDI = (1, 29)
"""Kubelet's first version that passes a device plugin's CDI devices on as it is (DevicePluginCDIDevices, beta)."""

RUNTIME_VERSION = re.compile(r"(?P<name>[a-z-]+)://v?(?P<major>\d+)\.(?P<minor>\d+)", re.ASCII)
"""As kubelet writes it: "containerd://2.1.4-k3s1"."""

KUBELET_VERSION = re.compile(r"v?(?P<major>\d+)\.(?P<minor>\d+)", re.ASCII)
"""Its own: "v1.36.2", "v1.30.4+k3s1"."""

AUTO_TEXT = (
    "cdi-cri where the node's runtime takes CDI devices as it is ("
    + ", ".join(f"{name} from {major}.{minor} on" for name, (major, minor) in FIRST_WITH_CDI.items())
    + ") and the agent keeps the specifications, else envvar"
)
"""What `auto` is, for people."""


class StrategyDecision(Value, rename={"reason": "why"}):
    """Which strategies are in force, and why those; `why` is "" where the configuration says so."""

    strategies: tuple[ListStrategy, ...]
    reason: str = ""

    def __str__(self) -> str:
        return f"{', '.join(self.strategies)}: {self.reason or 'as configured'}"


def effective_strategies(snapshot: Snapshot) -> tuple[ListStrategy, ...]:
    """The strategies in force, none of them `auto`."""
    return decide_strategy(snapshot).strategies


def decide_strategy(snapshot: Snapshot) -> StrategyDecision:
    """The strategies in force, and why."""
    settings = snapshot.config.settings
    if settings is None:
        return StrategyDecision(("envvar",), "there is no good configuration yet")
    if settings.device_list_strategy != ("auto",):
        return StrategyDecision(settings.device_list_strategy)
    if CDI_FILES not in snapshot.status:
        return StrategyDecision(("envvar",), "this agent keeps no CDI specifications")
    runtime = node_requests(snapshot).runtime
    if not runtime:
        return StrategyDecision(("envvar",), "our Node has not told which container runtime it has")
    if runtime_supports_cdi(runtime) and not kubelet_passes_cdi(kubelet := node_requests(snapshot).kubelet):
        return StrategyDecision(("envvar",), f"kubelet {kubelet} does not pass CDI devices on; it does from 1.29 on")
    if runtime_supports_cdi(runtime):
        return StrategyDecision(("cdi-cri",), f"{runtime} takes CDI devices")
    return StrategyDecision(
        ("envvar",), f"{runtime} is not known to take CDI devices as it is; say cdi-cri where it does"
    )


def runtime_supports_cdi(runtime: str) -> bool:
    """Whether a runtime, as kubelet names it ("containerd://2.1.4"), takes CDI devices over CRI as it is installed."""
    found = RUNTIME_VERSION.match(runtime)
    if found is None or found["name"] not in FIRST_WITH_CDI:
        return False
    return (int(found["major"]), int(found["minor"])) >= FIRST_WITH_CDI[found["name"]]


def kubelet_passes_cdi(kubelet: str) -> bool:
    """Whether a kubelet of this version passes a device plugin's CDI devices on. One whose version is not told does:
    those that do not are older than the Kubernetes that is asked for (deploy/README.md)."""
    found = KUBELET_VERSION.match(kubelet)
    return found is None or (int(found["major"]), int(found["minor"])) >= FIRST_KUBELET_WITH_CDI


def strategy_news(before: Snapshot, after: Snapshot) -> Iterator[News]:
    """The decision: once it counts, where it was ours, and whatever it changes to."""
    now, last = current_decision(after), current_decision(before)
    if now is not None and now != last and (now.reason or last is not None):
        yield News(level="info", about="device list strategy", text=str(now))


def current_decision(snapshot: Snapshot) -> StrategyDecision | None:
    """What is decided, once there may be something to allocate; before that, what it rests on may not be told yet."""
    if snapshot.machine is None or snapshot.config.settings is None:
        return None
    return decide_strategy(snapshot)
