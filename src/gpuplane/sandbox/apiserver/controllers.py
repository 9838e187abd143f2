"""What a cluster does beside its API server: controllers that look after each change, and write what follows.

They stand in for programs of Kubernetes. They ask as any client does, with all the checks, but without a socket.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from gpuplane.sandbox.apiserver.http import Request
from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.server import ApiServer

MERGE_PATCH = "application/merge-patch+json"


@asynccontextmanager
async def run_controller(server: ApiServer, settle: Callable[[ApiServer], bool]) -> AsyncIterator[None]:
    """Settle what there is after each request to the server, until the block ends. `settle`: whether it wrote.

    An error of `settle` ends the controller, and is raised when the block ends.
    """

    async def run() -> None:
        while True:
            async with server.changed:  # held from the look to the wait: no change is missed
                if settle(server):
                    server.changed.notify_all()
                else:
                    await server.changed.wait()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def send_as_client(server: ApiServer, client: str, method: str, path: str, body: Any = None) -> Json:
    """The body of the server's answer to a client; patches are merge patches. Raises StatusError."""
    content_type = MERGE_PATCH if method == "PATCH" else "application/json"
    headers = {"content-type": content_type, "user-agent": f"{client}/sandbox"}
    content = msgspec.json.encode(body) if body is not None else b""
    answer: Json = server.registry.respond(Request(method, path, {}, headers, content)).body
    return answer
