"""A site that has a release, and does to each file what a test wants."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpuplane.sandbox.controlplane.programs import ETCD, NAMES
from gpuplane.sandbox.controlplane.releases import ETCD_VERSION

Answer = Callable[["Handler", bytes], None]
VERSION = "1.35.4"
"""Whose checksums do not stand in our program."""


def program(name: str, machine: int = 62, size: int = 300_000) -> bytes:
    """The head of a program for linux/amd64, and something behind it."""
    head = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + machine.to_bytes(2, "little")
    return (head + name.encode() * size)[:size]


class Site:
    """Path → content, and path → what is done instead of sending it."""

    def __init__(self, machine: int = 62, architecture: str = "amd64") -> None:
        self.content = dict[str, bytes]()
        self.answers = dict[str, Answer]()
        self.asked = list[tuple[str, str | None]]()
        """Each request: its path and range."""
        self.programs = {name: program(name, machine) for name in NAMES}
        etcd = f"etcd-v{ETCD_VERSION}-linux-{architecture}"
        self.etcd_folder = f"/etcd-io/etcd/releases/download/v{ETCD_VERSION}"
        self.archive = f"{self.etcd_folder}/{etcd}.tar.gz"
        self.put_archive(f"{etcd}/etcd", self.programs[ETCD])
        self.folder = f"/release/v{VERSION}/bin/linux/{architecture}"
        for name in NAMES[1:]:
            self.content[f"{self.folder}/{name}"] = self.programs[name]
            self.content[f"{self.folder}/{name}.sha256"] = hashlib.sha256(self.programs[name]).hexdigest().encode()

    def put_archive(self, member: str, content: bytes, **how: Any) -> None:
        """Its archive of etcd, with another file before it, and the sums."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data, more in (("README.md", b"read me", {}), (member, content, how)):
                found = tarfile.TarInfo(name)
                found.size = len(data)
                for key, value in more.items():
                    setattr(found, key, value)
                archive.addfile(found, io.BytesIO(data))
        self.content[self.archive] = packed.getvalue()
        sums = f"{'0' * 64}  other.tar.gz\n{hashlib.sha256(packed.getvalue()).hexdigest()}  {Path(self.archive).name}\n"
        self.content[f"{self.etcd_folder}/SHA256SUMS"] = sums.encode()


class Handler(BaseHTTPRequestHandler):
    """Sends what there is, in the range that is asked for."""

    site: Site
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """One request."""
        self.close_connection = True
        self.site.asked.append((self.path, self.headers["range"]))
        content = self.site.content.get(self.path)
        answer = self.site.answers.get(self.path, Handler.send)
        if content is None and self.path not in self.site.answers:
            self.head(404, 0)
        else:
            answer(self, content or b"")

    def send(self, content: bytes) -> None:
        """As a good server does."""
        wanted = self.headers["range"]
        if wanted is None:
            self.head(200, len(content))
            self.wfile.write(content)
            return
        begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if begin >= len(content):
            self.head(416, 0)
            return
        self.head(206, len(content) - begin, f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.wfile.write(content[begin:])

    def head(self, status: int, length: int, content_range: str = "", location: str = "") -> None:
        """A status and headers."""
        self.send_response(status)
        self.send_header("content-length", str(length))
        if content_range:
            self.send_header("content-range", content_range)
        if location:
            self.send_header("location", location)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@contextmanager
def serve(site: Site) -> Iterator[str]:
    """Its address."""
    handler = type("SiteHandler", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
