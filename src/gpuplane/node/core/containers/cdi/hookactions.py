"""Describes what a hook does, for people, by the arguments of our program and of NVIDIA's.

Our program accepts `--option=value`, NVIDIA's also `--option value`. Options can be repeated in both.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.base.value import Value
from gpuplane.node.model.cdi import Hook

GPUPLANE_HOOK_PROGRAMS, NVIDIA_HOOK_PROGRAMS = ("gpuplane-hook",), ("nvidia-cdi-hook", "nvidia-ctk")


class HookAction(Value):
    """An action of a hook, and its targets: links, directories, versions."""

    description: str
    targets: tuple[str, ...] = ()


LINKS_TEXT = "creates links"
UPDATES_LOADER_CACHE_TEXT = "adds library directories to the loader's cache"
PREVENTS_NODE_CREATION_TEXT = (
    "prevents the driver's programs from creating device nodes: changes the driver's parameters in the container"
)
PREFERS_COMPAT_LIBRARIES_TEXT = (
    "prefers the image's CUDA compatibility libraries if they are newer than the driver and compatible with it"
)
TEXT_BY_NVIDIA_HOOK_NAME: Mapping[str, str] = {
    "create-symlinks": LINKS_TEXT,
    "enable-cuda-compat": PREFERS_COMPAT_LIBRARIES_TEXT,
    "update-ldcache": UPDATES_LOADER_CACHE_TEXT,
    "disable-device-node-modification": PREVENTS_NODE_CREATION_TEXT,
    "update-application-profile": "tells EGL which GPUs it may use",
    "chmod": "changes the modes of paths",
}
"""NVIDIA's names of hooks (nvidia-container-toolkit 1.20, internal/discover/hooks.go)."""


def hook_actions(hook: Hook) -> tuple[HookAction, ...]:
    """The actions of a hook; of an unknown program only its command line."""
    program, *arguments = hook.args or (hook.path,)
    program = program.rpartition("/")[2]
    if program in GPUPLANE_HOOK_PROGRAMS and arguments[:1] == ["create-container"]:
        return tuple(_gpuplane_hook_actions(_parse_options(arguments[1:])))
    if program in NVIDIA_HOOK_PROGRAMS:
        words = arguments[1:] if arguments[:1] == ["hook"] else arguments
        if words and words[0] in TEXT_BY_NVIDIA_HOOK_NAME:
            return (_nvidia_hook_action(words[0], _parse_options(words[1:])),)
    return (HookAction("runs an unknown program", (" ".join((hook.path, *arguments)),)),)


def _gpuplane_hook_actions(options: Mapping[str, Sequence[str]]) -> Iterator[HookAction]:
    if links := options.get("--link"):
        yield HookAction(LINKS_TEXT, tuple(map(_format_link, links)))
    if links := options.get("--link-if"):
        yield HookAction("creates links if their targets exist in the container", tuple(map(_format_link, links)))
    if folders := options.get("--folder"):
        yield HookAction(UPDATES_LOADER_CACHE_TEXT, tuple(folders))
    if folders := options.get("--compat"):
        named = (("driver", options.get("--driver")), ("CUDA", options.get("--cuda")))
        against = tuple(f"{what} {values[0]}" for what, values in named if values)
        yield HookAction(PREFERS_COMPAT_LIBRARIES_TEXT, (*folders, *against))
    if "--params" in options:
        yield HookAction(PREVENTS_NODE_CREATION_TEXT)


def _nvidia_hook_action(name: str, options: Mapping[str, Sequence[str]]) -> HookAction:
    links = name == "create-symlinks"
    values = [_format_link(value) if links else value for given in options.values() for value in given if value]
    return HookAction(TEXT_BY_NVIDIA_HOOK_NAME[name], tuple(values))


def _format_link(argument: str) -> str:
    """The argument TARGET::LINK as "LINK → TARGET"."""
    target, _, link = argument.partition("::")
    return f"{link} → {target}"


def _parse_options(arguments: Sequence[str]) -> Mapping[str, list[str]]:
    """Option → its values, in their order."""
    found: dict[str, list[str]] = {}
    last = ""
    for argument in arguments:
        if argument.startswith("--"):
            last, sign, value = argument.partition("=")
            found.setdefault(last, []).extend([value] if sign else [])
        else:
            found.setdefault(last, []).append(argument)
    return found
