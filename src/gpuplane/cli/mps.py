"""`gpuplane mps`: supervise this node's MPS daemons, beside the agent."""

import asyncio
import signal
from pathlib import Path
from typing import Literal

import click

from gpuplane.agent import logs
from gpuplane.host.mps.keeper import Tools
from gpuplane.host.mps.supervisor import Supervisor
from gpuplane.model.config import Settings


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
    type=click.Choice(["own", "host"]),
    default="own",
    show_default=True,
    help="Whether each daemon has a tmpfs of its own as /dev/shm, which takes the right to mount.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(
    root: Path, control: str, smi: str, shm: Literal["own", "host"], log_format: Literal["text", "json"]
) -> None:
    """Run the MPS daemons that the agent wants. They go on when this ends, and the next one finds them."""
    logs.set_up(log_format)
    asyncio.run(_run(Supervisor(root.absolute(), Tools(control=control, smi=smi, own_shm=shm == "own"))))


async def _run(supervisor: Supervisor) -> None:
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    running, stopped = asyncio.create_task(supervisor.run()), asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        await running  # it raises what it ended by
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
