"""The agent's command line: argparse that speaks as the other commands do, and that click can complete.

click is not imported where the agent starts: it would cost each node its memory and a third of the start.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gpuplane.base.strict import did_you_mean
from gpuplane.cli.kit.messages import os_error_text, print_error
from gpuplane.node.core.config.flags import FLAG_BY_NAME

if TYPE_CHECKING:
    import click


class Choice:
    """The type of an argument that takes one of a few values."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, text: str) -> str:
        """The value. Raises argparse.ArgumentTypeError."""
        if text not in self.choices:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not one of {', '.join(self.choices)}.{did_you_mean(text, self.choices)}"
            )
        return text


class _Help(argparse.HelpFormatter):
    """Breaks lines between words alone: a path in two parts is none."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Says what is wrong, and what was perhaps meant, without listing the forty flags that are not."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog, f"{prog} [OPTIONS]", description, formatter_class=_Help, allow_abbrev=False)

    def parsed(self, arguments: Sequence[str]) -> argparse.Namespace:
        """What is said. Ends the process with status 2 where something is wrong."""
        found, unknown = self.parse_known_args(arguments)
        if unknown:
            kind = "option" if unknown[0].startswith("-") else "argument"
            name = unknown[0].partition("=")[0]
            self.error(f"No such {kind} {name!r}.{did_you_mean(name, self._option_string_actions)}")
        return found

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help page or the version; argparse itself passes over what standard output does not take."""
        try:
            file.write(message)
            file.flush()
        except OSError as error:
            print_error(os_error_text(error))
            os._exit(1)  # what standard output could not take is not tried again

    def error(self, message: str) -> NoReturn:
        """End the process: the command line is wrong."""
        print(f"Usage: {self.prog} [OPTIONS]\nTry '{self.prog} --help' for help.\n", file=sys.stderr)
        print_error(message)
        sys.exit(2)

    def options(self) -> Iterator["click.Option"]:
        """The same, as click has it: for its completion."""
        import click

        for action in self._actions:
            kind = {"is_flag": True} if action.nargs == 0 else {"type": _type(action), **_optional(action)}
            yield click.Option([*action.option_strings, action.dest.replace("-", "_")], help=action.help, **kind)


def _type(action: argparse.Action) -> "click.ParamType[Any]":
    """What completes the value of an argument."""
    import click

    from gpuplane.cli.kit.options import Machine, OneOf

    if action.dest == "machine":
        return Machine(nvml=True)
    known = action.type.choices if isinstance(action.type, Choice) else ()
    if choices := known or (FLAG_BY_NAME[action.dest].choices if action.dest in FLAG_BY_NAME else ()):
        return OneOf(choices)
    return click.Path() if action.metavar in ("DIR", "FILE", "PATH") else click.STRING


def _optional(action: argparse.Action) -> dict[str, Any]:
    return {"is_flag": False, "flag_value": action.const} if action.nargs == "?" else {}
