"""Commands that a text for people names, as they are typed: with the device, and with the agent that prints them."""

import shlex
from collections.abc import Iterable, Mapping, Sequence

from gpuplane.base.text import Text

USUAL_STATE_DIR = "/var/lib/gpuplane"
"""The state directory of an agent and of commands where none is given."""
USUAL_CDI_DIR = "/var/run/cdi"
"""Where the agent writes CDI specifications where no directory is given."""

Command = tuple[str, ...]
"""The words of a command line. DEVICE stands for a device's name, GPU for the UUID of the GPU that it is or is of."""

INSPECT: Command = ("gpuplane", "inspect")
INSPECT_HEALTH: Command = ("gpuplane", "inspect", "health")
RESTORE: Command = ("gpuplane", "health", "restore", "DEVICE")
RESUME: Command = ("gpuplane", "driver", "resume")
WITHDRAW: Command = ("gpuplane", "mig", "withdraw")


def unusual_state_dir(directory: str) -> str:
    """What a command has to be given of a state directory: "" for the usual one."""
    return "" if directory == USUAL_STATE_DIR else directory


def command_line(command: Sequence[str], state_dir: str = "", names: Mapping[str, str] = {}) -> str:
    """A command as a shell reads it. `state_dir`: that of the agent, where it is not the default; `names`: what stands
    for DEVICE and GPU."""
    words = [names.get(word, word) for word in command]
    if state_dir and words[0] == "gpuplane":
        words += ["--state-dir", state_dir]
    return shlex.join(words)


def advise(advice: Text, commands: Iterable[Command], state_dir: str = "", names: Mapping[str, str] = {}) -> Text:
    """What to do, in a sentence and the commands that do it."""
    lines = "; ".join(command_line(each, state_dir, names) for each in commands)
    return f"{advice}. Type: {lines}" if lines else advice
