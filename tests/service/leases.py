"""An API server that keeps one Lease, as many candidates see it, each over a connection of its own that may fail."""

import asyncio
import random
from typing import Any

import msgspec

from gpuplane.kubernetes.client import ApiServerError


class LeaseServer:
    """One Lease. `writes` counts its versions."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] | None = None
        self.writes = 0

    def read(self) -> bytes:
        """Raises ApiServerError 404."""
        if self.spec is None:
            raise ApiServerError("not found", 404)
        metadata = {"name": "x", "resourceVersion": str(self.writes)}
        return msgspec.json.encode({"metadata": metadata, "spec": self.spec})

    def write(self, method: str, body: Any) -> None:
        """Create or patch. Raises ApiServerError 409, as a real one does."""
        change = msgspec.to_builtins(body)
        version = change["metadata"].get("resourceVersion")
        if method == "POST" and self.spec is not None:
            raise ApiServerError("already exists", 409)
        if method == "PATCH" and (self.spec is None or version != str(self.writes)):
            raise ApiServerError("conflict", 409)
        self.spec = {**(self.spec or {}), **change["spec"]}
        self.writes += 1


class Connection:
    """A candidate's way to it, in place of an ApiClient. `fails(random)` says what becomes of each request: seconds
    until it arrives, seconds until its answer does, and whether it arrives at all."""

    def __init__(self, server: LeaseServer, chance: random.Random, trouble: float = 0.0) -> None:
        self._server, self._chance, self.trouble = server, chance, trouble
        self.is_cut = False

    async def get(self, path: str, shape: type[Any]) -> Any:
        """The Lease."""
        await self._travel()
        found = msgspec.json.decode(self._server.read(), type=shape)
        await self._travel()
        return found

    async def send(self, method: str, path: str, body: Any) -> None:
        """Write it. The server does it even where nobody waits for the answer any more."""
        delivered = asyncio.ensure_future(self._deliver(method, body))
        delivered.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(delivered)
        await self._travel()

    async def _deliver(self, method: str, body: Any) -> None:
        await self._travel()
        self._server.write(method, body)

    async def _travel(self) -> None:
        """Some time; much of it where there is trouble, or none will do."""
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        if self.is_cut or self._chance.random() < self.trouble:
            await asyncio.sleep(self._chance.choice((0.5, 4.0, 12.0, 14.9)))
            if self.is_cut or self._chance.random() < 0.5:
                raise ApiServerError("lost")
