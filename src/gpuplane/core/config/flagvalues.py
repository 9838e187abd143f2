"""What the command line and the environment say of the table's rows, as texts, and what the texts stand for.

An environment variable that is set to nothing means nothing for text and paths, and false for a switch, as it does for
NVIDIA's plugin (urfave/cli); for all else it counts as not set.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuplane.core.config.flags import FLAG_BY_NAME, FLAGS, Flag, ValueKind
from gpuplane.core.strict import closest_match

AUTO = "auto"  # of several choices
KINDS_THAT_MAY_BE_EMPTY = ("text", "path", "socket", "prefix", "switch")  # what may be set to nothing
KUBELET_SOCKET = "/device-plugins/kubelet.sock"
KEY_PREFIX = (
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"  # of the keys of labels and annotations, as Kubernetes takes it
)
LABEL_KEY = re.compile(KEY_PREFIX + r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
ANNOTATION_PREFIX = re.compile(KEY_PREFIX + r"([A-Za-z0-9][-A-Za-z0-9_.]{0,9})?", re.ASCII)
TRUE, FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")


def parse_value(flag: Flag, value: str | Iterable[object]) -> Any:
    """The value that a text, or a list from the file, stands for. Raises ValueError: what it must be."""
    match flag.value_kind:
        case "switch":
            if value not in (*TRUE, *FALSE, ""):
                raise ValueError(f"must be true or false, not {value!r}")
            return value in TRUE
        case "choices" | "numbers":
            parts = value.split(",") if isinstance(value, str) else list(value)
            chosen = tuple(dict.fromkeys(_parse_choice(flag, str(part).strip()) for part in parts if part != ""))
            if AUTO in chosen and len(chosen) > 1:
                others = ", ".join(repr(each) for each in chosen if each != AUTO)
                raise ValueError(f"{AUTO!r} stands alone, and chooses itself: leave it or {others} out")
            return tuple(map(int, chosen)) if flag.value_kind == "numbers" else chosen
        case "path":
            if value and not str(value).startswith("/"):
                raise ValueError(
                    f"must be an absolute path, not {value!r}: the host has nothing that it is relative to"
                )
            return value
        case "socket":
            if value and not str(value).endswith(KUBELET_SOCKET):
                raise ValueError(f"must end with {KUBELET_SOCKET}, not {value!r}: plugins lie beside kubelet's socket")
            return value
        case "label":
            if not LABEL_KEY.fullmatch(str(value)):
                raise ValueError(f"must be the name of a label, as {flag.default}, not {value!r}")
            return value
        case "prefix":
            if not ANNOTATION_PREFIX.fullmatch(str(value)):
                raise ValueError(f"must be what an annotation's key can begin with, as 'cdi.k8s.io/', not {value!r}")
            return value
        case _:
            return _parse_choice(flag, str(value)) if flag.choices else value


def _parse_choice(flag: Flag, value: str) -> str:
    if flag.choices and value not in flag.choices:
        close = closest_match(value, flag.choices)
        perhaps = f"; did you mean {close!r}?" if close else ""
        raise ValueError(
            f"must be {'one of ' * (len(flag.choices) > 1)}{', '.join(flag.choices)}, not {value!r}{perhaps}"
        )
    return value


def find_value(flag: Flag, flags: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, str] | None:
    """What the command line or else the environment says, and where: ("single", "--mig-strategy"); None for nothing."""
    for name in flag.names:
        if name in flags:
            return flags[name], f"--{name}"
    for variable in flag.environment_variables:
        if variable in environment:
            text = environment[variable]
            return (text, variable) if text or flag.value_kind in KINDS_THAT_MAY_BE_EMPTY else None
    return None


def option_value(name: str, flags: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """What is said of a row that belongs to the process, or its default."""
    flag = FLAG_BY_NAME[name]
    said = find_value(flag, flags, environment)
    return said[0] if said else flag.default


def add_arguments(add_argument: Callable[..., object]) -> None:
    """Add every row to a parser by its `add_argument`."""
    for flag in FLAGS:
        if flag.names:
            add_argument(
                *(f"--{name}" for name in flag.names),
                dest=flag.name,
                help=_help_text(flag),
                **ARGPARSE_OPTIONS[flag.value_kind],
            )


ARGPARSE_OPTIONS: dict[ValueKind, dict[str, Any]] = {
    "text": {"metavar": "TEXT"},
    "path": {"metavar": "PATH"},
    "socket": {"metavar": "PATH"},
    "label": {"metavar": "LABEL"},
    "prefix": {"metavar": "PREFIX"},
    "choice": {"metavar": "CHOICE"},
    "switch": {"metavar": "BOOL", "nargs": "?", "const": "true"},
    "choices": {"metavar": "LIST", "action": "append"},
    "numbers": {"metavar": "LIST", "action": "append"},
}


def _help_text(flag: Flag) -> str:
    words = [flag.help, f"one of {', '.join(flag.choices)}" if len(flag.choices) > 1 else ""]
    words += [f"default {flag.default}" if flag.default else "", f"environment {', '.join(flag.environment_variables)}"]
    return "; ".join(filter(None, words)).replace("%", "%%")


LONG_OPTION_WITH_ONE_DASH = re.compile(r"-[a-z][a-z0-9-]+(=.*)?", re.DOTALL)


def with_two_dashes(arguments: Iterable[str]) -> list[str]:
    """A command line with two dashes before each long name: Go's flag package takes `-mig-strategy=single` too."""
    return [f"-{each}" if LONG_OPTION_WITH_ONE_DASH.fullmatch(each) else each for each in arguments]


def flag_texts(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The rows among a parser's findings (`vars(namespace)`), as texts by name; what was not said is left out."""
    found = {flag.name: arguments.get(flag.name) for flag in FLAGS if flag.names}
    return {
        name: value if isinstance(value, str) else ",".join(value) for name, value in found.items() if value is not None
    }
