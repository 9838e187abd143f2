"""`gpuplane mig`: partitions of GPUs, with the options and variables of `nvidia-mig-parted`.

One module a subcommand, imported when it is asked for.
"""

import click

from gpuplane.cli.kit.program import CommandGroup

COMMANDS = {
    "apply": "change the GPUs until they have the layouts of a configuration",
    "plan": "show what apply would do, and what it would wait for",
    "assert": "check whether this node has the layouts of a configuration",
    "export": "print the layouts that this node has, as a configuration",
    "generate-config": "write the configurations that the GPUs can have",
    "checkpoint": "save all partitions with their places",
    "restore": "bring back what checkpoint has saved",
    "explain": "show which cards can hold what beside what",
    "withdraw": "end the layouts that were requested of the running agent",
}


@click.group(cls=CommandGroup, package=__name__, table=COMMANDS)
@click.option(
    "-d", "--debug", is_flag=True, envvar="MIG_PARTED_DEBUG", help="Show more of what is done, and what hooks print."
)
@click.pass_context
def command(ctx: click.Context, debug: bool) -> None:
    """Partition GPUs by MIG, with or without a running agent: its layouts are the request, the machine follows.

    Options, environment variables and files are those of nvidia-mig-parted. Exit status: 0 done, or it is so; 1 not
    done, or it is not so; 2 the command line is wrong.
    """
    ctx.obj = debug
