"""A real API server, scheduler and controllers, and an administrator who speaks to them.

One program starts them on loopback, as any user. Its folder is `../shared/cluster` beside this checkout, or what
GPUPLANE_CONTROL_PLANE names.
"""

import asyncio
import os
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx2
import msgspec

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("GPUPLANE_CONTROL_PLANE") or ROOT.parent / "shared/cluster") / "control-plane"
DEADLINE = 90.0
"""Seconds until a controller or the scheduler has done its work, on a busy machine."""

Json = dict[str, Any]
Headers = Sequence[tuple[str, str]]


class ControlPlane:
    """The programs of a control plane, with their data in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.kubeconfig = directory / "kubeconfig"

    def run(self, *arguments: str) -> None:
        """Start it, end it, or kill one program and start it again. Raises AssertionError with what was said."""
        command = [str(PROGRAM), arguments[0], str(self.directory), *arguments[1:]]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
        assert done.returncode == 0, done.stdout

    @property
    def server(self) -> Json:
        """Of the kubeconfig: where the server is, and by which certificate it is known."""
        found: Json = msgspec.json.decode(self.kubeconfig.read_bytes())["clusters"][0]["cluster"]
        return found

    def kubeconfig_of(self, token: str) -> str:
        """A kubeconfig for whoever has a token."""
        text = msgspec.json.decode(self.kubeconfig.read_bytes())
        text["users"][0]["user"] = {"token": token}
        return msgspec.json.encode(text).decode()


class Client:
    """`async with Client(control_plane, token) as client`: requests of one user."""

    def __init__(self, control_plane: ControlPlane, token: str = "admin-token") -> None:
        where = control_plane.server
        trusted = ssl.create_default_context(cafile=where["certificate-authority"])
        self._http = httpx2.AsyncClient(
            base_url=where["server"], verify=trusted, headers={"authorization": f"Bearer {token}"}, timeout=60
        )
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **params: str
    ) -> Json:
        """One request. Raises AssertionError with the server's sentence."""
        status, answer = await self.tried(method, path, body, kind, **params)
        assert status < 300, f"{method} {path}: {status} {answer.get('message')}"
        return answer

    async def tried(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", **params: str
    ) -> tuple[int, Json]:
        """One request: the status, and what was answered."""
        return await self.tried_as((), method, path, body, kind, **params)

    async def tried_as(
        self, user: Headers, method: str, path: str, body: Any = None, kind: str = "application/json", **params: str
    ) -> tuple[int, Json]:
        """One request as somebody else, who is named by headers (`Impersonate-User: …`)."""
        content = None if body is None else msgspec.json.encode(body)
        headers = [("content-type", kind), *user]
        answer = await self._http.request(method, path, content=content, params=params, headers=headers)
        return answer.status_code, answer.json()

    async def apply(self, found: Json, **params: str) -> tuple[int, Json]:
        """What `kubectl apply --server-side` does with an object."""
        options = {"fieldManager": "admin", "force": "true", **params}
        return await self.tried("PATCH", await self._path(found), found, "application/apply-patch+yaml", **options)

    async def delete(self, found: Json) -> None:
        """An object, at once."""
        await self.ask("DELETE", await self._path(found), gracePeriodSeconds="0")

    async def _path(self, found: Json) -> str:
        version, name = found["apiVersion"], found["metadata"]["name"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, found["kind"]) not in self._plurals:
            for each in (await self.ask("GET", root))["resources"]:
                if "/" not in each["name"]:
                    self._plurals[version, each["kind"]] = each["name"], each["namespaced"]
        plural, namespaced = self._plurals[version, found["kind"]]
        space = f"/namespaces/{found['metadata'].get('namespace', 'default')}" if namespaced else ""
        return f"{root}{space}/{plural}/{name}"

    async def patch(self, path: str, change: Any, subresource: str = "") -> Json:
        """A merge patch."""
        suffix = f"/{subresource}" if subresource else ""
        return await self.ask("PATCH", path + suffix, change, "application/merge-patch+json")

    async def until(self, found: Callable[[], Awaitable[Any]]) -> Any:
        """What is found, as soon as it is anything. Raises TimeoutError."""
        async with asyncio.timeout(DEADLINE):
            while not (there := await found()):
                await asyncio.sleep(0.1)
        return there


def conditions(node: Json) -> Mapping[str, str]:
    """Type of each condition → its status."""
    return {each["type"]: each["status"] for each in node.get("status", {}).get("conditions") or ()}
