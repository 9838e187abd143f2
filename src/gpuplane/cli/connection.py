"""How people's commands reach a running agent: the control socket in its state directory."""

import re
import socket
from pathlib import Path

import click
import msgspec

from gpuplane.model.control import Answer, Ask

STATE_DIR = Path("/var/lib/gpuplane")

state_dir = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    default=STATE_DIR,
    show_default=True,
    envvar="GPUPLANE_STATE_DIR",
    help="The running agent's state directory.",
)


def ask(directory: Path, request: Ask) -> Answer:
    """The agent's answer. Raises ClickException where no agent answers, or where it answers an error."""
    path = directory / "control.sock"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(str(path))
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as stream:
                answer = msgspec.json.decode(stream.read(), type=Answer)
    except (OSError, msgspec.DecodeError) as error:
        raise click.ClickException(
            f"no agent answers at {path} ({error}): is it running, with this --state-dir?"
        ) from None
    if answer.error:
        raise click.ClickException(answer.error)
    return answer


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """A time as people write it: "90s", "10m", "2h", "1d". Converted to seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value))
        if parts is None:
            self.fail(f"{value!r} is not a time: write 90s, 10m, 2h or 1d", param, ctx)
        return float(parts[1]) * UNITS[parts[2]]
