"""`commands` has one module or package a command, `kit` what they share; docs/commands.md has what all keep.

The agent's command parses with argparse and imports neither click nor rich: it starts on every node. All other commands
are for people; each is a click command named `command` in its module, imported only when it is asked for.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuplane.cli.kit.program import CommandGroup

COMMANDS = {
    "demo": "show a demo of the agent's main work on the screen; it needs no GPU, cluster or root",
    "agent": "run the node agent",
    "cdi": "CDI specifications: write, list, check and explain them",
    "choose": "which devices the agent would prefer, and why",
    "completion": "make a shell complete commands, options and values",
    "config": "check a configuration, and show what a node would advertise with it",
    "driver": "make the agent close the GPU driver, for a GPU reset or a driver upgrade, and use it again",
    "health": "drain a GPU, and restore it",
    "inspect": "show what a running agent knows and advertises",
    "claims": "the claims that have devices of a node, and what keeps others from theirs",
    "labels": "the labels of a node's GPUs, and where each is known from",
    "mig": "partition GPUs: apply, check, save and explain MIG layouts",
    "mps": "supervise the node's MPS daemons",
    "placement": "which pods to move, and why a pod goes where it goes, in a whole cluster",
    "runbook": "what an alert means, and what to do",
    "runtime": "make this node's container runtime accept CDI devices",
    "sandbox": "an embedded kubelet, on any machine",
    "simulate": "what placement policies do with the nodes and pods of a trace",
    "slices": "the ResourceSlices of a node, and what the API server has of them",
}


def main() -> None:
    """`gpuplane COMMAND …`"""
    stand_in()
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its own lines say only that kubelet went; ours say it better
    if sys.argv[1:2] == ["agent"]:
        from gpuplane.cli.commands.agent import firstdriver

        first_driver = firstdriver.start(sys.argv[2:])
        from gpuplane.cli.commands.agent import main as agent

        agent.main(sys.argv[2:], first_driver)
    from gpuplane.cli.kit.program import run

    run(root_command())


def stand_in() -> None:
    """Have something in the place of a standard stream that whoever started us has closed.

    Else the next file that is opened gets its number, and what is said goes into that. What is written for a program
    is refused, as the system refuses it for a closed stream; what is said to people goes nowhere.
    """
    for number, (name, access) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, access), True)  # the lowest number that is free: that of the stream
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115


def root_command() -> "CommandGroup":
    """All commands, as click knows them."""
    import click

    from gpuplane import __version__
    from gpuplane.cli.kit.program import CommandGroup

    group = CommandGroup(
        "gpuplane",
        package=f"{__name__}.commands",
        table=COMMANDS,
        help="Node agent and tools that offer GPUs to Kubernetes.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")(group)
    return group
