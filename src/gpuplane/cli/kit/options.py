"""Kinds of values that several commands take, and options that several have."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from gpuplane.base.strict import did_you_mean
from gpuplane.cli.kit.machine import NVML
from gpuplane.node.hardware.described.profiles import UnknownMachine, find_machine_file, profile_names


class OneOf(click.Choice[str]):
    """One of a few values; of one that is misspelt it is said which was perhaps meant.

    `also`: other spellings, and what each stands for.
    """

    def __init__(self, choices: Iterable[str], *, case_sensitive: bool = True, also: Mapping[str, str] | None = None):
        super().__init__([*choices], case_sensitive=case_sensitive)
        self.also = also or {}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The value. Raises BadParameter."""
        return super().convert(self.also.get(value, value), param, ctx)

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """What is wrong with it."""
        return super().get_invalid_choice_message(value, ctx) + did_you_mean(str(value), self.choices)


class Machine(click.ParamType[str]):
    """A described machine: the name of a profile, or a file; with `nvml` also the driver's.

    A path with a slash need not lead to a file: who reads it says so.
    """

    name = "machine"

    def __init__(self, *, nvml: bool = False) -> None:
        self.nvml = nvml

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """How a help page names it."""
        return "[nvml|PROFILE|FILE]" if self.nvml else "[PROFILE|FILE]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text itself, if there is such a profile. Raises BadParameter."""
        try:
            if not (self.nvml and value == NVML):
                find_machine_file(value)
        except UnknownMachine as error:
            self.fail(str(error), param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Names that begin so, and else files."""
        known = (*([NVML] if self.nvml else []), *profile_names())
        found = [CompletionItem(name) for name in known if name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


def usage_error(problem: str) -> click.UsageError:
    """A wrong combination of options, to be raised by a command."""
    return click.UsageError(problem, click.get_current_context(silent=True))


FILE_PATH = click.Path(path_type=Path, readable=False)
"""A path, which need not lead anywhere: who opens it says so, with status 1."""


class Kubeconfig(click.Option):
    """The option of a kubeconfig. KUBECONFIG may be a list of files, of which kubectl merges all: the first that is
    there is read here."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """The path that the variable means; None where it is not set."""
        paths = [each for each in (super().resolve_envvar_value(ctx) or "").split(os.pathsep) if each]
        there = (each for each in paths if os.path.lexists(Path(each).expanduser()))
        return next(there, paths[0] if paths else None)


def kubeconfig(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --kubeconfig, or the variable KUBECONFIG."""
    return click.option("--kubeconfig", cls=Kubeconfig, type=FILE_PATH, envvar="KUBECONFIG", help=help)


def json_option(help: str = "One JSON document.") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --json."""
    return click.option("--json", "as_json", is_flag=True, help=help)
