"""What a cluster does beside its API server: controllers that look at what there is, and write what follows.

They stand in for kube-scheduler and kube-controller-manager where those are not. They are clients like others, of any
API server.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuplane.kubernetes.client import connect
from gpuplane.kubernetes.client.errors import ApiServerError

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

Json = dict[str, Any]
PAUSE_SECONDS = 0.2
"""Between two looks at what there is."""


@asynccontextmanager
async def run_controller(kubeconfig: Path, settle: Callable[["ApiClient"], Awaitable[None]]) -> AsyncIterator[None]:
    """Settle what there is again and again, until the block ends.

    What an API server refuses, or does not answer, is tried again. Any other error of `settle` ends the controller, and
    is raised when the block ends.
    """

    async def run() -> None:
        while True:
            with suppress(ApiServerError):
                async with connect(kubeconfig) as client:
                    while True:
                        await settle(client)
                        await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def list_objects(client: "ApiClient", path: str) -> list[Json]:
    """All objects of a collection. Raises ApiServerError."""
    return (await client.list(path, Json, size_limit="cluster")).items


async def change(client: "ApiClient", path: str, found: Json, *operations: Json) -> None:
    """Change an object as it was found, by a JSON patch. Raises ApiServerError; also where somebody else changed it."""
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]}
    await client.send("PATCH", path, [version, *operations], patch="json")
