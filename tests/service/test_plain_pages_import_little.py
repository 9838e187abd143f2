"""What TLS and the API server's word need is imported where they are wanted alone."""

import subprocess
import sys

NEEDED_BY_SWITCHES = {
    "gpuplane.kubernetes.client",
    "gpuplane.service.authorization",
    "gpuplane.service.certificate",
    "gpuplane.service.leaderelection",
    "hashlib",
    "httpx2",
    "lightkube",
}
SCRIPT = """
import asyncio, sys
from gpuplane.service.daemonpages import DaemonPages
from gpuplane.service.pageserver import serve_daemon_pages
from gpuplane.service.servingoptions import serving_options

async def main():
    serving = asyncio.create_task(serve_daemon_pages(DaemonPages(), serving_options(*sys.argv[1:4])))
    await asyncio.wait([serving], timeout=0.5)
    serving.cancel()

asyncio.run(main())
print(*sorted(sys.modules.keys() & set(sys.argv[4:])))
"""


def imported(*options: str) -> str:
    """Which of them a daemon has imported that serves by these options."""
    command = [sys.executable, "-c", SCRIPT, *options, *NEEDED_BY_SWITCHES]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_plain_pages_import_none_of_it() -> None:
    """Start and memory of an agent are what they were."""
    assert imported("127.0.0.1:0", "", "") == ""


def test_a_certificate_imports_what_reads_it() -> None:
    """The test above can fail."""
    assert imported("127.0.0.1:0", "no-such.crt", "no-such.key") == "gpuplane.service.certificate"
