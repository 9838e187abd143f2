"""How the container runtime is told of a container's devices, where nobody says how.

`auto` is CDI, passed over CRI, where three things are known: that the node's runtime takes CDI names over CRI without
any configuration (containerd from 2.0 on, where `enable_cdi` is true unless somebody says otherwise; CRI-O, where it
cannot be turned off), and that this agent keeps the specification files. Everything else is `envvar`, which is what
NVIDIA's runtime reads. The runtime is known from our Node's `status.nodeInfo.containerRuntimeVersion`, which kubelet
writes; its socket is never asked, for who can reach that is root on the node.
"""

import re

from gpuplane.core.containers.cdi import condition
from gpuplane.model.config import ListStrategy
from gpuplane.model.snapshot import Snapshot
from gpuplane.model.value import Value

VERSION = re.compile(r"(?P<name>[a-z-]+)://v?(?P<major>\d+)\.(?P<minor>\d+)")


class Strategy(Value):
    """Which strategies are in force, and why those; `why` is "" where the configuration says so."""

    strategies: tuple[ListStrategy, ...]
    why: str = ""


def strategies(snapshot: Snapshot) -> tuple[ListStrategy, ...]:
    """The strategies in force, none of them `auto`."""
    return decided(snapshot).strategies


def decided(snapshot: Snapshot) -> Strategy:
    """The strategies in force, and why."""
    settings, asked = snapshot.config.settings, snapshot.config.asked
    if settings is None:
        return Strategy(("envvar",))
    if settings.device_list_strategy != ("auto",):
        return Strategy(settings.device_list_strategy)
    runtime = asked.runtime if asked is not None else ""
    if not condition.kept(snapshot):
        return Strategy(("envvar",), "this agent keeps no CDI specifications")
    if not runtime:
        return Strategy(("envvar",), "the node's container runtime is not known")
    if not takes_cdi(runtime):
        return Strategy(("envvar",), f"{runtime} takes no CDI devices unless it is configured to")
    return Strategy(("cdi-cri",), f"{runtime} takes CDI devices")


def takes_cdi(runtime: str) -> bool:
    """Whether a runtime, as kubelet names it ("containerd://2.1.4"), takes CDI devices over CRI as it is."""
    found = VERSION.match(runtime)
    if found is None:
        return False
    version = int(found["major"]), int(found["minor"])
    return {"containerd": version >= (2, 0), "cri-o": version >= (1, 23)}.get(found["name"], False)
