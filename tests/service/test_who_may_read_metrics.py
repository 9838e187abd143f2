"""Who may read metrics: the API server says it, and its answers are remembered within bounds."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuplane.service import authorization
from gpuplane.service.authorization import MetricsAuthorization
from gpuplane.service.daemonpages import DaemonPages
from tests.service.reviewer import Reviewer, reviewing


class Reader:
    """Asks for pages as the HTTP server's threads do."""

    def __init__(self, kubeconfig: Path) -> None:
        self.reports: list[str] = []
        self.authorization = MetricsAuthorization(kubeconfig, "/metrics", self.reports.append)
        self.pages = DaemonPages()
        self.pages.refuse = self.authorization.refuse

    async def status(self, header: str, path: str = "/metrics") -> int:
        """The status of a page for a request with this header `Authorization`."""
        return (await asyncio.to_thread(self.pages.page, path, "", "", header)).status


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[tuple[Reviewer, Reader]]:
    """An API server, and pages that it guards."""
    with reviewing(folder) as (reviewer, kubeconfig):
        reader = Reader(kubeconfig)
        try:
            yield reviewer, reader
        finally:
            await reader.authorization.close()


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer good", 200),
        ("bearer  good ", 200),
        ("Bearer other", 403),
        ("Bearer unknown", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("", 401),
        ("Basic good", 401),
        ("Bearer g\xf6\xf6d", 401),
        ("Bearer " + "x" * 20_000, 401),
    ],
)
async def test_a_token_may_read_by_its_user(tmp_path: Path, header: str, status: int) -> None:
    """401 for a token that nobody knows, 403 for a user who may not. What can be no token is asked of nobody."""
    async with reading(tmp_path) as (reviewer, reader):
        assert await reader.status(header) == status
        assert [each["kind"] for each in reviewer.asked] == {
            200: ["TokenReview", "SubjectAccessReview"],
            403: ["TokenReview", "SubjectAccessReview"],
            401: ["TokenReview"] if header == "Bearer unknown" else [],
        }[status]


async def test_probes_are_open_to_everybody(tmp_path: Path) -> None:
    """kubelet asks without a token."""
    async with reading(tmp_path) as (reviewer, reader):
        assert await reader.status("", "/healthz") == 200
        assert await reader.status("", "/readyz") == 200
        assert reviewer.asked == []


async def test_an_answer_is_remembered_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is asked for again, and who has lost the right reads no more."""
    async with reading(tmp_path) as (reviewer, reader):
        for _ in range(3):
            assert await reader.status("Bearer good") == 200
            assert await reader.status("Bearer unknown") == 401
        assert len(reviewer.asked) == 3

        monkeypatch.setattr(authorization, "ALLOWED_SECONDS", 0.0)
        monkeypatch.setattr(authorization, "REFUSED_SECONDS", 0.0)
        reviewer.readers.clear()
        reviewer.tokens["unknown"] = "prometheus"
        assert await reader.status("Bearer good") == 403
        reviewer.readers.add("prometheus")
        assert await reader.status("Bearer unknown") == 200


async def test_answers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And those about tokens that nobody knows drive out none about others."""
    monkeypatch.setattr(authorization, "MAX_ANSWERS", 5)
    monkeypatch.setattr(authorization, "MAX_NEW_REVIEWS_PER_SECOND", 1000)
    async with reading(tmp_path) as (reviewer, reader):
        assert await reader.status("Bearer good") == 200
        for i in range(20):
            assert await reader.status(f"Bearer made-up-{i}") == 401
        assert (len(reader.authorization._allowed), len(reader.authorization._refused)) == (1, 5)
        asked = len(reviewer.asked)
        assert await reader.status("Bearer good") == 200
        assert len(reviewer.asked) == asked


async def test_made_up_tokens_reach_the_api_server_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was allowed before is asked about all the same."""
    monkeypatch.setattr(authorization, "ALLOWED_SECONDS", 0.0)
    async with reading(tmp_path) as (reviewer, reader):
        assert await reader.status("Bearer good") == 200
        monkeypatch.setattr(authorization, "MAX_NEW_REVIEWS_PER_SECOND", 0)
        asked = len(reviewer.asked)
        assert [await reader.status(f"Bearer made-up-{i}") for i in range(20)] == [503] * 20
        assert len(reviewer.asked) == asked
        assert await reader.status("Bearer good") == 200
        assert len(reviewer.asked) == asked + 2


@pytest.mark.parametrize("refuses", [500, 403])
async def test_who_was_allowed_stays_so_while_the_api_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refuses: int
) -> None:
    """For a time; nobody else is. What is wrong is reported, and no token is in it or in the log."""
    monkeypatch.setattr(authorization, "ALLOWED_SECONDS", 0.0)
    async with reading(tmp_path) as (reviewer, reader):
        caplog.set_level(logging.DEBUG)
        assert await reader.status("Bearer good") == 200
        reviewer.refuses = refuses
        assert await reader.status("Bearer good") == 200
        assert await reader.status("Bearer other") == 503
        assert reader.reports[-1] != ""

        monkeypatch.setattr(authorization, "KEPT_WHILE_AWAY", 0.0)
        assert await reader.status("Bearer good") == 503
        reviewer.refuses = 0
        assert await reader.status("Bearer good") == 200
        assert reader.reports[-1] == ""
        said = "\n".join((*reader.reports, *(record.getMessage() for record in caplog.records)))
        assert "good" not in said
        assert "other" not in said


async def test_without_a_connection_nobody_reads(tmp_path: Path) -> None:
    """A kubeconfig that is not there yet is read when it is."""
    with reviewing(tmp_path) as (_, kubeconfig):
        text = kubeconfig.read_text()
        kubeconfig.unlink()
        reader = Reader(kubeconfig)
        assert await reader.status("Bearer good") == 503
        assert str(kubeconfig) in reader.reports[-1]
        kubeconfig.write_text(text)
        assert await reader.status("Bearer good") == 200
        await reader.authorization.close()


async def test_a_stuck_event_loop_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for it no longer than for the API server."""
    monkeypatch.setattr(authorization, "REVIEW_TIMEOUT", 0.05)
    async with reading(tmp_path) as (_, reader):
        # called in the event loop itself, it blocks what it waits for
        assert reader.pages.page("/metrics", "", "", "Bearer good").status == 503
