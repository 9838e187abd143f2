"""`gpuplane sandbox down`: the end of a cluster that `up` runs."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import click

from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.options import FILE_PATH
from gpuplane.sandbox.record import default_directory, running_process

SECONDS_TO_END = 120.0


@click.command()
@click.option("--state-dir", type=FILE_PATH, metavar="DIR", help="The directory that `up` was given.")
def command(state_dir: Path | None) -> None:
    """End the cluster that `gpuplane sandbox up` runs, and all that runs in it. What it keeps stays."""
    directory = (state_dir or default_directory(os.environ)).absolute()
    process = running_process(directory)
    if process is None:
        say(f"no cluster runs in {directory}")
        return
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
    until = time.monotonic() + SECONDS_TO_END
    while running_process(directory) == process:
        if time.monotonic() > until:
            raise click.ClickException(f"process {process} has not ended after {SECONDS_TO_END:g} s")
        time.sleep(0.1)
    say(f"the cluster in {directory} has ended")
