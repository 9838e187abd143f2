"""How people's commands reach a running agent: the control socket in its state directory."""

import socket
from pathlib import Path

import click
import msgspec

from gpuplane.model.control import Answer, Ask, Picture, Show

STATE_DIR = Path("/var/lib/gpuplane")

state_dir = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    default=STATE_DIR,
    show_default=True,
    envvar="GPUPLANE_STATE_DIR",
    help="The running agent's state directory.",
)


class NoAgent(click.ClickException):
    """Nobody listens."""


def ask(directory: Path, request: Ask) -> Answer:
    """The agent's answer. Raises ClickException where it answers an error or nothing; NoAgent where there is none."""
    path = directory / "control.sock"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as stream:
                answer = msgspec.json.decode(stream.read(), type=Answer)
    except (OSError, msgspec.DecodeError) as error:
        kind = NoAgent if isinstance(error, FileNotFoundError | ConnectionRefusedError) else click.ClickException
        raise kind(f"no agent answers at {path} ({error}): is it running, with this --state-dir?") from None
    if answer.error:
        raise click.ClickException(answer.error)
    return answer


def show(directory: Path) -> Picture:
    """The agent's picture of the node. Raises ClickException."""
    picture = ask(directory, Show()).picture
    assert picture is not None
    return picture
