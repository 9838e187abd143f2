"""Volumes of a pod as directories: files of objects change at once, and paths of the host lie below the node's root."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node.environment import Kind
from gpuplane.sandbox.node.objects import PodObject
from gpuplane.sandbox.node.ownimage import HostPaths
from gpuplane.sandbox.node.volumes import Volumes
from tests.sandbox.node.objects import bound_pod

Json = dict[str, Any]


class Api:
    """What volumes ask for. `tokens`: how many were made."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, bytes]] = {}
        self.tokens = 0

    async def fetch(self, kind: Kind, namespace: str, name: str) -> Mapping[str, bytes] | None:
        return self.objects.get((kind, name))

    async def make_token(self, pod: PodObject, audience: str, seconds: int) -> str:
        self.tokens += 1
        return f"{audience}-{self.tokens}"


def volumes(root: Path, api: Api, *sources: Json) -> Volumes:
    pod = bound_pod(volumes=[{"name": f"v{number}", **each} for number, each in enumerate(sources)])
    paths = HostPaths(root / "host", root / "kubelet", root / "run", root / "machine.yaml")
    return Volumes(pod, root / "pod", paths, {"spec.nodeName": "n1"}, api.fetch, api.make_token)


def content(directory: Path) -> dict[str, bytes]:
    """The files that a program sees."""
    seen = [each for each in directory.iterdir() if not each.name.startswith("..")]
    return {str(path.relative_to(directory)): path.read_bytes() for each in seen
            for path in (each.rglob("*") if each.is_dir() else [each]) if path.is_file()}  # fmt: skip


async def test_files_of_a_config_map_follow_it(tmp_path: Path) -> None:
    api = Api()
    api.objects["configmap", "c"] = {"a": b"1", "b": b"2"}
    found = volumes(tmp_path, api, {"configMap": {"name": "c"}})
    directory = (await found.write())["v0"]
    assert content(directory) == {"a": b"1", "b": b"2"}
    before = (directory / "..data").readlink()

    await found.write()
    assert (directory / "..data").readlink() == before
    api.objects["configmap", "c"] = {"a": b"new", "c": b"3"}
    await found.write()
    assert content(directory) == {"a": b"new", "c": b"3"}
    assert not (directory / before).exists()


async def test_items_choose_keys_and_paths(tmp_path: Path) -> None:
    api = Api()
    api.objects["secret", "s"] = {"key": b"k", "other": b"o"}
    items = [{"key": "key", "path": "deep/er/file"}]
    found = await volumes(tmp_path, api, {"secret": {"secretName": "s", "items": items}}).write()
    assert content(found["v0"]) == {"deep/er/file": b"k"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"configMap": {"name": "c"}}, 'MountVolume.SetUp failed for volume "v0" : configmap "c" not found'),
        ({"secret": {"secretName": "s"}}, 'MountVolume.SetUp failed for volume "v0" : secret "s" not found'),
    ],
)
async def test_what_is_missing_is_said_unless_it_is_optional(tmp_path: Path, source: Json, said: str) -> None:
    with pytest.raises(KubeletError) as refused:
        await volumes(tmp_path, Api(), source).write()
    assert str(refused.value) == said
    [[kind, wanted]] = source.items()
    found = await volumes(tmp_path, Api(), {kind: {**wanted, "optional": True}}).write()
    assert content(found["v0"]) == {}


async def test_a_service_account_has_a_token_that_is_not_asked_for_each_time(tmp_path: Path) -> None:
    api = Api()
    api.objects["configmap", "kube-root-ca.crt"] = {"ca.crt": b"pem"}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    found = volumes(tmp_path, api, {"projected": {"sources": sources}})
    for _ in range(3):
        directory = (await found.write())["v0"]
    assert content(directory) == {"token": b"-1", "ca.crt": b"pem", "namespace": b"ns"}
    assert (directory / "token").stat().st_mode & 0o777 == 0o600


async def test_paths_of_the_host_lie_below_the_nodes_root(tmp_path: Path) -> None:
    wanted = {"path": "/var/lib/gpuplane", "type": "DirectoryOrCreate"}
    kubelets = {"path": "/var/lib/kubelet/plugins", "type": "Directory"}
    file = {"path": "/etc/x/file", "type": "FileOrCreate"}
    (tmp_path / "kubelet").mkdir()
    each: tuple[Json, ...] = {"hostPath": wanted}, {"hostPath": kubelets}, {"hostPath": file}, {"emptyDir": {}}
    found = await volumes(tmp_path, Api(), *each).write()
    assert found["v0"] == tmp_path / "host/var/lib/gpuplane"
    assert found["v1"] == tmp_path / "kubelet/plugins"
    assert (found["v2"].is_file(), found["v3"].is_dir()) == (True, True)
