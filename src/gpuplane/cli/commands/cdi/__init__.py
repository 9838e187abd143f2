"""`gpuplane cdi`: what containers get by CDI. One module a subcommand, imported when it is asked for."""

import click

from gpuplane.cli.kit.program import CommandGroup

COMMANDS = {
    "generate": "write a specification of this machine's devices",
    "list": "list the devices that a container runtime finds here",
    "validate": "check specifications",
    "explain": "show what a container gets with a device, and why",
    "remove": "remove the specifications that the agent has written",
}


@click.group(cls=CommandGroup, package=__name__, table=COMMANDS)
def command() -> None:
    """CDI specifications, from which containers get devices: write, list, check and explain them."""
