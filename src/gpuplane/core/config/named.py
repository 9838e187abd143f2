"""Which of several named configurations is in force (k8s-device-plugin 0.20, cmd/config-manager/main.go).

The node's label names one; without a label the default is taken, and without a default the fallbacks are tried in their
order. So does NVIDIA's config-manager, and where it gives up and takes the node's GPUs with it, the name that was in
force last stays, with the problem said: whoever mistypes a label does not lose a node.
"""

from collections.abc import Callable, Collection, Sequence

from gpuplane.core.strict import Invalid, close_to
from gpuplane.model.value import Value

FALLBACKS: dict[str, Callable[[Collection[str]], str | None]] = {
    "named": lambda names: "default" if "default" in names else None,
    "single": lambda names: next(iter(names)) if len(names) == 1 else None,
    "empty": lambda names: "",
}


class Choice(Value):
    """A name, "" for the empty configuration; and what of the wish could not be followed, "" for nothing."""

    name: str
    problem: str = ""


LABEL = "which the node's label asks for"


def choose(
    names: Collection[str],
    label: str,
    default: str,
    fallbacks: Sequence[str],
    last: str | None,
    asked: str = LABEL,
) -> Choice:
    """The name to have in force. `label` and `default` are "" where they name none; `last` None where none was yet.
    `asked` says, for an error, who asks for `label`.

    Raises Invalid where none can be: the wish cannot be followed, and none was in force before or it is gone too.
    """
    try:
        return Choice(_wished(names, label, default, fallbacks, asked))
    except LookupError as error:
        problem = str(error.args[0])
        if last is None or (last and last not in names):
            raise Invalid([problem]) from None
        return Choice(last, problem)


def _wished(names: Collection[str], label: str, default: str, fallbacks: Sequence[str], asked: str) -> str:
    if label or default:
        return _existing(names, label, asked) if label else _existing(names, default, "the default")
    for fallback in fallbacks:
        if fallback not in FALLBACKS:
            raise LookupError(f"fallback strategy {fallback!r} is not known; known: {', '.join(FALLBACKS)}")
        found = FALLBACKS[fallback](names)
        if found is not None:
            return found
    tried = f" ({', '.join(fallbacks)})" if fallbacks else ""
    raise LookupError(
        f"no configuration is asked for by name, there is no default, and no fallback fits{tried}; {_known(names)}"
    )


def _existing(names: Collection[str], name: str, role: str) -> str:
    if name in names:
        return name
    close = close_to(name, names)
    raise LookupError(
        f"configuration {name!r}, {role}, does not exist; {_known(names)}"
        + (f"; did you mean {close!r}?" if close else "")
    )


def _known(names: Collection[str]) -> str:
    return f"known: {', '.join(sorted(names))}" if names else "there are none"
