"""A connection to the API server.

lightkube reads the configuration, in a cluster or from a kubeconfig, and signs the requests: a token that kubelet has
renewed is read again when the old one is refused.
"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from lightkube import ConfigError, KubeConfig, SingleConfig
from lightkube.config import client_adapter

from gpuplane.base import files
from gpuplane.kubernetes.client.credentials import ExecPlugin
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.kubernetes.client.kubeconfig import parse_kubeconfig

REQUEST_TIMEOUT = 15.0
"""Seconds for one answer, or for the beginning of a stream."""
LARGEST_FILE = 1 << 20
"""Bytes of a kubeconfig, a token or a certificate."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
logging.getLogger("httpx2").setLevel(logging.WARNING)  # it would log every request; the status says what matters


@asynccontextmanager
async def open_connection(kubeconfig: Path | None) -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client of the API server: of a kubeconfig, or of the cluster that this pod runs in. Raises
    ApiServerError."""
    if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise ApiServerError(
            "no kubeconfig is set, and this process does not run in a pod (KUBERNETES_SERVICE_HOST is not set): "
            "set --kubeconfig"
        )
    try:
        client = await asyncio.to_thread(_make_client, kubeconfig)
    except Exception as error:  # lightkube raises anything for a malformed file
        raise _unusable(kubeconfig, error) from error
    async with client:
        yield client


_ONE_AT_A_TIME = threading.Lock()


def _make_client(kubeconfig: Path | None) -> httpx2.AsyncClient:
    """In a thread: where no authority is named, all of the system's are read, which takes 45 ms.

    One at a time: msgspec, by which lightkube reads its values, ends the process with a signal when two threads use a
    type for the first time at once (seen with 0.22.0).
    """
    with _ONE_AT_A_TIME:
        config = _load_config(kubeconfig)
    client = client_adapter.AsyncClient(config, client_adapter.ConnectionParams(httpx2.Timeout(REQUEST_TIMEOUT)))
    if config.user is not None and config.user.token_file:
        client.auth = _TokenFile(config.abs_file(config.user.token_file))
    elif config.user is not None and config.user.exec and not config.user.token:
        client.auth = ExecPlugin(config, config.user.exec)
    client.headers["Accept-Encoding"] = "identity"  # a compressed body could expand without limit
    return client


def _load_config(kubeconfig: Path | None) -> SingleConfig:
    """The address of the API server and our credentials. May raise any Exception.

    lightkube and OpenSSL read without a limit, and block on a FIFO. So each file is read here first, safely.
    """
    if kubeconfig is None:
        for name in ("token", "namespace", "ca.crt"):
            files.read(SERVICE_ACCOUNT / name, LARGEST_FILE)
        config = KubeConfig.from_service_account(SERVICE_ACCOUNT).get()
        assert config is not None  # no default is given to `get`
    else:
        path = kubeconfig.expanduser()
        config = parse_kubeconfig(files.read(path, LARGEST_FILE), path)
    user = config.user
    named = (config.cluster.certificate_auth, *((user.client_cert, user.client_key, user.token_file) if user else ()))
    for name in filter(None, named):
        files.read(config.abs_file(name), LARGEST_FILE)
    return config


def _unusable(kubeconfig: Path | None, error: Exception) -> ApiServerError:
    """What keeps a kubeconfig, or what a pod has instead, from being used."""
    path = kubeconfig or SERVICE_ACCOUNT
    if isinstance(error, ConfigError):
        reason = str(error)
    elif isinstance(error, OSError) and error.strerror:
        name = "" if error.filename is None else os.fspath(error.filename)
        reason = f"{name}: {error.strerror}" if name not in ("", os.fspath(path.expanduser())) else error.strerror
    else:
        reason = f"{type(error).__name__}: {error}"
    return ApiServerError(f"{path} cannot be used: {reason}")


def load_namespace(kubeconfig: Path | None) -> str:
    """The namespace that the agent is in: that of its pod, or of the context of the kubeconfig. Raises
    ApiServerError."""
    try:
        return _load_config(kubeconfig).namespace
    except Exception as error:  # lightkube raises anything for a malformed file
        raise _unusable(kubeconfig, error) from error


class _TokenFile(httpx2.Auth):
    """Adds the token that kubelet renews. If it is refused the file is read again."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._bearer = path, ""

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        if self._bearer:
            request.headers["Authorization"] = self._bearer
            if (yield request).status_code != httpx2.codes.UNAUTHORIZED:
                return
        self._bearer = f"Bearer {files.read(self._path, LARGEST_FILE).decode().strip()}"
        request.headers["Authorization"] = self._bearer
        yield request
