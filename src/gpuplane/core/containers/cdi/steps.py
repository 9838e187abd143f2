"""What a hook does, in words: read off the arguments of ours and of NVIDIA's program.

Ours takes `--option=value`, NVIDIA's both that and two arguments; both may repeat an option.
"""

from collections.abc import Iterator, Mapping, Sequence

from gpuplane.model.cdi import Hook
from gpuplane.model.value import Value

OURS, NVIDIAS = ("gpuplane-hook",), ("nvidia-cdi-hook", "nvidia-ctk")


class Step(Value):
    """One thing that a hook does, and to what."""

    what: str
    to: tuple[str, ...] = ()


LINKS = "makes links"
CACHE = "has the loader's cache made anew, with the libraries in"
PARAMS = "keeps the driver's programs from making device nodes, by its parameters as the container sees them"
COMPAT = "prefers the image's CUDA compatibility libraries where they are newer than the driver and made for it"
NVIDIA: Mapping[str, str] = {
    "create-symlinks": LINKS,
    "enable-cuda-compat": COMPAT,
    "update-ldcache": CACHE,
    "disable-device-node-modification": PARAMS,
    "update-application-profile": "tells EGL which GPUs it may use",
    "chmod": "changes the modes of paths",
}
"""NVIDIA's names of hooks (nvidia-container-toolkit 1.20, internal/discover/hooks.go)."""


def steps(hook: Hook) -> tuple[Step, ...]:
    """What a hook does; for a program that is not known here, that alone."""
    program, *arguments = hook.args or (hook.path,)
    program = program.rpartition("/")[2]
    if program in OURS and arguments[:1] == ["create-container"]:
        return tuple(_ours(_options(arguments[1:])))
    if program in NVIDIAS:
        words = arguments[1:] if arguments[:1] == ["hook"] else arguments
        if words and words[0] in NVIDIA:
            return (_nvidia(words[0], _options(words[1:])),)
    return (Step("runs a program that is not known here", (" ".join((hook.path, *arguments)),)),)


def _ours(options: Mapping[str, Sequence[str]]) -> Iterator[Step]:
    if links := options.get("--link"):
        yield Step(LINKS, tuple(map(_link, links)))
    if links := options.get("--link-if"):
        yield Step("makes links where the container has what they lead to", tuple(map(_link, links)))
    if folders := options.get("--folder"):
        yield Step(CACHE, tuple(folders))
    if folders := options.get("--compat"):
        named = (("driver", options.get("--driver")), ("CUDA", options.get("--cuda")))
        against = tuple(f"{what} {values[0]}" for what, values in named if values)
        yield Step(COMPAT, (*folders, *against))
    if "--params" in options:
        yield Step(PARAMS)


def _nvidia(name: str, options: Mapping[str, Sequence[str]]) -> Step:
    links = name == "create-symlinks"
    values = [_link(value) if links else value for given in options.values() for value in given if value]
    return Step(NVIDIA[name], tuple(values))


def _link(argument: str) -> str:
    """TARGET::LINK as people write it."""
    target, _, link = argument.partition("::")
    return f"{link} → {target}"


def _options(arguments: Sequence[str]) -> Mapping[str, list[str]]:
    """Options with their values, in their order."""
    found: dict[str, list[str]] = {}
    last = ""
    for argument in arguments:
        if argument.startswith("--"):
            last, sign, value = argument.partition("=")
            found.setdefault(last, []).extend([value] if sign else [])
        else:
            found.setdefault(last, []).append(argument)
    return found
