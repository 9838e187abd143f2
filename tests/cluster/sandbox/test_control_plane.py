"""A cluster that the sandbox starts: the real programs, with our authority, on loopback."""

import asyncio
import base64
import signal
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import pytest_asyncio
import yaml

from gpuplane.sandbox.controlplane.certificates import Authority
from gpuplane.sandbox.controlplane.controlplane import ControlPlane
from gpuplane.sandbox.controlplane.network import choose_network
from gpuplane.sandbox.controlplane.programs import NAMES
from tests.sandbox.controlplane.pids import gone

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("played cluster")]

Json = dict[str, Any]
CONFIGMAPS, NODES = "/api/v1/namespaces/default/configmaps", "/api/v1/nodes"
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from gpuplane.sandbox.controlplane.certificates import Authority
from gpuplane.sandbox.controlplane.controlplane import ControlPlane
from gpuplane.sandbox.controlplane.network import choose_network

async def main():
    state, programs = map(Path, sys.argv[1:])
    control_plane = ControlPlane(state, programs, Authority.load_or_make(state / "pki"), choose_network())
    async with control_plane:
        print(*control_plane.pids.values(), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def cluster(state: Path, programs: Path, **more: Any) -> AsyncIterator[ControlPlane]:
    network = choose_network()
    try:
        async with ControlPlane(state, programs, Authority.load_or_make(state / "pki"), network, **more) as found:
            yield found
    finally:
        network.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(state: Path, programs: Path) -> AsyncIterator[ControlPlane]:
    async with cluster(state, programs, kept=False) as found:
        yield found


@asynccontextmanager
async def client(
    control_plane: ControlPlane | SimpleNamespace, user: str, *groups: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """Whoever has a client certificate."""
    trusted = ssl.create_default_context(cadata=control_plane.authority.certificate.decode())
    load(trusted, control_plane.directory, control_plane.authority.issue_client(user, groups))
    async with httpx2.AsyncClient(base_url=control_plane.url, verify=trusted, timeout=60, trust_env=False) as found:
        yield found


def load(context: ssl.SSLContext, directory: Path, pair: tuple[bytes, bytes]) -> None:
    (directory / "test.pem").write_bytes(b"".join(pair))
    context.load_cert_chain(directory / "test.pem")


def server_of(kubeconfig: Path) -> str:
    return str(yaml.safe_load(kubeconfig.read_bytes())["clusters"][0]["cluster"]["server"])


def node(name: str, address: str = "", port: int = 0) -> Json:
    status = {
        "addresses": [{"type": "InternalIP", "address": address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    return {"kind": "Node", "metadata": {"name": name}, "status": status if address else {}}


@pytest.mark.skipif(which("kubectl") is None, reason="kubectl is not installed")
async def test_kubectl_is_the_administrator(running: ControlPlane) -> None:
    """By the kubeconfig in the state directory, which is ours alone."""
    command = ["kubectl", "--kubeconfig", str(running.kubeconfig), "auth", "can-i", "*", "*"]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    said, _ = await process.communicate()

    assert said == b"yes\n"
    assert running.kubeconfig.stat().st_mode & 0o777 == 0o600
    assert running.version.startswith("1.")


async def test_whoever_nobody_knows_may_nothing(running: ControlPlane) -> None:
    """Not without a certificate, not with one that grants nothing."""
    trusted = ssl.create_default_context(cadata=running.authority.certificate.decode())
    async with httpx2.AsyncClient(base_url=running.url, verify=trusted, timeout=60, trust_env=False) as nobody:
        assert (await nobody.get(NODES)).status_code == 403
    async with client(running, "somebody", "people") as somebody:
        assert (await somebody.get(NODES)).status_code == 403
    assert server_of(running.kubeconfig) == running.url


async def test_a_node_may_change_itself_alone(running: ControlPlane) -> None:
    """The Node authorizer and NodeRestriction."""
    async with client(running, "system:node:first", "system:nodes") as first:
        assert (await first.post(NODES, json=node("first"))).status_code == 201
        assert (await first.post(NODES, json=node("second"))).status_code == 403
        assert (await first.get("/api/v1/secrets")).status_code == 403


async def test_the_api_server_reaches_a_node(running: ControlPlane) -> None:
    """By its address, which nobody routes; it knows the node by its certificate, and the node the API server."""
    address = running.network.allocate()
    loopback = running.network.loopback(address)
    seen = list[bytes]()

    async def kubelet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer: Any = writer.get_extra_info("peercert")
        seen.append(str(peer["subject"]).encode() + await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=running.authority.certificate.decode())
    load(context, running.directory, running.authority.issue_server(["reached"], [address]))
    async with (
        await asyncio.start_server(kubelet, loopback, 0, ssl=context) as server,
        client(running, "admin", "system:masters") as admin,
    ):
        port = server.sockets[0].getsockname()[1]
        await admin.post(NODES, json=node("reached", address, port))
        answer = await admin.get(f"{NODES}/reached/proxy/healthz")

        assert (answer.status_code, answer.text) == (200, "ok"), answer.text
    assert b"GET /healthz" in seen[0]
    assert b"kube-apiserver-kubelet-client" in seen[0]


async def test_the_api_server_reaches_a_service(running: ControlPlane) -> None:
    """An admission webhook behind a Service, whose address nobody routes: by the address of its pod."""
    address, asked = running.network.allocate(), list[str]()

    async def webhook(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        writer.close()  # without an answer: the request is refused

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, running.directory, running.authority.issue_server(["hook.default.svc"], []))
    async with (
        await asyncio.start_server(webhook, running.network.loopback(address), 0, ssl=context) as server,
        client(running, "admin", "system:masters") as admin,
    ):
        for path, made in webhook_objects(address, server.sockets[0].getsockname()[1], running.authority.certificate):
            answer = await admin.post(path, json=made)
            assert answer.status_code == 201, answer.text
        async with asyncio.timeout(60):
            while not asked:  # until it knows of the webhook
                refused = await admin.post(f"{CONFIGMAPS}?dryRun=All", json={"metadata": {"generateName": "a-"}})
        hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        await admin.delete(f"{hooks}/hook")

    assert asked[0].startswith("POST /asked?")
    assert "failed calling webhook" in refused.text


def webhook_objects(address: str, port: int, authority: bytes) -> list[tuple[str, Json]]:
    """A Service, its one endpoint, and a webhook for ConfigMaps that it serves: where each is made, and what."""
    ports = [{"name": "https", "port": 443, "targetPort": port}]
    labels = {"kubernetes.io/service-name": "hook"}
    slice = {
        "metadata": {"name": "hook", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port}],
    }
    hook = {
        "name": "hook.example.com",
        "clientConfig": {
            "service": {"namespace": "default", "name": "hook", "path": "/asked"},
            "caBundle": base64.b64encode(authority).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    groups = "/apis/discovery.k8s.io/v1/namespaces/default", "/apis/admissionregistration.k8s.io/v1"
    return [
        ("/api/v1/namespaces/default/services", {"metadata": {"name": "hook"}, "spec": {"ports": ports}}),
        (f"{groups[0]}/endpointslices", slice),
        (f"{groups[1]}/validatingwebhookconfigurations", {"metadata": {"name": "hook"}, "webhooks": [hook]}),
    ]


async def test_other_addresses_are_not_reached(running: ControlPlane) -> None:
    """A Node can say that it is anywhere."""
    async with client(running, "admin", "system:masters") as admin:
        await admin.post(NODES, json=node("elsewhere", "192.0.2.1", 10250))
        answer = await admin.get(f"{NODES}/elsewhere/proxy/healthz")

    assert answer.status_code >= 500
    assert "code 403" in answer.text


async def test_service_accounts_have_tokens(running: ControlPlane) -> None:
    """Which the API server takes."""
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    async with client(running, "admin", "system:masters") as admin:
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = (await admin.post(path, json=request)).json()["status"]["token"]
    trusted = ssl.create_default_context(cadata=running.authority.certificate.decode())
    async with httpx2.AsyncClient(base_url=running.url, verify=trusted, timeout=60, trust_env=False) as pod:
        answer = await pod.get(NODES, headers={"authorization": f"Bearer {token}"})

    assert answer.status_code == 403  # and not 401
    assert "system:serviceaccount:default:default" in answer.text


@pytest.mark.parametrize("name", NAMES)
async def test_a_program_that_is_killed_runs_again(running: ControlPlane, name: str) -> None:
    """With what the cluster knows."""
    async with client(running, "admin", "system:masters") as admin:
        made = await admin.post(CONFIGMAPS, json={"metadata": {"name": name}})
        before = running.pids
        await running.restart(name)

        assert made.status_code == 201
        assert {each for each in NAMES if running.pids[each] != before[each]} == {name}
        assert (await admin.get(f"{CONFIGMAPS}/{name}")).status_code == 200


async def test_nobody_else_may_speak_to_etcd(running: ControlPlane) -> None:
    """It has no authentication: it listens on sockets that are ours alone, and nowhere else."""
    sockets = [path for path in running.directory.iterdir() if path.is_socket()]

    assert len(sockets) == 3
    assert {path.stat().st_mode & 0o077 for path in sockets} == {0}
    inodes = {str(each.readlink()) for each in Path(f"/proc/{running.pids['etcd']}/fd").iterdir()}
    listening = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{running.pids['etcd']}/net/{table}").read_text().splitlines()[1:]
    ]
    assert not [each for each in listening if each[3] == "0A" and f"socket:[{each[9]}]" in inodes]


@pytest.mark.timeout(600)
async def test_a_cluster_that_is_killed_starts_again(tmp_path: Path, programs: Path, running: ControlPlane) -> None:
    """With all that it knew, in the same directory, beside another one. Nothing of the killed one is left running."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, tmp_path, programs, stdout=PIPE)
    assert process.stdout is not None
    pids = [int(pid) for pid in (await process.stdout.readline()).split()]
    assert len(pids) == 4
    where = SimpleNamespace(url=server_of(tmp_path / "kubeconfig"), directory=tmp_path)
    where.authority = Authority.load_or_make(tmp_path / "pki")
    async with client(where, "admin", "system:masters") as admin:
        assert (await admin.post("/api/v1/namespaces", json={"metadata": {"name": "kept"}})).status_code == 201
    process.send_signal(signal.SIGKILL)
    await process.wait()
    for pid in pids:
        await gone(pid)

    async with cluster(tmp_path, programs) as again:
        assert again.network.number != running.network.number
        async with client(again, "admin", "system:masters") as admin:
            assert (await admin.get("/api/v1/namespaces/kept")).status_code == 200
        pids = [*again.pids.values()]
    for pid in pids:
        await gone(pid)
    assert not [path for path in tmp_path.iterdir() if path.is_socket()]
