"""Volumes of a pod whose program runs, as directories (pkg/volume; files of objects: pkg/volume/util/atomic_writer.go).

Paths of the host lie below the node's own root: no pod of a played node sees or changes the machine that plays it.
"""

import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path, PurePosixPath

from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node.environment import Fetch, Kind, downward_value, resource_value
from gpuplane.sandbox.node.objects import Json, PodObject
from gpuplane.sandbox.node.ownimage import HostPaths

MakeToken = Callable[[PodObject, str, int], Awaitable[str]]
"""(pod, audience, seconds) → a token of the pod's service account."""
DATA_LINK = "..data"
DEFAULT_TOKEN_SECONDS = 3607


class Volumes:
    """The volumes of one pod, below `directory`. `paths`: of its node."""

    def __init__(
        self, pod: PodObject, directory: Path, paths: HostPaths, node_values: Mapping[str, str], fetch: Fetch,
        make_token: MakeToken,
    ) -> None:  # fmt: skip
        self._pod, self._directory, self._paths = pod, directory, paths
        self._node_values, self._fetch, self._make_token = node_values, fetch, make_token
        self._tokens: dict[str, tuple[bytes, float]] = {}  # audience → token, and until when it is used

    async def write(self) -> dict[str, Path]:
        """Make the volumes that are not there, and write what has changed since. Raises KubeletError, in kubelet's
        words, and OSError."""
        return {each["name"]: await self._write(each) for each in self._pod.spec.get("volumes") or ()}

    async def _write(self, volume: Json) -> Path:
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        path: Path = self._directory / volume["name"]
        path.mkdir(parents=True, exist_ok=True)
        try:
            content = await self._content(volume)
        except KubeletError as error:
            raise KubeletError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from None
        if content is not None:
            _write_files(path, content)
        return path

    def _host_path(self, source: Json) -> Path:
        """Whatever its type says: a played node has each directory that a pod names."""
        path = self._paths.host(PurePosixPath(source["path"]))  # the API server refuses ".."
        if source.get("type") in ("File", "FileOrCreate"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif source.get("type") not in ("Socket", "CharDevice", "BlockDevice"):
            path.mkdir(parents=True, exist_ok=True)
        return path

    async def _content(self, volume: Json) -> dict[str, bytes] | None:
        """Path below the volume → content; None for a volume that is empty at first."""
        if "configMap" in volume:
            return await self._of_object("configmap", volume["configMap"]["name"], volume["configMap"])
        if "secret" in volume:
            return await self._of_object("secret", volume["secret"]["secretName"], volume["secret"])
        if "downwardAPI" in volume:
            return self._of_fields(volume["downwardAPI"])
        if "projected" not in volume:
            return None
        content: dict[str, bytes] = {}
        for source in volume["projected"].get("sources") or ():
            content |= await self._of_source(source)
        return content

    async def _of_source(self, source: Json) -> dict[str, bytes]:
        if wanted := source.get("serviceAccountToken"):
            seconds = wanted.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS
            return {wanted["path"]: await self._token(wanted.get("audience") or "", seconds)}
        if wanted := source.get("configMap"):
            return await self._of_object("configmap", wanted["name"], wanted)
        if wanted := source.get("secret"):
            return await self._of_object("secret", wanted["name"], wanted)
        return self._of_fields(source.get("downwardAPI") or {})

    async def _token(self, audience: str, seconds: int) -> bytes:
        """A token, a new one after four fifths of its time (pkg/kubelet/token/token_manager.go)."""
        token, until = self._tokens.get(audience, (b"", 0.0))
        if time.monotonic() > until:
            token = (await self._make_token(self._pod, audience, seconds)).encode()
            self._tokens[audience] = token, time.monotonic() + 0.8 * seconds
        return token

    async def _of_object(self, kind: Kind, name: str, wanted: Json) -> dict[str, bytes]:
        data = await self._fetch(kind, self._pod.metadata.namespace, name)
        if data is None:
            if wanted.get("optional"):
                return {}
            raise KubeletError(f'{kind} "{name}" not found')
        if not wanted.get("items"):
            return dict(data)
        missing = [each["key"] for each in wanted["items"] if each["key"] not in data]
        if missing and not wanted.get("optional"):
            raise KubeletError(f"references non-existent {'config' if kind == 'configmap' else kind} key: {missing[0]}")
        return {each["path"]: data[each["key"]] for each in wanted["items"] if each["key"] in data}

    def _of_fields(self, wanted: Json) -> dict[str, bytes]:
        return {each["path"]: self._field(each).encode() for each in wanted.get("items") or ()}

    def _field(self, item: Json) -> str:
        if "fieldRef" in item:
            return downward_value(self._pod, item["fieldRef"]["fieldPath"], self._node_values)
        wanted = item["resourceFieldRef"]
        [container] = [each for each in self._pod.containers() if each["name"] == wanted["containerName"]]
        return resource_value(container, wanted)


def _write_files(directory: Path, content: Mapping[str, bytes]) -> None:
    """All files change at once: a link to a directory of them is replaced. Nothing happens where nothing changed."""
    data = directory / DATA_LINK
    before = {str(each.relative_to(data)): each.read_bytes() for each in data.rglob("*") if each.is_file()}
    if data.exists() and before == content:
        return
    name = f"..{secrets.token_hex(4)}"
    for path, what in content.items():
        target = directory / name / _safe(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(what)
        target.chmod(0o600)
    (directory / name).mkdir(exist_ok=True)
    old = data.readlink() if data.is_symlink() else None
    (directory / f"{DATA_LINK}.new").symlink_to(name)
    (directory / f"{DATA_LINK}.new").replace(data)
    wanted = {PurePosixPath(path).parts[0] for path in content}
    for first in wanted:
        if not os.path.lexists(directory / first):
            (directory / first).symlink_to(f"{DATA_LINK}/{first}")
    for left in directory.iterdir():
        if left.is_symlink() and left.name != DATA_LINK and left.name not in wanted:
            left.unlink()
    if old is not None:
        shutil.rmtree(directory / old, ignore_errors=True)


def _safe(path: str) -> PurePosixPath:
    """A path below a directory (the API server refuses others). Raises KubeletError."""
    found = PurePosixPath(path)
    if found.is_absolute() or ".." in found.parts or not found.parts:
        raise KubeletError(f"invalid path {path!r} in a volume")
    return found
