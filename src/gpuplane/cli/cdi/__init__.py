"""`gpuplane cdi`: what containers get by CDI. One module a subcommand, imported when it is asked for."""

import click

from gpuplane.cli.program import Modules

COMMANDS = {
    "generate": "write a specification of this machine's devices",
    "list": "the devices that a container runtime would know here",
    "validate": "is a specification good",
    "explain": "what a container gets with a device, and why",
    "remove": "take away the specifications that the agent left for kubelet",
}


@click.group(cls=Modules, package=__name__, table=COMMANDS)
def command() -> None:
    """What containers get by CDI: write, list, check and explain specifications."""
