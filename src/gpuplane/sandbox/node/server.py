"""Kubelet's HTTPS server: logs of containers, its pods, its health. Whoever asks has a certificate of the cluster.

What nothing runs for is refused in a sentence: kubectl shows it (pkg/kubelet/server/server.go has the paths).
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from gpuplane.sandbox.http import Request, read_request, response_head, send_response
from gpuplane.sandbox.node.containers import PodRun
from gpuplane.sandbox.node.nodeobject import KUBELET_PORT

TEXT_TYPE = "text/plain"
PIECE_BYTES = 1 << 16
SECONDS_BETWEEN_LOOKS = 0.2
"""Of a log that is followed, whether it has grown."""
CANNOT = "{what} is not possible in a played pod: no program runs in it. kubectl logs shows what its container got\n"
REFUSED_PATHS = {"exec": "exec", "run": "exec", "attach": "attach", "portForward": "port-forward"}


class Failure(Exception):
    """A request that is refused: its status, and a sentence."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class LogWanted(NamedTuple):
    """Of a log: the last lines alone, at most so many bytes, and what is added to it."""

    tail: int | None
    limit: int | None
    follow: bool


class KubeletServer:
    """`async with KubeletServer(...).serving()`. `runs`: the pods of the node, by UID."""

    def __init__(self, address: str, context: ssl.SSLContext, runs: Mapping[str, PodRun]) -> None:
        self._address, self._context, self._runs = address, context, runs
        self._connections = set[asyncio.Task[None]]()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve until the block ends. Raises OSError."""
        server = await asyncio.start_server(self._accept, self._address, KUBELET_PORT, ssl=self._context)
        try:
            yield
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with suppress(OSError, ValueError):
                while (request := await read_request(reader)) is not None:
                    await self._answer(request, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        first, *rest = request.path.strip("/").split("/")
        try:
            if first == "healthz":
                await send_response(writer, HTTPStatus.OK, b"ok", TEXT_TYPE)
            elif first == "pods":
                items = [run.pod.as_json() for run in self._runs.values()]
                pods = {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}
                await send_response(writer, HTTPStatus.OK, pods)
            elif first == "containerLogs" and len(rest) == 3:
                await self._send_log(writer, rest[0], rest[1], rest[2], request.query)
            elif first in REFUSED_PATHS:
                raise Failure(HTTPStatus.NOT_IMPLEMENTED, CANNOT.format(what=REFUSED_PATHS[first]))
            else:
                raise Failure(HTTPStatus.NOT_FOUND, f"a played node does not serve {request.path}\n")
        except Failure as failure:
            await send_response(writer, failure.status, str(failure).encode(), TEXT_TYPE)

    async def _send_log(
        self, writer: asyncio.StreamWriter, namespace: str, name: str, container: str, query: Mapping[str, str]
    ) -> None:
        """Raises Failure."""
        run = self._find(namespace, name)
        if container not in (each["name"] for each in run.pod.containers()):
            raise Failure(HTTPStatus.NOT_FOUND, f'container "{container}" not found in pod "{name}"\n')
        for key in ("timestamps", "sinceSeconds", "sinceTime"):
            if query.get(key) not in (None, "false"):
                raise Failure(HTTPStatus.BAD_REQUEST, f"{key}: a played node does not keep the times of lines\n")
        previous = query.get("previous") == "true"
        path = run.log_file(container, previous)
        if not path.exists():
            which = "previous terminated container" if previous else "container"
            raise Failure(HTTPStatus.BAD_REQUEST, f'{which} "{container}" in pod "{name}" not found\n')
        tail, limit = (int(query[key]) if key in query else None for key in ("tailLines", "limitBytes"))
        await self._stream(writer, run, container, path, LogWanted(tail, limit, query.get("follow") == "true"))

    async def _stream(
        self, writer: asyncio.StreamWriter, run: PodRun, container: str, path: Path, wanted: LogWanted
    ) -> None:
        writer.write(response_head(HTTPStatus.OK, "Transfer-Encoding: chunked", TEXT_TYPE))
        left = wanted.limit
        with path.open("rb") as file:
            if wanted.tail is not None:
                file.seek(_start_of_tail(file.read(), wanted.tail))
            while True:
                piece = file.read(PIECE_BYTES)[:left]
                if piece:
                    writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    await writer.drain()
                    left = None if left is None else left - len(piece)
                elif not wanted.follow or not run.record(container).is_running or run.log_file(container) != path:
                    break
                else:
                    await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
                    if writer.transport.is_closing():
                        return
                if left == 0:
                    break
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _find(self, namespace: str, name: str) -> PodRun:
        """Raises Failure."""
        for run in self._runs.values():
            if (run.pod.metadata.namespace, run.pod.metadata.name) == (namespace, name):
                return run
        raise Failure(HTTPStatus.NOT_FOUND, f'pod "{namespace}/{name}" not found\n')


def _start_of_tail(content: bytes, lines: int) -> int:
    """Where the last lines begin."""
    at = len(content)
    for _ in range(lines + (content[-1:] == b"\n")):
        at = content.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1
