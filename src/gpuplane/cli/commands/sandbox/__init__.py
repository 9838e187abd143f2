"""`gpuplane sandbox`: what plays a node, or a cluster, on any machine. One module a subcommand, imported when it is
asked for."""

import click

from gpuplane.cli.kit.program import CommandGroup

COMMANDS = {
    "up": "run a cluster on this machine: a real control plane and played nodes",
    "status": "show whether a cluster runs, and where",
    "down": "end the cluster",
    "fetch": "download the programs of a control plane",
    "kubelet": "run the parts of a kubelet that deal with devices",
}


@click.group(cls=CommandGroup, package=__name__, table=COMMANDS)
def command() -> None:
    """Try gpuplane on any machine: no GPU, no cluster, no root."""
