"""`gpuplane cdi generate`: a specification of this machine's devices, once, as `nvidia-ctk cdi generate` writes it."""

from pathlib import Path
from typing import Any

import click
import msgspec
import yaml

from gpuplane.base.files import untrusted_reason
from gpuplane.base.text import format_count, group_by_key, join
from gpuplane.cli.commands.cdi.asked import library_folders, note, options, output_file, requested_spec
from gpuplane.cli.commands.cdi.ineffectiveoptions import options_without_effect
from gpuplane.cli.kit import signals
from gpuplane.cli.kit.durations import PositiveNumber
from gpuplane.cli.kit.machine import NVML, hardware
from gpuplane.cli.kit.messages import say
from gpuplane.node.core.containers.cdi.specbuilder import build_spec
from gpuplane.node.core.containers.cdi.specrequest import SpecOptions
from gpuplane.node.core.containers.cdi.validation import all_spec_problems
from gpuplane.node.hardware.described.profiles import UnknownMachine
from gpuplane.node.hardware.observeonce import NotObserved, observe_once
from gpuplane.node.host.cdi.directory import replace_file
from gpuplane.node.model.cdi import Spec
from gpuplane.node.model.encoding import format_json
from gpuplane.node.model.machine import Machine


@click.command()
@options
@click.option(
    "--machine",
    default=NVML,
    metavar="nvml|PROFILE|FILE",
    help="nvml for the real machine, a machine file, or the name of a profile.",
)
@click.option(
    "--driver-root-ctr-path", default="", envvar="DRIVER_ROOT_CTR_PATH", help="The driver root as this process sees it."
)
@click.option(
    "--timeout",
    type=PositiveNumber("seconds", 3600),
    default=60.0,
    show_default=True,
    help="How many seconds to wait for the driver.",
)
def command(machine: str, driver_root_ctr_path: str, timeout: float, **option_values: Any) -> None:
    """Write a CDI specification of this machine's devices, once. The agent updates its own specifications by itself.

    Standard error says what is left out, and why. Exit status: 0 written, 1 nothing to write, 2 a wrong option.
    """
    here = driver_root_ctr_path
    host = Path(here or "/") if machine == NVML and option_values["driver_root"] in ("", "/") else None
    asked, (path, form) = requested_spec(option_values, host), output_file(option_values)
    for each in options_without_effect(option_values, asked):
        note(each)
    if here and machine != NVML:
        note("--driver-root-ctr-path has no effect with a machine file: its driver is not installed anywhere")
    roots = Path(here or asked.driver_root), Path(here or asked.dev_root)
    seen = _observe(machine, *roots, library_folders(option_values), timeout)
    spec = _build_spec(seen, asked)
    if path is None:
        click.echo(_format_spec(spec, form), nl=False)
        return
    try:
        with signals.uninterrupted():
            _write(_format_spec(spec, form), path)
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    say(f"{path}: {format_count(len(spec.devices), 'device')} of {spec.kind}, CDI {spec.cdi_version}", err=True)


def _write(text: str, path: Path) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    replace_file(path.parent, path.name, text.encode())
    if reason := untrusted_reason(path, follow=True):
        note(f"{path}: {reason}: users other than root could change what containers get; let only root write there")


def _observe(machine: str, driver_root: Path, dev_root: Path, folders: tuple[str, ...], timeout: float) -> Machine:
    """One look. A call of the driver may take a third of the time: a GPU that hangs then leaves it to the others."""

    if machine == NVML and not driver_root.is_dir():
        raise click.ClickException(f"the driver root {driver_root} is not a directory that this process can see")

    async def seen() -> Machine:
        found = hardware(
            machine, driver_root=driver_root, library_folders=folders, dev_root=dev_root, deadline=timeout / 3
        )
        return await observe_once(found, timeout)

    try:
        return signals.run(seen())
    except (NotObserved, UnknownMachine) as error:
        raise click.ClickException(str(error)) from None


def _build_spec(machine: Machine, asked: SpecOptions) -> Spec:
    """The specification, after a word about whatever it lacks. Raises click.ClickException where there is none."""
    if machine.gpus is None and asked.mode == "gpu":
        raise click.ClickException(
            f"{join('; ', (each.message for each in machine.faults)) or 'the driver shows no GPUs'}"
        )
    try:
        made = build_spec(machine, asked)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    for why, ids in group_by_key((why, id) for id, why in made.omission_reason_by_device.items()):
        note(f"left out: {', '.join(ids)}: {why}")
    for each in made.notes:
        note(each)
    spec = made.spec
    if spec is None:
        raise click.ClickException(f"nothing to write: there is no device of {asked.kind}")
    if asked.hook_program is None and spec.container_edits.mounts:
        note("no hooks are written, mounts replace them: see --hook")
    if wrong := [problem for _, problem in all_spec_problems(spec)]:
        raise click.ClickException("\n".join(wrong))
    return spec


def _format_spec(spec: Spec, form: str) -> str:
    if form == "json":
        return format_json(spec).decode()
    text: str = yaml.dump(
        msgspec.to_builtins(spec), Dumper=yaml.CSafeDumper, explicit_start=True, sort_keys=False, allow_unicode=True
    )
    return text
