"""One module a command: parse, call, print. `COMMANDS` is the table of contents.

The agent's command parses with argparse and imports neither click nor rich: it starts on every node. All other commands
are for people; each is a click command named `command` in its module, imported only when it is asked for.
"""

import importlib
import os
import sys

COMMANDS = {
    "demo": "the main job on screen, without a GPU, a cluster or root",
    "agent": "run the node agent",
    "cdi": "what containers get by CDI: write, list, check and explain specifications",
    "choose": "which devices would be advised, and why",
    "config": "is a configuration good, and what would a node advertise with it",
    "driver": "let go of the driver for a while, and take it up again",
    "health": "take a GPU out of service, and give it back",
    "inspect": "what a running agent knows and advertises",
    "mps": "supervise the node's MPS daemons",
    "runtime": "make the container runtime of this node take CDI devices",
    "sandbox": "what a node needs beside the agent, on any machine",
}


def main() -> None:
    """`gpuplane COMMAND …`"""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # its own lines say only that kubelet went; ours say it better
    if sys.argv[1:2] == ["agent"]:
        from gpuplane.cli import agent

        agent.main(sys.argv[2:])
    import click

    from gpuplane import __version__

    class Group(click.Group):
        def list_commands(self, context: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, context: click.Context, name: str) -> click.Command | None:
            if name == "agent":  # for --help only
                return click.Command("agent", short_help=COMMANDS[name])
            if name not in COMMANDS:
                return None
            command: click.Command = importlib.import_module(f"gpuplane.cli.{name}").command
            command.short_help = COMMANDS[name]
            return command

    group = Group("gpuplane", help="GPUs for Kubernetes, from the driver to the request.")
    click.version_option(__version__, message="%(prog)s %(version)s")(group)
    group(prog_name="gpuplane")
