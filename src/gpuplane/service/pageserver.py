"""Serves the pages of a daemon until it ends, with a certificate that follows its files.

/healthz and /readyz are open to everybody: kubelet asks without a token. A certificate that cannot be used when the
server starts is an error, and nothing is served: nobody who asked for TLS gets pages without it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gpuplane.base.pauses import sleep_until_next
from gpuplane.service.daemonpages import DaemonPages
from gpuplane.service.httpserver import TlsContext, serve_pages
from gpuplane.service.servingoptions import ServingOptions

if TYPE_CHECKING:
    from gpuplane.service.certificate import ServingCertificate

CERTIFICATE_PERIOD = 10.0
"""Seconds between two looks at the files of a certificate, as controller-runtime's certwatcher has them."""

Report = Callable[[str], None]
"""What is told of a part: what is wrong, or "" when nothing is."""

log = logging.getLogger("gpuplane")


async def serve_daemon_pages(
    pages: DaemonPages,
    options: ServingOptions,
    refresh: Callable[[], None] = lambda: None,
    report_certificate: Report = lambda problem: _log("certificate", problem),
    report_authorization: Report = lambda problem: _log("metrics authorization", problem),
) -> None:
    """Serve the pages for ever. Raises OSError with the address, or with the file of a certificate.

    `refresh` is called each second, in the event loop. The others are told what changes.
    """
    async with (
        _certificate(pages, options, report_certificate) as context,
        _authorization(pages, options, report_authorization),
        serve_pages(pages.page, options.host, options.port, context),
    ):
        while True:
            refresh()
            pages.turn()
            await sleep_until_next(1.0)


@asynccontextmanager
async def _certificate(pages: DaemonPages, options: ServingOptions, report: Report) -> AsyncIterator[TlsContext | None]:
    """What gives the TLS context of the moment; None for plain HTTP."""
    if options.certificate is None:
        yield None
        return
    from gpuplane.service.certificate import ServingCertificate  # not every daemon has one

    certificate = await asyncio.to_thread(ServingCertificate, options.certificate)
    following = asyncio.create_task(_follow(certificate, pages, report))
    try:
        yield lambda: certificate.context
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@asynccontextmanager
async def _authorization(pages: DaemonPages, options: ServingOptions, report: Report) -> AsyncIterator[None]:
    """Have the pages refuse whoever may not read metrics."""
    if options.authorization == "AlwaysAllow":
        yield
        return
    from gpuplane.service.authorization import MetricsAuthorization

    authorization = MetricsAuthorization(options.kubeconfig, "/metrics", _changes(report))
    pages.refuse = authorization.refuse
    try:
        yield
    finally:
        await authorization.close()


def _changes(report: Report) -> Report:
    """A report of what is not what was said last."""
    said = ""

    def report_change(problem: str) -> None:
        nonlocal said
        if problem != said:
            said = problem
            report(problem)

    return report_change


async def _follow(certificate: "ServingCertificate", pages: DaemonPages, report: Report) -> None:
    """Have the pages tell when the newest certificate expires, for ever."""
    report_change = _changes(report)
    while True:
        problem = ""
        try:
            await asyncio.to_thread(certificate.reload)
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}; the last certificate stays"
        report_change(problem)
        if pages.certificate_expires_at != certificate.expires_at:
            pages.certificate_expires_at = certificate.expires_at
            pages.renew()
        await sleep_until_next(CERTIFICATE_PERIOD)


def _log(part: str, problem: str) -> None:
    log.log(logging.WARNING if problem else logging.INFO, "%s: %s", part, problem or "ok")
