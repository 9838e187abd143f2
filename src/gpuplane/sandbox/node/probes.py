"""Probes of containers in which a program runs (pkg/kubelet/prober). A probe by a command always succeeds here."""

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple

import httpx2

from gpuplane.sandbox.node.objects import Json

Kind = Literal["startup", "readiness", "liveness"]


class Outcome(NamedTuple):
    """What a probe found. `problem`: in kubelet's words; "" where it succeeded."""

    kind: Kind
    problem: str


class Probing:
    """The probes of one container. `found` is told when one has succeeded, or failed, as often as it wants."""

    def __init__(self, container: Json, address: str, found: Callable[[Outcome], None]) -> None:
        self._container, self._address, self._found = container, address, found

    async def run(self) -> None:
        """Until it is cancelled. Nothing else is probed before the container has started."""
        if probe := self._container.get("startupProbe"):
            await self._repeat("startup", probe)
        kinds: tuple[Kind, ...] = ("readiness", "liveness")
        probes = [(kind, self._container.get(f"{kind}Probe")) for kind in kinds]
        async with asyncio.TaskGroup() as group:
            for kind, probe in probes:
                if probe:
                    group.create_task(self._repeat(kind, probe))

    async def _repeat(self, kind: Kind, probe: Json) -> None:
        """Of a startup probe until it has succeeded."""
        await asyncio.sleep(probe.get("initialDelaySeconds") or 0)
        count, last = 0, None
        while True:
            problem = await self._probe(probe)
            count = count + 1 if last == bool(problem) else 1
            last = bool(problem)
            if count == (probe.get("failureThreshold") or 3 if problem else probe.get("successThreshold") or 1):
                self._found(Outcome(kind, problem))
                if kind == "startup" and not problem:
                    return
            await asyncio.sleep(probe.get("periodSeconds") or 10)

    async def _probe(self, probe: Json) -> str:
        timeout = probe.get("timeoutSeconds") or 1
        try:
            if http := probe.get("httpGet"):
                return await self._get(http, timeout)
            if tcp := probe.get("tcpSocket"):
                async with asyncio.timeout(timeout):
                    _, writer = await asyncio.open_connection(self._address, self._port(tcp["port"]))
                    writer.close()
        except (OSError, httpx2.HTTPError) as error:
            return f"{error or type(error).__name__}"
        return ""

    async def _get(self, wanted: Json, timeout: float) -> str:
        scheme, path = (wanted.get("scheme") or "HTTP").lower(), wanted.get("path") or "/"
        url = f"{scheme}://{self._address}:{self._port(wanted['port'])}/{path.lstrip('/')}"
        async with httpx2.AsyncClient(verify=False, trust_env=False, timeout=timeout) as client:
            status = (await client.get(url)).status_code
        return "" if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"

    def _port(self, port: int | str) -> int:
        named = {each.get("name"): each["containerPort"] for each in self._container.get("ports") or ()}
        return int(named.get(port, port))
