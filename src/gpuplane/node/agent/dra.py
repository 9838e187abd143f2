"""The DRA driver, while the configuration enables it: it starts and ends without a restart of the agent.

Nothing of it is imported before that.
"""

import asyncio
import importlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gpuplane.base.tasks import run_until
from gpuplane.node.agent.node import Node
from gpuplane.node.model.claims import AllocatedClaim, ClaimName, ClaimUnavailable, FetchClaim
from gpuplane.node.model.reasons import Reason
from gpuplane.node.model.snapshot import Snapshot

if TYPE_CHECKING:
    import grpc

    from gpuplane.node.agent.options import Options

MODULES = tuple(f"gpuplane.node.kubelet.dra.{name}" for name in ("registration", "server", "health"))


async def keep_dra_driver(node: Node, options: "Options", fetch: FetchClaim, may_serve: Callable[[], bool]) -> None:
    """Serve the DRA driver while it is enabled, for ever. `may_serve`: whether we hold the lock on kubelet."""
    while True:
        await node.wait_until(partial(_is_another, ""), None)
        driver = enabled_driver(node.snapshot)
        changed = node.wait_until(partial(_is_another, driver), None)
        await run_until(changed, _serve(node, options, driver, fetch, may_serve))


def enabled_driver(snapshot: Snapshot) -> str:
    """The name of the driver to serve; "" for none."""
    settings = snapshot.config.settings
    return settings.dra.driver if settings is not None and settings.dra.enabled else ""


async def fetch_nothing(claim: ClaimName) -> AllocatedClaim:
    """What is fetched without an API server. Raises ClaimUnavailable."""
    text = f"claim {claim}: the agent does not know its node's name (--node-name), so it does not ask the API server"
    raise ClaimUnavailable(Reason(kind="problem", text=text, code="claim-not-fetched"))


def _is_another(driver: str, snapshot: Snapshot) -> bool:
    return enabled_driver(snapshot) != driver


async def _serve(node: Node, options: "Options", driver: str, fetch: FetchClaim, may_serve: Callable[[], bool]) -> None:
    for module in MODULES:
        await asyncio.to_thread(importlib.import_module, module)
    from gpuplane.node.kubelet.dra.health import HealthServer, add_health
    from gpuplane.node.kubelet.dra.registration import PluginSockets, register_driver
    from gpuplane.node.kubelet.dra.server import Claims, add_plugin

    claims, health = Claims(node, fetch), HealthServer(node, options.host_name)

    def add(server: "grpc.aio.Server") -> None:
        add_plugin(claims, server)
        add_health(health, server)

    sockets = PluginSockets(options.kubelet_root.absolute(), driver, options.pod_uid)
    try:
        await register_driver(node, sockets, add, may_serve=may_serve)
    finally:
        claims.forget_refused()
