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

from gpuplane.cli.kit.messages import told
from gpuplane.cli.kit.options import PATH, OneOf
from gpuplane.node.host.mps.files import FOLDER, WANTED
from gpuplane.node.host.mps.keeper import Tools
from gpuplane.node.host.mps.supervisor import Supervisor
from gpuplane.node.model.config import Settings
from gpuplane.service import logs

log = logging.getLogger("gpuplane.mps")


@click.command()
@click.option(
    "--root",
    type=PATH,
    default=Path(Settings().mps_root),
    show_default=True,
    envvar="MPS_ROOT",
    help="The directory of the daemons' sockets and files: the agent's --mps-root.",
)
@click.option("--control", default=Tools().control, show_default=True, help="NVIDIA's control daemon.")
@click.option("--smi", default=Tools().smi, show_default=True, help="The program nvidia-smi, which sets compute modes.")
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
def command(
    root: Path, control: str, smi: str, shm: Literal["own", "host"], log_format: Literal["text", "json"]
) -> None:
    """Run the MPS daemons that the agent requests. They keep running when this ends, and the next one adopts them.

    It must be root, runs until a signal, and logs to standard error.
    """
    logs.set_up(log_format)
    root, tools = root.absolute(), Tools(control=control, smi=smi, own_shm=shm == "own")
    try:
        asyncio.run(_run(Supervisor(root, tools), lambda: _announce(root, tools)))
    except PermissionError as error:
        way_out = "" if os.geteuid() == 0 else ": run gpuplane mps as root"
        raise click.ClickException(told(error) + way_out) from None


def _announce(root: Path, tools: Tools) -> None:
    """What there is to do, and what it lacks: until the agent asks for a daemon there may be nothing else to say."""
    log.info("supervising MPS daemons below %s%s", root, ": the agent has not requested any yet" * _unasked(root))
    for program, option, lack in (
        (tools.control, "--control", "no daemon can be started"),
        (tools.smi, "--smi", "no compute mode can be set"),
    ):
        if shutil.which(program) is None:
            log.warning("program %s was not found: %s; set its path with %s", program, lack, option)


def _unasked(root: Path) -> bool:
    """Whether no wish of the agent is there. One that may not be looked for may be."""
    try:
        (root / FOLDER / WANTED).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


async def _run(supervisor: Supervisor, announce: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    loop.add_signal_handler(signal.SIGHUP, stop.set if _at_a_terminal() else _go_on)
    announce()
    running, stopped = asyncio.create_task(supervisor.run()), asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running  # it raises what it ended by
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _at_a_terminal() -> bool:
    """Whether a person started it, and SIGHUP means that the terminal was closed."""
    try:
        return os.isatty(0)
    except OSError:
        return False


def _go_on() -> None:
    """A service is told by SIGHUP to read its configuration again. This one has none but what the agent writes."""
    log.info("SIGHUP is ignored: requests of the agent are always read at once")
