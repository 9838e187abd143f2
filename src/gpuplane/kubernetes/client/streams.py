"""Bodies and lines of answers, read so that no server can fill our memory or keep us busy."""

import time
from collections.abc import AsyncIterator

import httpx2

from gpuplane.kubernetes.client.errors import AnswerTooLarge, ApiServerError

MAX_ANSWER_BYTES = 4 << 20
"""Bytes of one answer, or of a stream at once. An object has at most 1.5 MiB in etcd, and some more as JSON."""
STREAM_BYTES_PER_SECOND = 256 << 10
"""Bytes that a stream may send in addition in each second: an object of that size every few seconds."""
MIN_PIECE_BYTES = 1 << 10
"""The fewest bytes that a piece counts for, however small it is: each takes time."""


async def read_body(answer: httpx2.Response) -> bytes:
    """The whole body of a response. Raises ApiServerError for one that is larger than any object."""
    content, total = bytearray(), 0
    async for piece in answer.aiter_raw():
        content += piece
        total += max(len(piece), MIN_PIECE_BYTES)
        if total > MAX_ANSWER_BYTES:
            raise AnswerTooLarge(
                f"{_url(answer)} answers with more than {MAX_ANSWER_BYTES >> 20} MiB: is it an API server?"
            )
    return bytes(content)


async def read_lines(answer: httpx2.Response) -> AsyncIterator[bytes]:
    """The whole lines of a stream. Raises ApiServerError for a line that is larger than any object, and for a flood of
    them."""
    rest, total, began = bytearray(), 0, time.monotonic()
    async for piece in answer.aiter_raw():
        total += max(len(piece), MIN_PIECE_BYTES)
        if total > MAX_ANSWER_BYTES + STREAM_BYTES_PER_SECOND * (time.monotonic() - began):
            raise ApiServerError(f"{_url(answer)} sends more data than these changes need: is it an API server?")
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in whole:
                yield line
        if len(rest) > MAX_ANSWER_BYTES:
            raise ApiServerError(
                f"{_url(answer)} sends a line of more than {MAX_ANSWER_BYTES >> 20} MiB: is it an API server?"
            )


def _url(answer: httpx2.Response) -> str:
    return str(answer.url.copy_with(query=None))
