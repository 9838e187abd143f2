"""Who may read metrics: the API server says it, as for kubelet, kube-rbac-proxy and controller-runtime.

The bearer token of a request is reviewed (TokenReview), and then whether its user may `get` the path (a
SubjectAccessReview of a nonResourceURL). Where a request comes from does not matter.

- An answer is remembered for a while, and there is a bound to how many are. Tokens that nobody knows are reviewed some
  times a second: whoever makes them up reaches the API server no more often, and drives out no answer about others.
- While the API server does not answer, who was allowed before stays so for `KEPT_WHILE_AWAY`. That is when metrics are
  needed most; an access that is taken away in that time ends when the server is back. Everybody else gets 503.
- Tokens are neither kept nor logged: an answer is remembered by a digest of its token.

The HTTP library is imported at the first request that has a token.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from gpuplane.kubernetes.client import ApiServerError, connect
from gpuplane.service.daemonpages import text_page
from gpuplane.service.httpserver import Page

if TYPE_CHECKING:
    from gpuplane.kubernetes.client.api import ApiClient

ALLOWED_SECONDS, REFUSED_SECONDS = 120.0, 10.0
"""Seconds for which an answer counts: kubelet's for tokens (2 min), and the API server's own for refusals."""
KEPT_WHILE_AWAY = 600.0
"""Seconds since the last answer for which somebody who was allowed stays so while the API server does not answer."""
MAX_ANSWERS = 64
"""Answers of each kind that are remembered: of those who were allowed, and of others."""
MAX_NEW_REVIEWS_PER_SECOND = 10
MAX_TOKEN_BYTES = 16 << 10
REVIEW_TIMEOUT = 5.0
"""Seconds for both reviews: a scrape has to end within ten."""

TOKEN_REVIEW = "authentication.k8s.io/v1", "TokenReview"
ACCESS_REVIEW = "authorization.k8s.io/v1", "SubjectAccessReview"
PERMISSION_ADVICE = "the component metrics-authorization gives the right to ask"

T = TypeVar("T")

REFUSAL_TEXTS = {
    HTTPStatus.UNAUTHORIZED: "metrics need a bearer token that the API server accepts",
    HTTPStatus.FORBIDDEN: "the user of this token may not get the nonResourceURL /metrics",
    HTTPStatus.SERVICE_UNAVAILABLE: "the API server does not say who may read metrics",
}


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: Mapping[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)


class _TokenReview(msgspec.Struct):
    status: _TokenStatus = msgspec.field(default_factory=_TokenStatus)


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _SubjectAccessReview(msgspec.Struct):
    status: _AccessStatus = msgspec.field(default_factory=_AccessStatus)


class _Answer(NamedTuple):
    """What the API server said of a token, and when (CLOCK_MONOTONIC)."""

    status: HTTPStatus
    given_at: float


class MetricsAuthorization:
    """Asks the API server, and remembers its answers. Belongs to the event loop in which it is made."""

    def __init__(self, kubeconfig: Path | None, path: str, report: Callable[[str], None]) -> None:
        """`path`: the nonResourceURL. `report` is told what keeps the API server from answering, and "" afterwards."""
        self._kubeconfig, self._path, self._report = kubeconfig, path, report
        self._loop, self._stack = asyncio.get_running_loop(), AsyncExitStack()
        self._client: ApiClient | None = None
        self._allowed: dict[bytes, _Answer] = {}  # digest of a token → the answer; the oldest first
        self._refused: dict[bytes, _Answer] = {}
        self._second, self._new_reviews = 0, 0  # how many there were in that second

    async def close(self) -> None:
        """End the connection."""
        await self._stack.aclose()

    def refuse(self, authorization: str) -> Page | None:
        """The answer to a request that may not read; None for one that may. Called by threads of the HTTP server."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token.isascii() or not 0 < len(token) <= MAX_TOKEN_BYTES:
            return _refusal(HTTPStatus.UNAUTHORIZED)
        try:
            asked = asyncio.run_coroutine_threadsafe(self._ask(token), self._loop)
            status = asked.result(2 * REVIEW_TIMEOUT)
        except (TimeoutError, CancelledError, RuntimeError):  # the event loop is stuck, or has ended
            status = HTTPStatus.SERVICE_UNAVAILABLE
        return None if status == HTTPStatus.OK else _refusal(status)

    async def _ask(self, token: str) -> HTTPStatus:
        """What the API server says of a token, or has said."""
        digest, now = hashlib.sha256(token.encode()).digest(), time.monotonic()
        known = self._allowed.get(digest) or self._refused.get(digest)
        if known is not None:
            age = now - known.given_at
            if age < (ALLOWED_SECONDS if known.status == HTTPStatus.OK else REFUSED_SECONDS):
                return known.status
        was_allowed = known is not None and known.status == HTTPStatus.OK
        if not was_allowed and not self._may_review_another(now):
            return HTTPStatus.SERVICE_UNAVAILABLE
        try:
            async with asyncio.timeout(REVIEW_TIMEOUT):
                status = await self._review(token)
        except (ApiServerError, TimeoutError) as error:
            self._report(_problem(error))
            kept = was_allowed and known is not None and now - known.given_at < KEPT_WHILE_AWAY
            return HTTPStatus.OK if kept else HTTPStatus.SERVICE_UNAVAILABLE
        self._report("")
        self._remember(digest, _Answer(status, now))
        return status

    def _may_review_another(self, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._new_reviews = int(now), 0
        self._new_reviews += 1
        return self._new_reviews <= MAX_NEW_REVIEWS_PER_SECOND

    def _remember(self, digest: bytes, answer: _Answer) -> None:
        for answers in (self._allowed, self._refused):
            answers.pop(digest, None)
        answers = self._allowed if answer.status == HTTPStatus.OK else self._refused
        answers[digest] = answer
        if len(answers) > MAX_ANSWERS:
            del answers[next(iter(answers))]

    async def _review(self, token: str) -> HTTPStatus:
        """Ask the API server. Raises ApiServerError, TimeoutError."""
        found = await self._create(*TOKEN_REVIEW, {"token": token}, _TokenReview)
        if not found.status.authenticated:
            return HTTPStatus.UNAUTHORIZED
        user = found.status.user
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "nonResourceAttributes": {"path": self._path, "verb": "get"},
        }
        access = (await self._create(*ACCESS_REVIEW, spec, _SubjectAccessReview)).status
        return HTTPStatus.OK if access.allowed and not access.denied else HTTPStatus.FORBIDDEN

    async def _create(self, version: str, kind: str, spec: Any, shape: type[T]) -> T:
        if self._client is None:
            self._client = await self._stack.enter_async_context(connect(self._kubeconfig))
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        return await self._client.send("POST", f"/apis/{version}/{kind.lower()}s", body, shape=shape)


def _refusal(status: HTTPStatus) -> Page:
    return text_page(status, REFUSAL_TEXTS[status])


def _problem(error: Exception) -> str:
    """What is wrong, and what to do. The texts are the API server's, and have nothing of a request."""
    if isinstance(error, TimeoutError):
        return f"the API server does not answer within {REVIEW_TIMEOUT:g} s"
    return f"{error}; {PERMISSION_ADVICE}" if getattr(error, "code", 0) == HTTPStatus.FORBIDDEN else f"{error}"
