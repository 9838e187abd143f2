"""`gpuplane cdi`: what containers get by CDI. One module a subcommand, imported when it is asked for."""

import importlib

import click

COMMANDS = {
    "generate": "write a specification of this machine's devices",
    "list": "the devices that a container runtime would know here",
    "validate": "is a specification good",
    "explain": "what a container gets with a device, and why",
    "remove": "take away the specifications that the agent left for kubelet",
}


class Group(click.Group):
    """Its commands are the modules beside this one."""

    def list_commands(self, context: click.Context) -> list[str]:
        """In the order of the table."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command of that module."""
        if name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"gpuplane.cli.cdi.{name}").command
        found.short_help = COMMANDS[name]
        return found


@click.group(cls=Group)
def command() -> None:
    """What containers get by CDI: write, list, check and explain specifications."""
