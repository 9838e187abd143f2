"""A cluster that runs here, or in a process of its own. Only `gpuplane sandbox up` imports it: it needs what the extra
`sandbox` installs."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # lost connections are no news of gRPC's here

from gpuplane.base import files
from gpuplane.base.strict import InvalidInput
from gpuplane.cli.commands.sandbox.shown import show
from gpuplane.cli.commands.sandbox.wantednodes import InvalidNodes, count_gpus, parse_nodes
from gpuplane.cli.kit.messages import say
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.node.hardware.described.profiles import UnknownMachine
from gpuplane.sandbox.cluster import Cluster
from gpuplane.sandbox.controlplane import kubeconfig as kubeconfigs
from gpuplane.sandbox.controlplane.controlplane import ControlPlaneError
from gpuplane.sandbox.controlplane.network import NoAddress
from gpuplane.sandbox.controlplane.processes import open_log
from gpuplane.sandbox.controlplane.programs import ProgramsMissing, find_programs
from gpuplane.sandbox.record import AlreadyRunning, ClusterRecord, default_directory, read_record
from gpuplane.service.serving import stop_at_signal

SECONDS_TO_START = 300.0
DETACHED_LOG = "logs/sandbox.log"
LAST_LINES = 20
"""Lines of a cluster's log that are shown where it does not start."""
ERRORS = (
    AlreadyRunning, ApiServerError, ControlPlaneError, InvalidInput, InvalidNodes, NoAddress, ProgramsMissing,
    UnknownMachine, kubeconfigs.InvalidKubeconfig,
)  # fmt: skip


class Options(NamedTuple):
    """What `up` was told. `state_dir` None: nothing is kept."""

    nodes: str
    control_plane: Path | None
    state_dir: Path | None
    kubeconfig: Path | None
    merge: bool
    with_agents: bool

    @property
    def directory(self) -> Path:
        """Where the cluster is."""
        return (self.state_dir or default_directory(os.environ)).absolute()


def run(options: Options, as_json: bool) -> None:
    """Run a cluster until a signal. Raises ClickException and OSError."""
    with _errors_for_people():
        wanted, programs = parse_nodes(options.nodes), find_programs(options.control_plane, os.environ)
        is_kept = options.state_dir is not None
        cluster = Cluster(
            options.directory, programs, wanted, count_gpus, kept=is_kept, with_agents=options.with_agents
        )
        asyncio.run(_run(cluster, options, as_json))


def start_detached(options: Options, as_json: bool) -> None:
    """Have another process run a cluster from now on. Raises ClickException and OSError."""
    with _errors_for_people():
        parse_nodes(options.nodes)
        find_programs(options.control_plane, os.environ)
        show(_start_process(options.directory), as_json)


@contextmanager
def _errors_for_people() -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise click.ClickException(str(error)) from None


async def _run(cluster: Cluster, options: Options, as_json: bool) -> None:
    """Until a signal. Raises what `Cluster.running` raises."""
    stop = stop_at_signal(signal.SIGHUP)
    serving = asyncio.create_task(_serve(cluster, options, as_json, stop))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not cluster.is_running:
        serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    stopping.cancel()


async def _serve(cluster: Cluster, options: Options, as_json: bool, stop: asyncio.Event) -> None:
    async with cluster.running(lambda text: say(text, err=True)) as record:
        content, shared = files.read(cluster.control_plane.kubeconfig), kubeconfigs.shared_file(os.environ)
        if options.kubeconfig is not None:
            files.replace(options.kubeconfig, content)
        if options.merge:
            kubeconfigs.change_file(shared, lambda data: kubeconfigs.merge(data, content))
        try:
            show(record, as_json)
            await stop.wait()
            say("ending the cluster", err=True)
        finally:
            if options.merge:
                kubeconfigs.change_file(shared, kubeconfigs.remove)


def _start_process(directory: Path) -> ClusterRecord:
    """The cluster that another process runs from now on. Raises AlreadyRunning, ControlPlaneError and OSError."""
    if read_record(directory):
        raise AlreadyRunning(f"a cluster runs in {directory} already: `gpuplane sandbox down` ends it")
    log = directory / DETACHED_LOG
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    words = [each for each in sys.argv[1:] if each != "--detach"]
    output = open_log(log)
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuplane", *words],
        stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
    )  # fmt: skip
    os.close(output)
    until = time.monotonic() + SECONDS_TO_START
    while process.poll() is None and time.monotonic() < until:
        if (record := read_record(directory)) and record.pid == process.pid:
            return record
        time.sleep(0.1)
    process.terminate()
    last = files.read(log).decode(errors="replace").splitlines()[-LAST_LINES:]
    raise ControlPlaneError("\n".join([f"the cluster did not start; {log} ends with", *last]))
