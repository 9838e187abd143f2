"""Speaks to an API server: connection, credentials, lists in pages, watches, writes.

What callers import is light: `connect`, `ApiServerError`, and `Informer` of `informer.py`. The HTTP library and
lightkube take 17 MB and 100 ms: the first connection imports them, in a thread.
"""

import asyncio
import importlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuplane.kubernetes.client.errors import ApiServerError

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

__all__ = ["ApiServerError", "connect", "own_namespace"]

API_MODULE = "gpuplane.kubernetes.client.api"


@asynccontextmanager
async def connect(kubeconfig: Path | None) -> AsyncIterator["ApiClient"]:
    """A client of the API server: of a kubeconfig, or of the cluster that this pod runs in. Raises ApiServerError."""
    if API_MODULE not in sys.modules:
        await asyncio.to_thread(importlib.import_module, API_MODULE)
    from gpuplane.kubernetes.client.api import ApiClient
    from gpuplane.kubernetes.client.connection import open_connection

    async with open_connection(kubeconfig) as http:
        yield ApiClient(http)


def own_namespace(kubeconfig: Path | None) -> str:
    """The namespace that the agent is in: that of its pod, or of the context of the kubeconfig. Raises
    ApiServerError."""
    from gpuplane.kubernetes.client.connection import load_namespace

    return load_namespace(kubeconfig)
