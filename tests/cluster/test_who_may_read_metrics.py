"""Metrics over TLS for those whom a real API server allows, with the rights that ship."""

import asyncio
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpuplane.sandbox.agent import Agent
from tests.cluster.controlplane import Client, ControlPlane
from tests.deploy.kustomize import DEPLOY, apply, build
from tests.service.secret import Secret
from tests.service.test_pages_over_tls import free_port, trusting

ACCOUNTS = "/api/v1/namespaces/gpuplane/serviceaccounts"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
RBAC = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """With the agent's rights, and two more accounts, of which one may read."""
    objects = apply(DEPLOY / "components/metrics-authorization", build(DEPLOY / "overlays/nvidia-runtime"))
    async with Client(control_plane) as admin:
        for each in sorted(
            (each for each in objects if each["kind"] in RBAC), key=lambda each: RBAC.index(each["kind"])
        ):
            status, answer = await admin.apply(each)
            assert status < 300, answer
        for name in ("reader", "other"):
            await admin.ask("POST", ACCOUNTS, {"metadata": {"name": name}})
        await bind(admin)
        yield admin


async def bind(admin: Client) -> None:
    """As docs/monitoring.md says it."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gpuplane-metrics-reader"}
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": "gpuplane"}
    await admin.ask("POST", BINDINGS, {"metadata": {"name": "reads"}, "roleRef": role, "subjects": [subject]})


async def token_of(admin: Client, account: str) -> str:
    """A token of an account."""
    answer = await admin.ask("POST", f"{ACCOUNTS}/{account}/token", {"spec": {"expirationSeconds": 3600}})
    return str(answer["status"]["token"])


def status(url: str, token: str = "") -> int:
    """The status of a page."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=60, context=trusting()) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def serving(url: str) -> None:
    """Wait until an agent serves its pages."""
    async with asyncio.timeout(90):
        while True:
            try:
                await asyncio.to_thread(status, f"{url}/healthz")
                return
            except (urllib.error.URLError, ssl.SSLError, ConnectionError):
                await asyncio.sleep(0.1)


async def test_only_readers_get_metrics(admin: Client, control_plane: ControlPlane, tmp_path: Path) -> None:
    """Others may not, and made-up tokens are nobody's. Probes need none. No token is in the log."""
    secret, port = Secret(tmp_path / "tls", "first"), free_port()
    (tmp_path / "kubeconfig").write_text(control_plane.kubeconfig_of(await token_of(admin, "gpuplane-agent")))
    reader, other = [await token_of(admin, name) for name in ("reader", "other")]
    url = f"https://127.0.0.1:{port}"
    async with Agent(
        "--machine", "t4", "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s", "--cdi-dir", "",
        "--kubeconfig", tmp_path / "kubeconfig", "--metrics-address", f"127.0.0.1:{port}",
        "--tls-cert-file", secret.files.certificate, "--tls-private-key-file", secret.files.private_key,
        "--authorization-mode", "Webhook",
    ) as agent:  # fmt: skip
        await serving(url)
        assert await asyncio.to_thread(status, f"{url}/metrics", reader) == 200
        assert await asyncio.to_thread(status, f"{url}/metrics", other) == 403
        assert await asyncio.to_thread(status, f"{url}/metrics", f"{reader[:-8]}AAAAAAAA") == 401
        assert await asyncio.to_thread(status, f"{url}/metrics") == 401

        control_plane.run("restart", "kube-apiserver")
        assert await asyncio.to_thread(status, f"{url}/metrics", reader) == 200
        assert await asyncio.to_thread(status, f"{url}/healthz") == 200
        assert not any(token in line for token in (reader, other) for line in agent.log)


async def test_an_agent_without_the_right_says_what_gives_it(
    admin: Client, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Nobody reads; the log names the component."""
    secret, port = Secret(tmp_path / "tls", "first"), free_port()
    (tmp_path / "kubeconfig").write_text(control_plane.kubeconfig_of(await token_of(admin, "other")))
    reader = await token_of(admin, "reader")
    async with Agent(
        "--machine", "t4", "--kubelet-root", tmp_path / "k", "--state-dir", tmp_path / "s", "--cdi-dir", "",
        "--kubeconfig", tmp_path / "kubeconfig", "--metrics-address", f"127.0.0.1:{port}",
        "--tls-cert-file", secret.files.certificate, "--tls-private-key-file", secret.files.private_key,
        "--authorization-mode", "Webhook",
    ) as agent:  # fmt: skip
        await serving(f"https://127.0.0.1:{port}")
        assert await asyncio.to_thread(status, f"https://127.0.0.1:{port}/metrics", reader) == 503
        await agent.until_says("metrics authorization", "component metrics-authorization")
