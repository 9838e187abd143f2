"""The authority of a cluster, held against OpenSSL as Python has it."""

import asyncio
import resource
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuplane.sandbox.controlplane import certificates
from gpuplane.sandbox.controlplane.certificates import Authority, KeyPair

FILES = ("ca.crt", "ca.key", "sa.key")


def test_it_is_kept(tmp_path: Path) -> None:
    """Keys are ours alone."""
    first = Authority.load_or_make(tmp_path / "a/pki")
    second = Authority.load_or_make(tmp_path / "a/pki")

    assert first.certificate == second.certificate == second.certificate_file.read_bytes()
    assert {(tmp_path / path).stat().st_mode & 0o777 for path in ("a", "a/pki")} == {0o700}
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a/pki").iterdir()} == {
        "ca.crt": 0o644,
        "ca.key": 0o600,
        "sa.key": 0o600,
    }


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [None, b"", b"x\0y", b"-----BEGIN PRIVATE KEY-----\nAA\n", "other"])
def test_one_that_is_damaged_is_replaced(tmp_path: Path, name: str, content: bytes | str | None) -> None:
    """As a whole: no key is without its certificate. A key for tokens that is another one does no harm."""
    made, other = Authority.load_or_make(tmp_path), Authority.load_or_make(tmp_path / "other")
    if content is None:
        (tmp_path / name).unlink()
    elif isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        (tmp_path / name).write_bytes((tmp_path / "other" / name).read_bytes())
    again = Authority.load_or_make(tmp_path)

    assert (again.certificate == made.certificate) == (content == "other" and name == "sa.key")
    assert again.certificate != other.certificate
    assert Authority.load_or_make(tmp_path).certificate == again.certificate


def test_one_that_expires_within_a_year_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it issues would be valid for longer than itself."""
    monkeypatch.setattr(certificates, "AUTHORITY_LIFETIME", timedelta(days=364))
    old = Authority.load_or_make(tmp_path).certificate
    monkeypatch.undo()

    assert Authority.load_or_make(tmp_path).certificate != old


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """With its path."""
    (tmp_path / "pki").write_text("a file")

    with pytest.raises(OSError, match="pki"):
        Authority.load_or_make(tmp_path / "pki")


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """With the path, and nothing is left of it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # as small files as a full disk takes
    try:
        with pytest.raises(OSError, match=r"ca\.key"):
            Authority.load_or_make(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(tmp_path.iterdir()) == []


async def test_a_client_and_a_server_know_each_other(tmp_path: Path) -> None:
    """By name and by address, and the client's user and groups are those of Kubernetes."""
    authority = Authority.load_or_make(tmp_path / "pki")
    server = authority.issue_server(["node-a", "localhost"], ["127.0.0.1", "10.7.1.1"])
    client = authority.issue_client("system:node:node-a", ["system:nodes", "others"])
    for name in ("node-a", "localhost", "127.0.0.1", "10.7.1.1"):
        subject = await handshake(tmp_path, authority, server, client, name)

        assert subject == [
            ("organizationName", "system:nodes"),
            ("organizationName", "others"),
            ("commonName", "system:node:node-a"),
        ]


async def test_whoever_is_somebody_else_is_refused(tmp_path: Path) -> None:
    """Another name, another authority, and a certificate that is for clients alone."""
    authority, other = Authority.load_or_make(tmp_path / "pki"), Authority.load_or_make(tmp_path / "other")
    server, client = authority.issue_server(["node-a"], ["10.7.1.1"]), authority.issue_client("a")
    for wrong_server, wrong_client, name in (
        (server, client, "node-b"),
        (server, client, "10.7.1.2"),
        (other.issue_server(["node-a"], []), client, "node-a"),
        (server, other.issue_client("a"), "node-a"),
        (authority.issue_client("node-a"), client, "node-a"),
        (server, server, "node-a"),
    ):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await handshake(tmp_path, authority, wrong_server, wrong_client, name)


async def handshake(
    directory: Path, authority: Authority, server: KeyPair, client: KeyPair, name: str
) -> list[tuple[str, str]]:
    """The subject of the client, as the server sees it. Raises SSLError or ConnectionError."""
    seen = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found: Any = writer.get_extra_info("peercert")
        seen.set_result([part for parts in found["subject"] for part in parts])
        writer.write(b"x")
        writer.close()

    theirs, ours = (
        context(directory, authority, pair, protocol)
        for pair, protocol in ((server, ssl.PROTOCOL_TLS_SERVER), (client, ssl.PROTOCOL_TLS_CLIENT))
    )
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=theirs) as listening:
        port = listening.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ours, server_hostname=name)
        try:
            await reader.readexactly(1)
            subject: list[tuple[str, str]] = await seen
            return subject
        except asyncio.IncompleteReadError:
            raise ConnectionResetError("the server has refused") from None
        finally:
            writer.close()


def context(directory: Path, authority: Authority, pair: KeyPair, protocol: Any) -> ssl.SSLContext:
    found = ssl.SSLContext(protocol)
    found.verify_mode = ssl.CERT_REQUIRED
    found.verify_flags |= ssl.VERIFY_X509_STRICT
    found.load_verify_locations(cadata=authority.certificate.decode())
    (directory / "pair").write_bytes(pair.certificate + pair.key)
    found.load_cert_chain(directory / "pair")
    return found
