"""What all commands have in common: how they are found, how each ends, and how it says what is wrong.

The rules are those of docs/commands.md. The agent keeps them without this module (`agent.py`), since it does without
click.
"""

import importlib
import keyword
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from gpuplane.cli.kit.messages import os_error_text, print_error
from gpuplane.cli.kit.signals import EndedBySignal, raise_on_signals, restore_default_handlers


class CommandGroup(click.Group):
    """A group whose commands are modules of a package, imported when they are asked for.

    Each module has a `command`, or a function of that name that makes it.
    """

    def __init__(self, *arguments: Any, package: str, table: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.package, self.table = package, table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that module."""
        if cmd_name not in self.table:
            return None
        found = importlib.import_module(f"{self.package}.{module_name(cmd_name)}").command
        command: click.Command = found if isinstance(found, click.Command) else found()
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without the modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Commands by the table, and options."""
        found = [CompletionItem(name, help=what) for name, what in self.table.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is meant. Raises NoSuchCommand, with what was perhaps meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=self.table, ctx=ctx) from None


def module_name(command: str) -> str:
    """The name of a command's module: `generate-config` is in `generate_config.py`, `assert` in `assert_.py`."""
    name = command.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def run(program: CommandGroup) -> NoReturn:
    """Run what the command line says, and end the process with the status of docs/commands.md."""
    try:
        _import_command(program, sys.argv[1:])
        raise_on_signals()  # not before: an import may swallow what is raised in it
        status = program.main(prog_name="gpuplane", standalone_mode=False) or 0
        sys.stdout.flush()
    except click.ClickException as error:
        status = _print_click_error(error)
    except click.Abort:
        end_by_signal(signal.SIGINT)
    except EndedBySignal as ended:
        end_by_signal(ended.signal)
    except UnicodeEncodeError as error:
        status = _print_click_error(click.ClickException(f"'{error.object}' is not UTF-8 text"))
    except BrokenPipeError:
        os._exit(1)  # whoever read the result has enough of it, as `head`
    except OSError as error:
        os._exit(
            _print_click_error(click.ClickException(os_error_text(error)))
        )  # what standard output could not take is not tried again
    restore_default_handlers()
    sys.exit(status)


def _import_command(program: CommandGroup, words: Sequence[str]) -> None:
    """Import the module of the command that the words of a command line name, as far as they do."""
    for word in words:
        found = program.get_command(click.Context(program), word)
        if found is not None and not isinstance(found, CommandGroup):
            return
        program = found or program


def end_by_signal(number: signal.Signals) -> NoReturn:
    """End as the signal ends a process, so that a shell that runs us in a loop ends too."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # the first process of a container, which a signal does not end


def _print_click_error(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
    else:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.\n", err=True)
        print_error(error.format_message())
    return error.exit_code
