"""`gpuplane mps`: supervise this node's MPS daemons, beside the agent."""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import click

from gpuplane.cli.kit.messages import os_error_text, print_error
from gpuplane.cli.kit.options import FILE_PATH, OneOf
from gpuplane.cli.kit.servingflags import serving_options_of_command
from gpuplane.node.host.mps.daemonkeeper import MpsDaemonOptions
from gpuplane.node.host.mps.files import FILES_FOLDER, WANTED_FILE
from gpuplane.node.host.mps.supervisor import Supervisor
from gpuplane.node.model.config import Settings
from gpuplane.service import logs
from gpuplane.service.daemonpages import DaemonPages
from gpuplane.service.pageserver import serve_daemon_pages
from gpuplane.service.restart import keep_running
from gpuplane.service.serving import serve, stop_at_signal
from gpuplane.service.servingoptions import ServingOptions

log = logging.getLogger("gpuplane.mps")


@click.command()
@click.option(
    "--root",
    type=FILE_PATH,
    default=Path(Settings().mps_root),
    show_default=True,
    envvar="MPS_ROOT",
    help="The directory of the daemons' sockets and files: the agent's --mps-root.",
)
@click.option("--control", default=MpsDaemonOptions().control, show_default=True, help="NVIDIA's control daemon.")
@click.option(
    "--smi", default=MpsDaemonOptions().smi, show_default=True, help="The program nvidia-smi, which sets compute modes."
)
@click.option(
    "--shm",
    type=OneOf(("own", "host")),
    default="own",
    show_default=True,
    help=(
        "own: each daemon gets its own tmpfs as /dev/shm (this needs permission to mount). host: no daemon "
        "gets its own tmpfs."
    ),
)
@click.option("--log-format", type=OneOf(("text", "json")), default="text", show_default=True)
@serving_options_of_command
def command(
    root: Path,
    control: str,
    smi: str,
    shm: Literal["own", "host"],
    log_format: Literal["text", "json"],
    pages: ServingOptions | None,
) -> None:
    """Run the MPS daemons that the agent requests. They keep running when this ends, and the next one adopts them.

    It must be root, runs until a signal, and logs to standard error.
    """
    logs.set_up(log_format)
    root, tools = root.absolute(), MpsDaemonOptions(control=control, smi=smi, own_shm=shm == "own")
    serve(_run(root, tools, pages))


def _log_start(root: Path, tools: MpsDaemonOptions) -> None:
    """What there is to do, and what it lacks: until the agent asks for a daemon there may be nothing else to say."""
    log.info(
        "supervising MPS daemons below %s%s",
        root,
        ": the agent has not requested any yet" * _is_nothing_requested(root),
    )
    for program, option, lack in (
        (tools.control, "--control", "no daemon can be started"),
        (tools.smi, "--smi", "no compute mode can be set"),
    ):
        if shutil.which(program) is None:
            log.warning("program %s was not found: %s; set its path with %s", program, lack, option)


def _is_nothing_requested(root: Path) -> bool:
    """Whether no file of the agent is there. One that may not be looked for may be."""
    try:
        (root / FILES_FOLDER / WANTED_FILE).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


async def _run(root: Path, tools: MpsDaemonOptions, pages: ServingOptions | None) -> None:
    """Supervise until a signal."""
    try:
        await _supervise(Supervisor(root, tools), pages, lambda: _log_start(root, tools))
    except PermissionError as error:
        print_error(os_error_text(error) + ("" if os.geteuid() == 0 else ": run gpuplane mps as root"))
        raise SystemExit(1) from None


async def _supervise(supervisor: Supervisor, pages: ServingOptions | None, announce: Callable[[], None]) -> None:
    at_a_terminal = _at_a_terminal()
    stop = stop_at_signal(*((signal.SIGHUP,) if at_a_terminal else ()))
    if not at_a_terminal:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _ignore_sighup)
    announce()
    tasks = [asyncio.create_task(supervisor.run()), asyncio.create_task(_until(stop))]
    if pages is not None:
        tasks.append(asyncio.create_task(_serve_pages(supervisor, pages)))
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()  # it raises what it ended by


async def _serve_pages(supervisor: Supervisor, options: ServingOptions) -> None:
    """Serve the pages for ever; a port that cannot be had costs nothing else."""
    pages = DaemonPages(not_ready_reason=lambda: supervisor.not_ready_reason)
    await keep_running(
        "status pages",
        lambda: serve_daemon_pages(pages, options),
        lambda reason: log.error("the status pages cannot be served: %s", reason),
        lambda last_reason: log.info("the status pages are served") if last_reason else None,
    )


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()


def _at_a_terminal() -> bool:
    """Whether a person started it, and SIGHUP means that the terminal was closed."""
    try:
        return os.isatty(0)
    except OSError:
        return False


def _ignore_sighup() -> None:
    """A service is told by SIGHUP to read its configuration again. This one has none but what the agent writes."""
    log.info("SIGHUP is ignored: requests of the agent are always read at once")
