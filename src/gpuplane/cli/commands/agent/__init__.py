"""`gpuplane agent`: run the node agent.

It starts on every node, so it parses with argparse and imports neither click nor rich. This module imports nothing:
the driver's process is started (`firstdriver.py`) before the agent is imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def command() -> "click.Command":
    """The same command line, for the completion of all commands. It is never invoked."""
    import click

    from gpuplane.cli.commands.agent.main import agent_parser

    return click.Command("agent", params=list(agent_parser().options()), add_help_option=False)
