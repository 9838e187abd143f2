"""`gpuplane sandbox up`: a cluster on this machine."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import click

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # lost connections are no news of gRPC's here

from gpuplane.base import files
from gpuplane.base.strict import InvalidInput
from gpuplane.cli.commands.sandbox.wantednodes import InvalidNodes, count_gpus, parse_nodes
from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.options import FILE_PATH, json_option
from gpuplane.cli.kit.presenter import print_result
from gpuplane.kubernetes.client.errors import ApiServerError
from gpuplane.node.hardware.described.profiles import UnknownMachine
from gpuplane.sandbox.cluster import (
    AlreadyRunning,
    Cluster,
    ClusterRecord,
    default_directory,
    read_record,
)
from gpuplane.sandbox.controlplane import kubeconfig as kubeconfigs
from gpuplane.sandbox.controlplane.controlplane import ControlPlaneError
from gpuplane.sandbox.controlplane.network import NoAddress
from gpuplane.sandbox.controlplane.processes import open_log
from gpuplane.sandbox.controlplane.programs import ProgramsMissing, find_programs
from gpuplane.service.serving import stop_at_signal

SECONDS_TO_START = 300.0
DETACHED_LOG = "logs/sandbox.log"
LAST_LINES = 20
"""Lines of a cluster's log that are shown where it does not start."""
ERRORS = (
    AlreadyRunning, ApiServerError, ControlPlaneError, InvalidInput, InvalidNodes, NoAddress, ProgramsMissing,
    UnknownMachine, kubeconfigs.InvalidKubeconfig,
)  # fmt: skip


@click.command()
@click.option(
    "--nodes", default="2×hgx-h100,t4", show_default=True, metavar="[COUNT×]MACHINE,…",
    help="The nodes to play: a profile or a machine file each, and how many of it.",
)  # fmt: skip
@click.option(
    "--control-plane", type=FILE_PATH, metavar="DIR",
    help="Where etcd and Kubernetes' programs are. Default: $GPUPLANE_CONTROL_PLANE, $KUBEBUILDER_ASSETS, or what "
    "`gpuplane sandbox fetch` has downloaded.",
)  # fmt: skip
@click.option(
    "--state-dir", type=FILE_PATH, metavar="DIR",
    help="Keep the cluster in this directory between runs. Default: it is gone when it ends.",
)  # fmt: skip
@click.option("--kubeconfig", type=FILE_PATH, metavar="FILE", help="Write the administrator's kubeconfig here too.")
@click.option("--merge", is_flag=True, help="Add a context to your own kubeconfig, and make it the current one.")
@click.option("--no-agents", is_flag=True, help="Run no agents on the nodes: you install them as on a cluster.")
@click.option("--detach", is_flag=True, help="Return once it runs; `gpuplane sandbox down` ends it.")
@json_option("One JSON document, once it runs.")
def command(
    nodes: str, control_plane: Path | None, state_dir: Path | None, kubeconfig: Path | None, merge: bool,
    no_agents: bool, detach: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a cluster on this machine: a real control plane, and played nodes with an agent each.

    It needs no GPU and no root. Pods of gpuplane's own image run; the containers of others are played. The nodes' GPUs
    are those of their machine files: edit one, and its GPUs fail. Ctrl-C ends all.
    """
    try:
        wanted, programs = parse_nodes(nodes), find_programs(control_plane, os.environ)
        directory = (state_dir or default_directory(os.environ)).absolute()
        if detach:
            show(_start_detached(directory), as_json)
            return
        cluster = Cluster(
            directory, programs, wanted, count_gpus, kept=state_dir is not None, with_agents=not no_agents
        )
        asyncio.run(_run(cluster, kubeconfig, merge, as_json))
    except ERRORS as error:
        raise click.ClickException(str(error)) from None


def show(record: ClusterRecord, as_json: bool) -> None:
    """Print where a cluster is."""
    lines = (
        f"Kubernetes v{record.version} runs at {record.url}, with {len(record.nodes)} nodes: {', '.join(record.nodes)}",
        f"machine files: {record.directory}/nodes/NAME/machine.yaml",
        f"export KUBECONFIG={record.kubeconfig}",
    )
    print_result(record, lines, as_json=as_json)


async def _run(cluster: Cluster, kubeconfig: Path | None, merge: bool, as_json: bool) -> None:
    """Until a signal. Raises what `Cluster.running` raises."""
    stop = stop_at_signal(signal.SIGHUP)
    serving = asyncio.create_task(_serve(cluster, kubeconfig, merge, as_json, stop))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not cluster.is_running:
        serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    stopping.cancel()


async def _serve(cluster: Cluster, kubeconfig: Path | None, merge: bool, as_json: bool, stop: asyncio.Event) -> None:
    async with cluster.running(lambda text: say(text, err=True)) as record:
        content, shared = files.read(cluster.control_plane.kubeconfig), kubeconfigs.shared_file(os.environ)
        if kubeconfig is not None:
            files.replace(kubeconfig, content)
        if merge:
            kubeconfigs.change_file(shared, lambda data: kubeconfigs.merge(data, content))
        try:
            show(record, as_json)
            await stop.wait()
            say("ending the cluster", err=True)
        finally:
            if merge:
                kubeconfigs.change_file(shared, kubeconfigs.remove)


def _start_detached(directory: Path) -> ClusterRecord:
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
