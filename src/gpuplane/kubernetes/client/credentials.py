"""Credentials from a program that a kubeconfig names (client-go's exec plugins).

lightkube can run such a program too, but reads its output without a limit, leaves it running when a request is
cancelled, and does not know API version `v1`. Source: Kubernetes' "client-go credential plugins".
"""

import os
from collections.abc import AsyncGenerator
from pathlib import PurePath

import httpx2
import msgspec
from lightkube import ConfigError, SingleConfig
from lightkube.config.models import UserExec

from gpuplane.base import programs
from gpuplane.base.text import clip

API_GROUP = "client.authentication.k8s.io/"
VERSIONS = tuple(f"{API_GROUP}{each}" for each in ("v1", "v1beta1", "v1alpha1"))
PLUGIN_TIMEOUT = 10.0
"""Seconds that a plugin may take: fewer than a request may."""


class _Status(msgspec.Struct):
    token: str = ""


class _Credential(msgspec.Struct):
    status: _Status = msgspec.field(default_factory=_Status)


class ExecPlugin(httpx2.Auth):
    """Adds the token that a plugin prints; if it is refused the plugin runs again. Raises ConfigError."""

    def __init__(self, config: SingleConfig, plugin: UserExec) -> None:
        self._plugin, self._bearer = plugin, ""
        command = plugin.command
        self._command = str(config.abs_file(command)) if len(PurePath(command).parts) > 1 else command

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if self._bearer:
            request.headers["Authorization"] = self._bearer
            if (yield request).status_code != httpx2.codes.UNAUTHORIZED:
                return
        self._bearer = f"Bearer {await self._token()}"
        request.headers["Authorization"] = self._bearer
        yield request

    async def _token(self) -> str:
        if self._plugin.apiVersion not in VERSIONS:
            raise self._error(
                f"its apiVersion {self._plugin.apiVersion} is not supported; supported: {', '.join(VERSIONS)}"
            )
        said = await self._run()
        try:
            token = msgspec.json.decode(said, type=_Credential).status.token
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            token = ""
        if not token or not token.isascii() or not token.isprintable():
            raise self._error("its output has no ExecCredential with a token")
        return token

    async def _run(self) -> bytes:
        command = (self._command, *(self._plugin.args or ()))
        try:
            ended = await programs.run(command, PLUGIN_TIMEOUT, environment=self._environment())
        except TimeoutError:
            problem = f"it did not end within {PLUGIN_TIMEOUT:g} s"
        except programs.OutputTooLarge as wordy:
            problem = str(wordy)
        except OSError as error:
            hint = f"; {clip(self._plugin.installHint)}" if self._plugin.installHint else ""
            problem = f"{error.strerror or error}{hint}"
        else:
            if not ended.status:
                return ended.output
            problem = f"it failed with status {ended.status}: {clip(ended.errors.decode(errors='replace'))}"
        raise self._error(problem)

    def _environment(self) -> dict[str, str]:
        """Our environment, the kubeconfig's variables, and the one that client-go sets for a plugin."""
        told = {"kind": "ExecCredential", "apiVersion": self._plugin.apiVersion, "spec": {"interactive": False}}
        added = {each.name: each.value for each in self._plugin.env or ()}
        return {**os.environ, **added, "KUBERNETES_EXEC_INFO": msgspec.json.encode(told).decode()}

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"the credential plugin {self._command}: {problem}")
