"""A program that gives our credentials, as kubeconfigs of clouds name one: it is bounded in time and words."""

import asyncio
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from gpuplane.kubernetes.client import credentials, retry
from gpuplane.node.apiserver.node import CONFIG_LABEL
from gpuplane.node.core.requests import node_requests
from gpuplane.sandbox.apiserver.server import ApiServer
from tests.node.apiserver.test_node_requests import PATH, following, node_object
from tests.texts import as_shown

GOOD = """
import json, os, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["kind"] == "ExecCredential" and not info["spec"]["interactive"], info
token = open(os.environ["TOKEN"]).read()
json.dump({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": {"token": token}}, sys.stdout)
"""


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(retry, "PAUSE_LIMITS", (0.01, 0.05))
    async with ApiServer() as server:
        server.put(PATH, node_object({CONFIG_LABEL: "good"}))
        yield server


def kubeconfig(server: ApiServer, directory: Path, program: str, **more: Any) -> Path:
    """One that names a plugin of this text."""
    (directory / "token").write_text(server.token)
    (directory / "plugin.py").write_text(program)
    document = msgspec.json.decode(server.kubeconfig())
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(directory / "plugin.py")],
        "env": [{"name": "TOKEN", "value": str(directory / "token")}],
    }
    document["users"][0]["user"] = {"exec": {**plugin, **more}}
    path = directory / "kubeconfig"
    path.write_bytes(msgspec.json.encode(document))
    return path


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_its_token_is_ours(server: ApiServer, tmp_path: Path, version: str) -> None:
    """Also the next one, once the first is refused."""
    path = kubeconfig(server, tmp_path, GOOD, apiVersion=f"client.authentication.k8s.io/{version}")
    async with following(path) as node:
        await node.comes_to(lambda snapshot: node_requests(snapshot).config_name == "good")
        (tmp_path / "token").write_text("second")
        server.token = "second"
        await server.drop_connections()
        server.put(PATH, node_object({CONFIG_LABEL: "better"}))
        await node.comes_to(lambda snapshot: node_requests(snapshot).config_name == "better")


async def test_a_command_beside_the_file(server: ApiServer, tmp_path: Path) -> None:
    """A path is that of a file beside the kubeconfig, as with kubectl."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/plugin").symlink_to(sys.executable)
    async with following(kubeconfig(server, tmp_path, GOOD, command="bin/plugin")) as node:
        await node.stands("ok")


@pytest.mark.parametrize(
    ("program", "more", "why"),
    [
        ("while True: print('x' * 100000)", {}, "its output has more than 64 KiB"),
        ("import sys\nwhile True: print('x' * 100000, file=sys.stderr)", {}, "its output has more than 64 KiB"),
        ("import time; time.sleep(1000)", {}, "it did not end within 0.5 s"),
        ("import sys; sys.exit('log in\\x1b first')", {}, "it failed with status 1: log in\ufffd first"),
        ("print('no')", {}, "its output has no ExecCredential with a token"),
        ("print('{\"status\": {}}')", {}, "its output has no ExecCredential with a token"),
        ('print(\'{"status": {"token": "a\\\\nb"}}\')', {}, "its output has no ExecCredential with a token"),
        ("print('{\"x\":' + '[' * 20000)", {}, "its output has no ExecCredential with a token"),
        (
            'import os; os.write(1, b\'{"kind": "\\xff", "status": {"token": "\\xff"}}\')',
            {},
            "its output has no ExecCredential with a token",
        ),
        ("", {"command": "no-such-program", "installHint": "get it"}, "No such file or directory; get it"),
        ("", {"apiVersion": "example.com/v9"}, "its apiVersion example.com/v9 is not supported; supported: "),
    ],
    ids=[
        "words",
        "errors",
        "hangs",
        "fails",
        "no document",
        "no token",
        "no header",
        "nested",
        "no text",
        "missing",
        "version",
    ],
)
async def test_what_is_wrong_with_it_is_said(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, more: dict[str, Any], why: str
) -> None:
    """For little memory; nothing of it stays; and once it is well, all is."""
    if "sleep" in program:
        monkeypatch.setattr(credentials, "PLUGIN_TIMEOUT", 0.5)
    path = kubeconfig(server, tmp_path, program, **more)
    tracemalloc.start()
    try:
        async with following(path) as node:
            await node.stands("failing", why)
            assert "the credential plugin " in as_shown(node.apiserver.text if node.apiserver else "")
            if not more:
                monkeypatch.undo()
                (tmp_path / "plugin.py").write_text(GOOD)
                await node.stands("ok")
        assert tracemalloc.get_traced_memory()[1] < 16e6
    finally:
        tracemalloc.stop()
    async with asyncio.timeout(60):
        while any(str(tmp_path) in " ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])):
            await asyncio.sleep(0.05)
