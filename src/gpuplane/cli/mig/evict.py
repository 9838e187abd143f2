"""Pods that stand in the way of a layout are evicted, with the caller's credentials. The agent never does that."""

import re
from collections.abc import Iterable
from pathlib import Path

import click

from gpuplane.cli.say import say

POD = re.compile(r"([a-z0-9.-]+)/([a-z0-9.-]+)", re.ASCII)
"""A pod by namespace and name. One that is known by its UID alone, or is being admitted, cannot be evicted."""
GONE, TOO_MANY_REQUESTS = 404, 429


class Evictions:
    """Each pod is asked to go once; one that its disruption budget protects, again the next time."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._asked = set[str]()
        self._refused = set[str]()

    async def evict(self, pods: Iterable[str]) -> None:
        """Evict pods ("namespace/name") by the Eviction API. Raises ClickException."""
        from gpuplane.apiserver.connection import ApiServerError, connect, send_object

        waiting = [found for pod in pods if pod not in self._asked and (found := POD.fullmatch(pod))]
        if not waiting:
            return
        try:
            async with connect(self._kubeconfig) as client:
                for found in waiting:
                    namespace, name = found.groups()
                    if found[0] not in self._refused:
                        say(f"evicting {found[0]}", err=True)
                    body = {
                        "apiVersion": "policy/v1",
                        "kind": "Eviction",
                        "metadata": {"name": name, "namespace": namespace},
                    }
                    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
                    try:
                        await send_object(client, "POST", path, body)
                    except ApiServerError as error:
                        if error.code == TOO_MANY_REQUESTS:
                            if found[0] not in self._refused:
                                say(f"{found[0]} cannot be evicted now, and is asked again: {error}", err=True)
                            self._refused.add(found[0])
                            continue
                        if error.code != GONE:
                            raise
                    self._asked.add(found[0])
        except ApiServerError as error:
            raise click.ClickException(f"no pod can be evicted: {error}") from None
