"""Pods that stand in the way of a layout are evicted, with the caller's credentials. The agent never does that."""

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuplane.cli.kit.messages import say
from gpuplane.kubernetes.client import ApiServerError, connect

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

NAMESPACED_POD = re.compile(r"([a-z0-9.-]+)/([a-z0-9.-]+)", re.ASCII)
"""A pod by namespace and name. One that is known by its UID alone, or is being admitted, cannot be evicted."""
NOT_FOUND, TOO_MANY_REQUESTS = 404, 429
RETRY_SECONDS = 5.0
"""Seconds until a pod is asked again, as kubectl drain does."""


class Evictions:
    """Each pod is asked to go once; one that its disruption budget protects, again after a while."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._asked = set[str]()
        self._refused_at: dict[str, float] = {}

    async def evict(self, pods: Iterable[str]) -> None:
        """Evict pods ("namespace/name") by the Eviction API. Raises ClickException."""
        due = [pod for pod in dict.fromkeys(pods) if NAMESPACED_POD.fullmatch(pod) and self._is_due(pod)]
        if not due:
            return
        try:
            async with connect(self._kubeconfig) as client:
                for pod in due:
                    if pod not in self._refused_at:
                        say(f"evicting {pod}", err=True)
                    try:
                        await _evict(client, *pod.split("/"))
                    except ApiServerError as error:
                        if error.code != TOO_MANY_REQUESTS:
                            raise
                        if pod not in self._refused_at:
                            say(f"{pod} cannot be evicted now, and is asked again: {error}", err=True)
                        self._refused_at[pod] = time.monotonic()
                    else:
                        self._asked.add(pod)
        except ApiServerError as error:
            raise click.ClickException(f"no pod can be evicted: {error}") from None

    def _is_due(self, pod: str) -> bool:
        return pod not in self._asked and time.monotonic() - self._refused_at.get(pod, -RETRY_SECONDS) >= RETRY_SECONDS


async def _evict(client: "ApiClient", namespace: str, name: str) -> None:
    """Raises ApiServerError."""
    metadata = {"name": name, "namespace": namespace}
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    try:
        await client.send("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
    except ApiServerError as error:
        if error.code != NOT_FOUND:
            raise
