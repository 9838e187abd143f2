"""What of the options has no effect, always or beside the others, and why: it is taken as NVIDIA's command takes it."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpuplane.cli.commands.cdi.asked import OPTIONS, WITHOUT_EFFECT, parameter
from gpuplane.node.core.containers.cdi.hooks import ALL_HOOKS, UPDATE_APPLICATION_PROFILE
from gpuplane.node.core.containers.cdi.specrequest import SpecMode, SpecOptions
from gpuplane.node.host.cdi.hook import HOOK_PATH

HOOK_OPTIONS = ("--hook", "--hook-path", "--nvidia-cdi-hook-path", "--disable-hook", "--enable-hook")
EFFECTIVE_MODES_BY_OPTION: Mapping[str, tuple[SpecMode, ...]] = {
    "--device-name-strategy": ("gpu",),
    "--no-all-device": ("gpu", "imex"),
    **dict.fromkeys(HOOK_OPTIONS, ("gpu", "management")),
}
"""Options that mean something in some modes only."""

DEFAULT_BY_OPTION = {"--hook": "auto", "--hook-path": str(HOOK_PATH)}

NO_PROGRAM = "no hooks are written"

UNSUPPORTED_HOOKS = {
    "chmod": "crun has not needed it since 1.7",
    "create-soname-symlinks": "create-symlinks creates those links too",
    UPDATE_APPLICATION_PROFILE: "only NVIDIA's program can update application profiles, see --hook",
}
"""NVIDIA's hooks of which something is not done here, and why."""


def options_without_effect(option_values: Mapping[str, Any], asked: SpecOptions) -> Iterator[str]:
    """A sentence for each option that was given and has no effect."""
    for names, *_ in OPTIONS:
        name = names.split()[0]
        if not _is_given(name, option_values):
            continue
        if name in WITHOUT_EFFECT:
            yield f"{name} has no effect: {WITHOUT_EFFECT[name]}"
        elif asked.mode not in EFFECTIVE_MODES_BY_OPTION.get(name, (asked.mode,)):
            yield f"{name} has no effect with --mode {asked.mode}"
        elif name in HOOK_OPTIONS:
            yield from _hook_options_without_effect(name, option_values, asked)


def _is_given(name: str, option_values: Mapping[str, Any]) -> bool:
    value = option_values[parameter(name)]
    return bool(value) and value != DEFAULT_BY_OPTION.get(name)


def _hook_options_without_effect(name: str, option_values: Mapping[str, Any], asked: SpecOptions) -> Iterator[str]:
    """Of the options for hooks, in a mode that has some."""
    ours = asked.hook_program is not None and not asked.hook_program.is_nvidia
    theirs = asked.hook_program is not None and asked.hook_program.is_nvidia
    match name:
        case "--hook-path" if not ours and option_values["hook"] != "auto":
            yield f"{name} has no effect with --hook {option_values['hook']}"
        case "--hook-path" if theirs:
            yield f"{name} has no effect: --nvidia-cdi-hook-path has priority"
        case "--nvidia-cdi-hook-path" if not theirs:
            yield f"{name} has no effect with --hook {option_values['hook']}"
        case "--disable-hook" if asked.hook_program is None:
            yield f"{name} has no effect: {NO_PROGRAM}"
        case "--enable-hook":
            yield from (
                f"{name} {each} has no effect{why}"
                for each in asked.enabled_hooks
                if (why := _why_hook_is_ignored(each, asked))
            )


def _why_hook_is_ignored(hook: str, asked: SpecOptions) -> str:
    """Why a hook is not called though it was asked for; "" where it is."""
    if hook == UPDATE_APPLICATION_PROFILE and asked.mode == "management":
        return " with --mode management"
    if hook not in ALL_HOOKS or (
        hook == UPDATE_APPLICATION_PROFILE and asked.hook_program is not None and not asked.hook_program.is_nvidia
    ):
        return f": {UNSUPPORTED_HOOKS[hook]}"
    return f": {NO_PROGRAM}" if asked.hook_program is None else ""
