"""What `nvidia-ctk cdi generate` can be asked for, and how we understand it.

Flags, environment variables and defaults are those of nvidia-container-toolkit 1.20 (cmd/nvidia-ctk/cdi/generate). What
has no effect here is told (`idle`); what would give a container other things there is refused.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import click

from gpuplane.base.strict import closest_match
from gpuplane.base.text import Text
from gpuplane.cli.kit.messages import say
from gpuplane.cli.kit.options import OneOf
from gpuplane.node.core.config.flags import CDI_FEATURE_FLAGS, CDI_HOOK_NAMES
from gpuplane.node.core.containers.cdi.specrequest import (
    ALL_NAME,
    NONE_NAME,
    HookProgram,
    NamingStrategy,
    SpecMode,
    SpecOptions,
)
from gpuplane.node.core.containers.cdi.validation import all_spec_problems
from gpuplane.node.core.containers.cdi.version import LOWEST_WRITTEN_VERSION
from gpuplane.node.host.cdi.hook import HOOK_PATH, hook_status
from gpuplane.node.model.cdi import Spec

KIND_BY_MODE: dict[SpecMode, str] = {
    "gpu": "nvidia.com/gpu",
    "management": "management.nvidia.com/gpu",
    "imex": "nvidia.com/imex-channel",
    "gds": "nvidia.com/gds",
    "gdrcopy": "nvidia.com/gdrcopy",
    "mofed": "nvidia.com/mofed",
    "nvswitch": "nvidia.com/nvswitch",
}
"""The kind of a mode's devices where nobody says another. NVIDIA's command says nvidia.com/gpu for all of them."""

UNSUPPORTED_MODES = {
    "csv": "is for Tegra systems, which gpuplane does not support: use nvidia-ctk",
    "wsl": "is for WSL on Windows, which gpuplane does not support: use nvidia-ctk",
}
MODE_BY_NAME: dict[str, SpecMode] = {
    "auto": "gpu",
    "nvml": "gpu",
    **{each: each for each in KIND_BY_MODE if each != "gpu"},
}
ENV_PREFIX = "NVIDIA_CTK_CDI_GENERATE_"

REPEATED_OPTION: dict[str, Any] = {"multiple": True}
TEXT_OPTION: dict[str, Any] = {"default": ""}
FLAG_OPTION: dict[str, Any] = {"is_flag": True}


def _one_of(choices: Iterable[str], default: str = "") -> dict[str, Any]:
    return {"type": OneOf(choices, case_sensitive=False), "default": default or None}


ONLY_CSV = "it is only for --mode csv"
WITHOUT_EFFECT = {
    "--ldconfig-path": "the hook finds ldconfig by itself",
    **dict.fromkeys(("--csv.file", "--csv.ignore-pattern", "--csv.compat-container-root"), ONLY_CSV),
}
"""The options that never have an effect, and why."""


def _no_effect(option: str) -> str:
    """The help of an option that never has an effect."""
    return f"No effect: {WITHOUT_EFFECT[option]}."


# fmt: off
OPTIONS = (
    ("--output", "NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", TEXT_OPTION, "The file. Default: standard output."),
    ("--format", ENV_PREFIX + "OUTPUT_FORMAT", _one_of(("json", "yaml")), "Default: the file's suffix, else yaml."),
    ("--mode --discovery-mode", ENV_PREFIX + "MODE",
     {**_one_of((*MODE_BY_NAME, *UNSUPPORTED_MODES), "auto"), "metavar": "MODE"},
     f"The kind of devices: {', '.join((*MODE_BY_NAME, *UNSUPPORTED_MODES))}. Default: auto, the GPUs."),
    ("--device-name-strategy", ENV_PREFIX + "DEVICE_NAME_STRATEGIES", REPEATED_OPTION,
     (
         f"How to name devices: {', '.join(get_args(NamingStrategy))}. Each strategy gives every device one more "
         "name. Default: index and uuid."
     )),
    ("--device-id --device-ids --device --devices", ENV_PREFIX + "DEVICE_IDS", REPEATED_OPTION,
     (
         "Include only these devices, by index or UUID. none: one empty device that adds nothing to a container. "
         "Default: all."
     )),
    ("--no-all-device", ENV_PREFIX + "NO_ALL_DEVICE", FLAG_OPTION, "Leave out the device `all`."),
    ("--vendor --cdi-vendor", ENV_PREFIX + "VENDOR", TEXT_OPTION, "Default: nvidia.com, or the vendor of the mode."),
    ("--class --cdi-class", ENV_PREFIX + "CLASS", TEXT_OPTION, "Default: gpu, or the class of the mode."),
    ("--driver-root", "NVIDIA_CTK_DRIVER_ROOT", {"default": "/"}, "The driver root on the host. Default: /."),
    ("--dev-root", "NVIDIA_CTK_DEV_ROOT", TEXT_OPTION, "The root of /dev on the host. Default: the driver root."),
    ("--nvidia-cdi-hook-path --nvidia-ctk-path", "NVIDIA_CTK_CDI_HOOK_PATH", TEXT_OPTION,
     (
         "NVIDIA's program for hooks, on the host. Default with --hook=nvidia: nvidia-cdi-hook from PATH, else "
         "/usr/bin/nvidia-cdi-hook."
     )),
    ("--disable-hook --disable-hooks", ENV_PREFIX + "DISABLED_HOOKS", REPEATED_OPTION,
     "Leave out the hook with this NVIDIA name; all: leave out every hook."),
    ("--enable-hook --enable-hooks", ENV_PREFIX + "ENABLED_HOOKS", REPEATED_OPTION,
     "Include this hook, even if --disable-hook or --mode management leaves it out. The hook chmod has no effect."),
    ("--feature-flag --feature-flags", ENV_PREFIX + "FEATURE_FLAGS", REPEATED_OPTION, "NVIDIA's feature flags."),
    ("--config-search-path", ENV_PREFIX + "CONFIG_SEARCH_PATHS", REPEATED_OPTION,
     "Not supported: gpuplane searches for files only where the driver installs them."),
    ("--ldconfig-path", ENV_PREFIX + "LDCONFIG_PATH", TEXT_OPTION, _no_effect("--ldconfig-path")),
    ("--library-search-path", ENV_PREFIX + "LIBRARY_SEARCH_PATHS", REPEATED_OPTION,
     "Look for the driver's libraries in this directory of the driver root first."),
    ("--csv.file", ENV_PREFIX + "CSV_FILES", REPEATED_OPTION, _no_effect("--csv.file")),
    ("--csv.ignore-pattern", ENV_PREFIX + "CSV_IGNORE_PATTERNS", REPEATED_OPTION, _no_effect("--csv.ignore-pattern")),
    ("--csv.compat-container-root", ENV_PREFIX + "CSV_CONTAINER_COMPAT_ROOT", TEXT_OPTION,
     _no_effect("--csv.compat-container-root")),

    ("--hook", "", _one_of(("auto", "gpuplane", "nvidia", "none"), "auto"),
     "The program that hooks run. Default: NVIDIA's if its path is given; else gpuplane's if it is installed; else "
     "none, and mounts replace the hooks."),
    ("--hook-path", "", {"default": str(HOOK_PATH)},
     f"gpuplane's program for hooks, on the host. Default: {HOOK_PATH}."),
)
"""Names, environment variable, kind, help: NVIDIA's, and two of ours."""
# fmt: on


def options(command: Callable[..., None]) -> Callable[..., None]:
    """All of them, on a command."""
    for names, variable, kind, help in reversed(OPTIONS):
        from_environment: dict[str, Any] = {"envvar": variable, "show_envvar": True} if variable else {}
        command = click.option(parameter(names), *names.split(), help=help, **from_environment, **kind)(command)
    return command


def parameter(names: str) -> str:
    return names.split()[0].strip("-").replace("-", "_").replace(".", "_")


def requested_spec(option_values: Mapping[str, Any], host: Path | None) -> SpecOptions:
    """What the options ask for. Raises click.BadParameter.

    `host`: where the host's root is seen; None where it is not.
    """
    mode = option_values["mode"]
    if mode in UNSUPPORTED_MODES:
        raise _bad_option("--mode", f"{mode} {UNSUPPORTED_MODES[mode]}")
    if option_values["config_search_path"]:
        raise _bad_option("--config-search-path", "gpuplane searches for files only where the driver installs them")
    vendor, name = KIND_BY_MODE[MODE_BY_NAME[mode]].split("/")
    kind = f"{option_values['vendor'] or vendor}/{option_values['class'] or name}"
    for where, problem in all_spec_problems(Spec(LOWEST_WRITTEN_VERSION, kind)):
        if where == ("kind",):
            raise _bad_option("--vendor, --class", problem.removeprefix("kind: "))
    for option in ("--driver-root", "--dev-root", "--hook-path"):
        if (path := option_values[parameter(option)]) and not path.startswith("/"):
            raise _bad_option(option, f"{path!r} is not an absolute path on the host")
    ids = _split_values(option_values["device_id"])
    return SpecOptions(
        kind=kind,
        mode=MODE_BY_NAME[mode],
        naming=_checked_choices(
            "--device-name-strategy", option_values["device_name_strategy"], get_args(NamingStrategy)
        )
        or ("index", "uuid"),
        with_all_device=not option_values["no_all_device"] and NONE_NAME not in ids,
        ids=ids,
        driver_root=option_values["driver_root"] or "/",
        dev_root=option_values["dev_root"] or option_values["driver_root"] or "/",
        hook_program=_hook_program(
            option_values["hook"], option_values["hook_path"], option_values["nvidia_cdi_hook_path"], host
        ),
        disabled_hooks=_checked_choices("--disable-hook", option_values["disable_hook"], CDI_HOOK_NAMES),
        enabled_hooks=_checked_choices(
            "--enable-hook", option_values["enable_hook"], [each for each in CDI_HOOK_NAMES if each != ALL_NAME]
        ),
        feature_flags=_checked_choices("--feature-flag", option_values["feature_flag"], CDI_FEATURE_FLAGS),
    )


def library_folders(option_values: dict[str, Any]) -> tuple[str, ...]:
    """The directories of --library-search-path. Raises click.UsageError for one that is not absolute."""
    folders = _split_values(option_values["library_search_path"])
    if relative := [each for each in folders if not each.startswith("/")]:
        raise _bad_option("--library-search-path", f"{relative[0]!r} is not an absolute path below the driver root")
    return folders


def _split_values(values: Iterable[str]) -> tuple[str, ...]:
    """An option that is said several times, or once with commas."""
    parts = (part.strip() for value in values for part in value.split(","))
    return tuple(dict.fromkeys(filter(None, parts)))


def _checked_choices(option: str, values: Iterable[str], choices: Iterable[str]) -> tuple[Any, ...]:
    for value in (chosen := _split_values(values)):
        if value not in choices:
            close = closest_match(value, choices)
            perhaps = f"did you mean {close!r}?" if close else f"known: {', '.join(choices)}"
            raise _bad_option(option, f"{value!r} is unknown; {perhaps}")
    return chosen


def _hook_program(hook: str, ours: str, theirs: str, host: Path | None) -> HookProgram | None:
    """The program that a container's start calls, and a word where it was named and is not there."""
    if hook == "nvidia" or (hook == "auto" and theirs):
        if "/" in theirs:
            return HookProgram(theirs, is_nvidia=True)
        name = theirs or "nvidia-cdi-hook"
        if (found := shutil.which(name)) is None:
            note(f"{name} is not found here: it must be /usr/bin/{name} on the host; or use --nvidia-cdi-hook-path")
        return HookProgram(found or f"/usr/bin/{name}", is_nvidia=True)
    status = hook_status(Path(ours), host)
    if hook == "gpuplane" or (hook == "auto" and status.path):
        if not status.path:
            note(f"no container with these devices can start until the hook works: {status.text}")
        return HookProgram(ours)
    return None


def output_file(option_values: Mapping[str, Any]) -> tuple[Path | None, str]:
    """The file, None for standard output, and its format. Runtimes read files whose names end in .json or .yaml."""
    named = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(Path(option_values["output"]).suffix.lower())
    form = option_values["format"] or named or "yaml"
    if option_values["output"] in ("", "-"):
        return None, form
    path = Path(option_values["output"])
    if path.is_dir():
        raise _bad_option("--output", f"{path} is a directory: write the name of a file")
    if path.suffix not in (".json", ".yaml"):
        return path.with_name(f"{path.name}.{form}"), form
    if form != named:
        note(f"{path} is written as {form} because of --format, but its suffix names another format")
    return path, form


def _bad_option(option: str, problem: str) -> click.BadParameter:
    return click.BadParameter(problem, click.get_current_context(silent=True), param_hint=option)


def note(text: Text) -> None:
    """A word to whoever runs this."""
    say(f"Note: {text}", err=True)
