"""`gpuplane placement`: questions about the GPUs of a whole cluster. It reads nodes and pods, and changes nothing.

One module a subcommand, imported when it is asked for.
"""

import click

from gpuplane.cli.kit.program import CommandGroup

COMMANDS = {
    "plan": "show which pods to move where, so that what is free is of more use",
    "explain": "show where pods go that wait, why, and what would have to end for the others",
}


@click.group(cls=CommandGroup, package=__name__, table=COMMANDS)
def command() -> None:
    """Ask about the GPUs of a whole cluster: which pods to move, and why a pod goes where it goes.

    Nodes and pods are read from the API server; it takes the right to list both, and changes nothing.
    """
