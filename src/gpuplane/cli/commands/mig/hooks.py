"""The hooks of `apply` and `restore`: programs of the caller, run with the caller's rights, each for a bounded time."""

from collections.abc import Mapping
from pathlib import Path

import click

from gpuplane.base import files, programs
from gpuplane.base.strict import InvalidInput
from gpuplane.base.text import clip
from gpuplane.cli.commands.mig.options import read
from gpuplane.cli.kit.messages import os_error_text, say
from gpuplane.node.core.partitions.hooks import Hook, HookName, parse_hooks

HOOK_SECONDS = 600.0
"""Seconds that one hook may take."""

hooks_file = click.option(
    "-k",
    "--hooks",
    "--hooks-file",
    "hooks_file",
    type=click.Path(path_type=Path, readable=False),
    envvar="MIG_PARTED_HOOKS_FILE",
    metavar="FILE",
    help="The file with programs to run before and after the changes.",
)


class Hooks:
    """The hooks of one command. `variables`: what each gets in its environment beside its own."""

    def __init__(self, path: Path | None, variables: Mapping[str, str], *, debug: bool) -> None:
        self._hooks, self._variables, self._debug = _parsed(path) if path is not None else {}, variables, debug

    async def run(self, name: HookName) -> None:
        """Run those of a name, one after the other, up to the first that fails. Raises ClickException."""
        for hook in self._hooks.get(name, ()):
            command = (hook.command, *hook.args)
            if self._debug:
                say(f"{name}: {clip(' '.join(command))}", err=True)
            problem = await self._run(hook, command)
            if problem:
                raise click.ClickException(f"the hook {name} failed: {hook.command}: {problem}")

    async def _run(self, hook: Hook, command: tuple[str, ...]) -> str:
        """Why it failed; "" where it did not."""
        environment = {**hook.envs, **self._variables}
        directory = Path(hook.workdir) if hook.workdir else None
        try:
            done = await programs.run(command, HOOK_SECONDS, environment=environment, directory=directory)
        except TimeoutError:
            return f"it did not end within {HOOK_SECONDS:g} s"
        except programs.OutputTooLarge as error:
            return str(error)
        except OSError as error:
            return os_error_text(error)
        output = (done.output + done.errors).decode(errors="replace").strip()
        if self._debug and output:
            say(output, err=True)
        return f"exit status {done.status}{': ' * bool(output)}{clip(output)}" if done.status else ""


def _parsed(path: Path) -> Mapping[HookName, tuple[Hook, ...]]:
    try:
        if reason := files.untrusted_reason(path, follow=True):
            raise click.ClickException(f"{path}: {reason}: others could have programs run with your rights")
        return parse_hooks(read(path), str(path))
    except OSError as error:
        raise click.ClickException(os_error_text(error)) from None
    except InvalidInput as invalid:
        raise click.ClickException(str(invalid)) from None
