"""The sandbox's API server lets in whoever has its kubeconfig, and no other user or page on this machine."""

import asyncio

import httpx2
import msgspec
import pytest

from gpuplane.sandbox.apiserver.server import ApiServer

NODES = "/api/v1/nodes"


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer anyone", "Basic {token}", "{token}", "Bearer {token}x", "Bearer ü"],
)
@pytest.mark.parametrize("path", [NODES, f"{NODES}/a", f"{NODES}?watch=true", "/version", "/nothing"])
async def test_without_its_token(authorization: str, path: str) -> None:
    """The Status that a real server sends; nothing is told of what there is, and no injected failure is used up."""
    async with ApiServer() as server:
        server.put(f"{NODES}/a", {})
        value = authorization.format(token=server.token).encode()
        headers = {b"Authorization": value} if value else {}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers) as http:
            answer = await http.get(path)
            written = await http.put(f"{NODES}/a", json={})
    assert (answer.status_code, written.status_code) == (401, 401)
    assert answer.json() == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Unauthorized",
        "reason": "Unauthorized",
        "code": 401,
    }


async def test_each_server_has_its_own_token() -> None:
    one, other = ApiServer(), ApiServer()
    assert one.token != other.token
    assert len(one.token) >= 32
    [user] = msgspec.json.decode(one.kubeconfig())["users"]
    assert user["user"] == {"token": one.token}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize(
    ("hosts", "code"),
    [
        (("127.0.0.1:{port}",), 200),
        (("localhost:{port}",), 200),
        (("LOCALHOST:{port}",), 200),
        (("evil.example:{port}",), 421),
        (("127.0.0.1.evil.example:{port}",), 421),
        (("127.0.0.1",), 421),
        (("localhost:1",), 421),
        (("",), 421),
        ((), 421),
        (("127.0.0.1:{port}", "evil.example:{port}"), 421),
    ],
)
async def test_the_name_that_a_client_uses(hosts: tuple[str, ...], code: int, scheme: str) -> None:
    """A page whose name leads here (DNS rebinding) is sent away, also with the token."""
    async with ApiServer() as server:
        port = server.url.rpartition(":")[2]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        lines = [f"Host: {each.format(port=port)}" for each in hosts]
        head = "\r\n".join([f"GET {NODES} HTTP/1.1", *lines, f"Authorization: {scheme} {server.token}", "", ""])
        writer.write(head.encode())
        assert int((await reader.readline()).split()[1]) == code
        writer.close()
        await writer.wait_closed()
