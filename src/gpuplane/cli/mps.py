"""`gpuplane mps`: supervise this node's MPS daemons, beside the agent."""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Literal

import click

from gpuplane.agent import logs
from gpuplane.cli.options import OneOf
from gpuplane.host.mps.keeper import Tools
from gpuplane.host.mps.supervisor import Supervisor
from gpuplane.model.config import Settings

log = logging.getLogger("gpuplane.mps")


@click.command()
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path(Settings().mps_root),
    show_default=True,
    envvar="MPS_ROOT",
    help="Where daemons, their clients and the agent meet: the agent's --mps-root.",
)
@click.option("--control", default=Tools().control, show_default=True, help="NVIDIA's control daemon.")
@click.option("--smi", default=Tools().smi, show_default=True, help="Sets compute modes.")
@click.option(
    "--shm",
    type=OneOf(("own", "host")),
    default="own",
    show_default=True,
    help="Whether each daemon has a tmpfs of its own as /dev/shm, which takes the right to mount.",
)
@click.option("--log-format", type=OneOf(("text", "json")), default="text", show_default=True)
def command(
    root: Path, control: str, smi: str, shm: Literal["own", "host"], log_format: Literal["text", "json"]
) -> None:
    """Run the MPS daemons that the agent wants. They go on when this ends, and the next one finds them."""
    logs.set_up(log_format)
    asyncio.run(_run(Supervisor(root.absolute(), Tools(control=control, smi=smi, own_shm=shm == "own"))))


async def _run(supervisor: Supervisor) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    loop.add_signal_handler(signal.SIGHUP, stop.set if _at_a_terminal() else _go_on)
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
    log.info("SIGHUP: nothing is to be read again, for what the agent wants is followed")
