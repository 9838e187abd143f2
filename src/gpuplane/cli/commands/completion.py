"""`gpuplane completion`: a shell that completes commands, options and values.

click has the machinery: the script that is printed here asks `gpuplane` itself, by the variable VARIABLE, so it knows
the options of the version that is installed.
"""

import click
from click.shell_completion import BashComplete, ZshComplete

from gpuplane.cli.kit.options import OneOf

VARIABLE = "_GPUPLANE_COMPLETE"
SHELLS = {"bash": BashComplete, "zsh": ZshComplete}


@click.command()
@click.argument("shell", type=OneOf(SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print what makes a shell complete gpuplane's commands, options and values.

    In this shell: eval "$(gpuplane completion bash)". For all: write it to
    ~/.local/share/bash-completion/completions/gpuplane, or for zsh to _gpuplane in a directory of $fpath.
    """
    made = SHELLS[shell](ctx.find_root().command, {}, "gpuplane", VARIABLE)
    click.echo(made.source_template % made.source_vars(), nl=False)
