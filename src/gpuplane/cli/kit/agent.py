"""How people's commands reach a running agent: the control socket in its state directory.

Command and agent are often of different versions: an agent is replaced while people look on. What the other one has
beside what is known here is left out; where something that is known here is not understood, that is said, and nothing
is made of the rest.
"""

import socket
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from gpuplane import __version__
from gpuplane.base.text import clip, join_first_names
from gpuplane.cli.kit.options import FILE_PATH
from gpuplane.node.core.commands import USUAL_STATE_DIR, unusual_state_dir
from gpuplane.node.core.lenient import UnreadableValue, decode_leniently
from gpuplane.node.model.control import ControlRequest, ControlResponse, GetNodeState, NodeState
from gpuplane.node.model.encoding import decode

STATE_DIR = Path(USUAL_STATE_DIR)
ANSWER_TIMEOUT_SECONDS = 10.0  # seconds that an answer may take

state_dir = click.option(
    "--state-dir",
    type=FILE_PATH,
    default=STATE_DIR,
    show_default=True,
    envvar="GPUPLANE_STATE_DIR",
    help="The running agent's state directory.",
)


class NoAgent(click.ClickException):
    """Nobody listens, or nobody answers."""


def ask(directory: Path, request: ControlRequest) -> ControlResponse:
    """The agent's answer. Raises NoAgent where there is none, ClickException where it is an error or not understood."""
    path = directory / "control.sock"
    try:
        answer_bytes = _exchange(path, msgspec.json.encode(request) + b"\n")
    except PermissionError:
        raise click.ClickException(
            f"you have no permission to connect to the agent at {path}: run this command as root"
        ) from None
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise NoAgent(f"no agent answers at {path} ({error.strerror}): is it running, with this --state-dir?") from None
    except OSError as error:
        raise NoAgent(f"the agent at {path} does not answer: {error.strerror or error}") from None
    if not answer_bytes:
        raise NoAgent(f"the agent at {path} closed the connection before it answered")
    answer = _decode_answer(answer_bytes, path)
    if answer.error:
        raise click.ClickException(f"{answer.error}")
    return _with_state_dir(answer, directory)


def _with_state_dir(answer: ControlResponse, directory: Path) -> ControlResponse:
    """The answer, whose texts name commands with the state directory by which this command reached the agent."""
    if (state := answer.state) is None:
        return answer
    snapshot = state.snapshot.but(state_dir=unusual_state_dir(str(directory)))
    return answer.but(state=state.but(snapshot=snapshot))


def fetch_node_state(directory: Path) -> NodeState:
    """The agent's state of the node. Raises ClickException."""
    return node_state(ask(directory, GetNodeState()))


def node_state(answer: ControlResponse) -> NodeState:
    """The state in an answer to `GetNodeState`. Raises ClickException where there is none."""
    if answer.state is None:
        _raise_version_mismatch(answer.agent.version, "the agent's answer contains no state")
    return answer.state


def _exchange(path: Path, request: bytes) -> bytes:
    """All that is said to one request. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_TIMEOUT_SECONDS)
        connection.connect(str(path))
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            return stream.read()


def _decode_answer(answer_bytes: bytes, path: Path) -> ControlResponse:
    """An answer, perhaps of another version. Raises ClickException."""
    try:
        with suppress(msgspec.ValidationError):
            return decode(answer_bytes, ControlResponse)
        document = msgspec.json.decode(answer_bytes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoAgent(f"the answer from {path} is not complete: {error}") from None
    return _decode_leniently(document)


def _decode_leniently(document: object) -> ControlResponse:
    """The answer of an agent of another version. Raises ClickException where a part that is known is not understood."""
    try:
        read = decode_leniently(document, ControlResponse)
    except UnreadableValue:
        _raise_version_mismatch("", "this command cannot read any part of the agent's answer")
    answer: ControlResponse = read.value
    if read.unreadable_fields:
        places = join_first_names([clip(".".join(place), 80) for place in read.unreadable_fields], 3)
        _raise_version_mismatch(
            answer.agent.version, f"this command cannot read these parts of the agent's answer: {places}"
        )
    return answer


def _raise_version_mismatch(version: str, why: str) -> NoReturn:
    theirs = f", gpuplane {clip(version, 80)}," if version else ""
    raise click.ClickException(
        f"the agent{theirs} and this command, gpuplane {__version__}, have different versions: {why}. Use the "
        "command in the agent's pod or image"
    )
