"""The values of the flags: found on the command line and in the environment as texts, and parsed.

An empty environment variable means an empty text or path, and false for a switch, as for NVIDIA's plugin (urfave/cli);
for all other kinds it counts as not set.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpuplane.base.strict import closest_match
from gpuplane.node.core.config.flags import FLAG_BY_NAME, FLAGS, Flag, ValueKind

AUTO_CHOICE = "auto"  # cannot be combined with other choices
DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DRIVER_NAME_PATTERN = re.compile(rf"(?=.{{1,63}}$){DNS_LABEL}(\.{DNS_LABEL})*", re.ASCII)
KINDS_THAT_MAY_BE_EMPTY = ("text", "path", "socket", "taint", "prefix", "switch")
KUBELET_SOCKET_SUFFIX = "/device-plugins/kubelet.sock"
KEY_PREFIX_PATTERN = (
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"  # of keys of labels and annotations, as Kubernetes accepts it
)
LABEL_KEY_PATTERN = re.compile(KEY_PREFIX_PATTERN + r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
ANNOTATION_PREFIX_PATTERN = re.compile(KEY_PREFIX_PATTERN + r"([A-Za-z0-9][-A-Za-z0-9_.]{0,9})?", re.ASCII)
TRUE_TEXTS, FALSE_TEXTS = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")


def parse_flag_value(flag: Flag, value: str | Iterable[object]) -> Any:
    """The value of a flag, from a text or from a list of the file. Raises ValueError that says what it must be."""
    match flag.value_kind:
        case "switch":
            if value not in (*TRUE_TEXTS, *FALSE_TEXTS, ""):
                raise ValueError(f"must be true or false, not {value!r}")
            return value in TRUE_TEXTS
        case "choices" | "numbers":
            parts = value.split(",") if isinstance(value, str) else list(value)
            chosen = tuple(dict.fromkeys(_parse_choice(flag, str(part).strip()) for part in parts if part != ""))
            if AUTO_CHOICE in chosen and len(chosen) > 1:
                others = ", ".join(repr(each) for each in chosen if each != AUTO_CHOICE)
                raise ValueError(
                    f"{AUTO_CHOICE!r} cannot be combined with other choices; leave out {AUTO_CHOICE!r} or {others}"
                )
            return tuple(map(int, chosen)) if flag.value_kind == "numbers" else chosen
        case "path":
            if value and not str(value).startswith("/"):
                raise ValueError(f"must be an absolute path on the host, not {value!r}")
            return value
        case "socket":
            if value and not str(value).endswith(KUBELET_SOCKET_SUFFIX):
                raise ValueError(
                    f"must end with {KUBELET_SOCKET_SUFFIX}, not {value!r}: plugins put their sockets beside kubelet's"
                )
            return value
        case "label":
            if not LABEL_KEY_PATTERN.fullmatch(str(value)):
                raise ValueError(f"must be the key of a label, such as {flag.default}, not {value!r}")
            return value
        case "taint":
            if value and not LABEL_KEY_PATTERN.fullmatch(str(value)):
                raise ValueError(f"must be the key of a taint, such as example.com/starting, not {value!r}")
            return value
        case "driver":
            if not DRIVER_NAME_PATTERN.fullmatch(str(value)):
                raise ValueError(f"must be a lower-case DNS name of up to 63 characters, not {value!r}")
            return value
        case "prefix":
            if not ANNOTATION_PREFIX_PATTERN.fullmatch(str(value)):
                raise ValueError(f"must be the beginning of an annotation key, such as 'cdi.k8s.io/', not {value!r}")
            return value
        case _:
            return _parse_choice(flag, str(value)) if flag.choices else value


def _parse_choice(flag: Flag, value: str) -> str:
    if flag.choices and value not in flag.choices:
        close = closest_match(value, flag.choices)
        suggestion = f"; did you mean {close!r}?" if close else ""
        raise ValueError(
            f"must be {'one of ' * (len(flag.choices) > 1)}{', '.join(flag.choices)}, not {value!r}{suggestion}"
        )
    return value


def find_text_and_source(
    flag: Flag, flags: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, str] | None:
    """The text of a flag on the command line or in the environment, and where it is: ("single", "--mig-strategy").

    None where neither has it. The command line has priority.
    """
    for name in flag.names:
        if name in flags:
            return flags[name], f"--{name}"
    for variable in flag.environment_variables:
        if variable in environment:
            text = environment[variable]
            return (text, variable) if text or flag.value_kind in KINDS_THAT_MAY_BE_EMPTY else None
    return None


def flag_text_or_default(name: str, flags: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The text of a flag that is no setting but belongs to the process; its default where it is not given."""
    flag = FLAG_BY_NAME[name]
    found = find_text_and_source(flag, flags, environment)
    return found[0] if found else flag.default


def add_arguments(add_argument: Callable[..., object]) -> None:
    """Add every flag to an argument parser by its method `add_argument`."""
    for flag in FLAGS:
        if flag.names:
            add_argument(
                *(f"--{name}" for name in flag.names),
                dest=flag.option_or_variable_or_key,
                help=_help_text(flag),
                **ARGPARSE_OPTIONS[flag.value_kind],
            )


ARGPARSE_OPTIONS: dict[ValueKind, dict[str, Any]] = {
    "text": {"metavar": "TEXT"},
    "path": {"metavar": "PATH"},
    "socket": {"metavar": "PATH"},
    "label": {"metavar": "LABEL"},
    "taint": {"metavar": "KEY"},
    "driver": {"metavar": "NAME"},
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


ONE_DASH_OPTION_PATTERN = re.compile(r"-[a-z][a-z0-9-]+(=.*)?", re.DOTALL)


def use_two_dashes(arguments: Iterable[str]) -> list[str]:
    """A command line with two dashes before each long option: Go's flag package accepts `-mig-strategy=single` too."""
    return [f"-{each}" if ONE_DASH_OPTION_PATTERN.fullmatch(each) else each for each in arguments]


def flag_texts_by_name(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Name of a flag → its text, of parsed arguments (`vars(namespace)`). Flags that were not given are left out."""
    found = {
        flag.option_or_variable_or_key: arguments.get(flag.option_or_variable_or_key) for flag in FLAGS if flag.names
    }
    return {
        name: value if isinstance(value, str) else ",".join(value) for name, value in found.items() if value is not None
    }
