"""`gpuplane runtime`: make the container runtime of this node take CDI devices, by the smallest change, and back."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from gpuplane.base.strict import InvalidInput
from gpuplane.base.value import Value
from gpuplane.cli.kit import signals
from gpuplane.cli.kit.messages import print_error, say
from gpuplane.cli.kit.options import FILE_PATH, OneOf, json_option, usage_error
from gpuplane.cli.kit.presenter import print_json
from gpuplane.node.core.runtimes.plan import ChangeRecord, FileChange, format_version, unified_diff
from gpuplane.node.host.runtimes import memories
from gpuplane.node.host.runtimes.sources import NodeAccessFailed, RuntimePlan, RuntimeRequest, plan_runtime_change

STATE_DIR = Path("/var/lib/gpuplane-runtime")
"""Not the agent's, which its container can write: what is remembered decides what root writes where."""

RUNTIME_CHOICE = OneOf(("containerd", "docker", "crio"), also={"cri-o": "crio"})

NO_WRAPPER_REASON = "no OCI runtime is wrapped: the container runtime itself accepts CDI devices"
NO_DEFAULT_RUNTIME_REASON = "no other default runtime is needed: a container gets the CDI devices that kubelet passes"
REFUSED_FLAGS = {
    "--nvidia-runtime-name": NO_WRAPPER_REASON,
    "--nvidia-runtime-path": NO_WRAPPER_REASON,
    "--runtime-path": NO_WRAPPER_REASON,
    "--set-as-default": NO_DEFAULT_RUNTIME_REASON,
    "--nvidia-set-as-default": NO_DEFAULT_RUNTIME_REASON,
    "--config-mode": "no OCI hook is configured: the CDI specifications contain the hooks, see gpuplane cdi generate",
    "--oci-hook-path": "no OCI hook is configured: the CDI specifications contain the hooks, see gpuplane cdi generate",
}
"""Flags of `nvidia-ctk runtime configure` that ask for what is not done, and what to know instead."""


class Report(Value, omit_defaults=False):
    """What `--json` shows: every key is always there."""

    runtime: str
    status: str  # nothing, needed, changed, undone, failed
    version: str = ""
    reason: str = ""
    restart: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple["ShownChange", ...] = ()
    errors: tuple[str, ...] = ()


class ShownChange(Value):
    """A file, what becomes of it, and the unified diff."""

    path: str
    change: str
    diff: str


@click.group()
def command() -> None:
    """Make this node's container runtime accept CDI devices."""


def _refused_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that are refused, each with its reason."""

    def refuse(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
        if value is not None:
            name = parameter.opts[0]
            raise click.UsageError(f"{name}: {REFUSED_FLAGS[name]}; leave this option out", ctx)

    for name in REFUSED_FLAGS:
        kind: dict[str, Any] = {"is_flag": False, "flag_value": "true", "hidden": True, "expose_value": False}
        function = click.option(name, callback=refuse, **kind)(function)
    return function


def _check_cdi_enabled(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    if value.lower() not in ("true", "1"):
        problem = f"{parameter.opts[0]}={value}: this command can only enable CDI; use --undo to revert the change"
        raise click.UsageError(problem, ctx)


def _check_config_source(ctx: click.Context, parameter: click.Parameter, value: str) -> None:
    if value != "file":
        problem = (
            f"--config-source {value}: not supported, because a runtime's dump does not show which file has a setting"
        )
        raise click.UsageError(problem, ctx)


@command.command(
    short_help="enable CDI devices with the smallest change (often no change is needed), or revert that change"
)
@click.option("--runtime", type=RUNTIME_CHOICE, required=True, help="The runtime.")
@click.option("--config", default="", metavar="FILE", help="Its configuration file, if it is not the default one.")
@click.option(
    "--drop-in-config",
    default="",
    metavar="FILE",
    help="Write the change into this file, and import it if no file does.",
)
@click.option("--cdi-dir", default="/var/run/cdi", show_default=True, metavar="DIR", help="The agent's CDI directory.")
@click.option(
    "--runtime-version",
    default="",
    metavar="V",
    help="The runtime's version. Default: the version that its program prints.",
)
@click.option("--executable-path", default="", metavar="FILE", help="The runtime's program, which prints the version.")
@click.option("--check", is_flag=True, help="Only check whether a change is needed: exit status 0 if not, 1 if it is.")
@click.option("--dry-run", is_flag=True, help="Only show what would change, as a unified diff.")
@click.option("--undo", is_flag=True, help="Revert what this command has changed.")
@click.option(
    "--state-dir",
    type=FILE_PATH,
    default=STATE_DIR,
    show_default=True,
    envvar="GPUPLANE_RUNTIME_STATE_DIR",
    help="The directory where changes are recorded.",
)
@json_option("One JSON object.")
@click.option(
    "--cdi.enabled",
    "--cdi.enable",
    "--enable-cdi",
    is_flag=False,
    flag_value="true",
    default="true",
    callback=_check_cdi_enabled,
    expose_value=False,
    help="For compatibility with nvidia-ctk: CDI is always enabled.",
)
@click.option(
    "--config-source",
    default="file",
    callback=_check_config_source,
    expose_value=False,
    help="For compatibility with nvidia-ctk: the only accepted value is file.",
)
@_refused_options
def configure(
    runtime: str, check: bool, dry_run: bool, undo: bool, state_dir: Path, as_json: bool, **asked: str
) -> None:
    """Make a container runtime accept CDI devices by the smallest change, often none.

    Every other byte of its files stays the same. The change is recorded, and --undo reverts it. The runtime is never
    restarted: the output says what to run.

    Exit status: 0 done, or nothing to do; 1 it failed, or with --check: a change is needed; --json distinguishes the
    two.
    """
    if undo and check:
        raise usage_error("--undo and --check cannot be combined")
    config, drop_in = (
        str(Path(each).absolute()) if each else "" for each in (asked["config"], asked["drop_in_config"])
    )
    request = RuntimeRequest(
        runtime, asked["cdi_dir"], config, drop_in, asked["runtime_version"], asked["executable_path"]
    )
    try:
        report = _undo(request, state_dir, dry_run) if undo else _configure(request, state_dir, check or dry_run)
    except (InvalidInput, NodeAccessFailed) as error:
        errors = tuple(error.errors) if isinstance(error, InvalidInput) else (str(error),)
        report = Report(runtime, "failed", errors=errors)
    _print_report(report, as_json, dry_run)
    sys.exit(int(report.status == "failed" or (check and report.status == "needed")))


def _configure(request: RuntimeRequest, state: Path, only_look: bool) -> Report:
    judged = plan_runtime_change(request)
    plan = judged.plan
    if only_look or not plan.changes:
        status = "needed" if plan.changes else "nothing"
        return _report(
            request,
            judged,
            status,
            tuple(ShownChange(each.path, _describe_change(each), each.diff()) for each in plan.changes),
        )
    done: list[ShownChange] = []
    with memories.lock_memories(state):
        for change in plan.changes:
            with signals.uninterrupted():
                target = memories.apply_change(state, request.runtime, change, judged.restart)
            link = f" (a link to {target})" if target != change.path else ""
            done.append(ShownChange(change.path, f"{_describe_change(change)}{link}", change.diff()))
    return _report(request, judged, "changed", tuple(done))


def _report(request: RuntimeRequest, judged: RuntimePlan, status: str, changes: tuple[ShownChange, ...]) -> Report:
    number = format_version(judged.version) if judged.version else ""
    restart = judged.restart if changes else ""
    return Report(request.runtime, status, number, judged.plan.reason, restart, judged.plan.notes, changes)


def _describe_change(change: FileChange) -> str:
    """A change in words."""
    new = "a new file: " if change.before is None else ""
    return new + ", ".join(f"{each.key_path[-1]} = {msgspec.json.encode(each.value).decode()}" for each in change.edits)


def _undo(request: RuntimeRequest, state: Path, only_look: bool) -> Report:
    named = [os.path.realpath(each) for each in (request.config, request.drop_in) if each]

    def remembered() -> list[ChangeRecord]:
        return [each for each in memories.remembered_changes(state, request.runtime) if not named or each.path in named]

    if not remembered():
        why = f"{state} has no record of a change of {' or '.join(named) or request.runtime}"
        if others := [
            each.path for each in memories.remembered_changes(state, request.runtime)
        ]:  # it was in an imported file
            why += (
                f", but has records for {', '.join(others)}: to revert those changes, remove --config and "
                "--drop-in-config"
            )
        return Report(request.runtime, "nothing", reason=why)
    done: list[ShownChange] = []
    with memories.lock_memories(state):
        found = remembered()
        for memory in found:
            current, result = memories.undo_change(memory)
            done.append(ShownChange(memory.path, result.description, unified_diff(memory.path, current, result.data)))
            if not only_look:
                with signals.uninterrupted():
                    memories.restore_file(state, memory, current, result)
    restart = found[0].restart_command if any(each.diff for each in done) else ""
    return Report(request.runtime, "needed" if only_look else "undone", restart=restart, changes=tuple(done))


def _print_report(report: Report, as_json: bool, with_diff: bool) -> None:
    if as_json:
        print_json(report)
        return
    for error in report.errors:
        print_error(error)
    if report.reason:
        say(f"{report.reason}." if report.changes else f"Nothing to do: {report.reason}.")
    for each in report.changes:
        say(f"{each.path}: {each.change}")
        if with_diff:
            click.echo(each.diff, nl=False)
    for note in report.notes:
        say(f"Note: {note}.", err=True)
    if report.status == "needed":
        say("Nothing was written.")
    if report.status in ("changed", "undone") and report.restart:
        say(f"Takes effect when {report.runtime} is restarted: {report.restart}")
