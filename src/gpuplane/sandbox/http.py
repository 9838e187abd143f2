"""HTTP/1.1 on asyncio streams, as much as a client of an API server uses: bodies by length, answers in chunks."""

import asyncio
from collections.abc import AsyncIterable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

JSON_TYPE = "application/json"
MAX_REQUEST_BYTES = 1 << 20  # bytes of a request's head or body


class Request(msgspec.Struct, frozen=True):
    """One request; header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection; None at its end. Raises ValueError for what is no HTTP."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = dict[str, str]()
    for name, _, value in (line.partition(":") for line in lines):
        key = name.strip().lower()
        headers[key] = f"{headers[key]}, {value.strip()}" if key in headers else value.strip()  # RFC 9110, 5.3
    length = int(headers.get("content-length", 0))
    if length > MAX_REQUEST_BYTES:
        raise ValueError(f"a body of {length} bytes is too long")
    url = urlsplit(target)
    body = await reader.readexactly(length)
    query = dict(reversed(parse_qsl(url.query, keep_blank_values=True)))  # of a key that comes twice, the first counts
    return Request(method, url.path, query, headers, body)


async def send_response(writer: asyncio.StreamWriter, code: int, body: Any, content_type: str = JSON_TYPE) -> None:
    """Send a whole answer: JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    writer.write(response_head(code, f"Content-Length: {len(data)}", content_type) + data)
    await writer.drain()


async def send_stream(writer: asyncio.StreamWriter, lines: AsyncIterable[Any]) -> None:
    """Send an answer line by line, as JSON in chunks; the head goes at once."""
    writer.write(response_head(200, "Transfer-Encoding: chunked"))
    await writer.drain()
    async for line in lines:
        data = msgspec.json.encode(line) + b"\n"
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def send_endlessly(writer: asyncio.StreamWriter, piece: bytes, pause: float, where: str) -> None:
    """Send the same piece again and again, `pause` seconds apart, until the client goes.

    `where`: "body", "length" (a body that says how long it is) or "head" (a header without an end).
    """
    length = 1 << 40
    framing = {"body": "Transfer-Encoding: chunked", "length": f"Content-Length: {length}", "head": "X-More: "}[where]
    writer.write(response_head(200, framing).removesuffix(b"\r\n\r\n" if where == "head" else b""))
    while True:
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if where == "body" else piece)
        await writer.drain()
        await asyncio.sleep(pause)


def response_head(code: int, framing: str, content_type: str = JSON_TYPE) -> bytes:
    """What comes before a body. `framing`: the header that says how long that is."""
    return f"HTTP/1.1 {code} {HTTPStatus(code).phrase}\r\nContent-Type: {content_type}\r\n{framing}\r\n\r\n".encode()
