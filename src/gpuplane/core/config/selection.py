"""Which of several named configurations is in force (k8s-device-plugin 0.20, cmd/config-manager/main.go).

The node's label names one; without a label the default is taken, and without a default the fallbacks are tried in their
order. So does NVIDIA's config-manager, and where it gives up and takes the node's GPUs with it, the name that was in
force last stays, with the problem said: whoever mistypes a label does not lose a node.
"""

from collections.abc import Callable, Collection, Sequence

from gpuplane.core.strict import InvalidInput, closest_match
from gpuplane.model.value import Value

FALLBACK_STRATEGIES: dict[str, Callable[[Collection[str]], str | None]] = {
    "named": lambda names: "default" if "default" in names else None,
    "single": lambda names: next(iter(names)) if len(names) == 1 else None,
    "empty": lambda names: "",
}


class SelectedConfig(Value):
    """A name, "" for the empty configuration; and what of the wish could not be followed, "" for nothing."""

    name: str
    problem: str = ""


REQUESTED_BY_LABEL = "which the node's label asks for"


def select_config(
    names: Collection[str],
    label: str,
    default: str,
    fallbacks: Sequence[str],
    current: str | None,
    requester: str = REQUESTED_BY_LABEL,
) -> SelectedConfig:
    """The name to have in force. `label` and `default` are "" where they name none; `last` None where none was yet.
    `asked` says, for an error, who asks for `label`.

    Raises Invalid where none can be: the wish cannot be followed, and none was in force before or it is gone too.
    """
    try:
        return SelectedConfig(_requested_name(names, label, default, fallbacks, requester))
    except LookupError as error:
        problem = str(error.args[0])
        if current is None or (current and current not in names):
            raise InvalidInput([problem]) from None
        return SelectedConfig(current, problem)


def _requested_name(names: Collection[str], label: str, default: str, fallbacks: Sequence[str], requester: str) -> str:
    if label or default:
        return _require_existing(names, label, requester) if label else _require_existing(names, default, "the default")
    for fallback in fallbacks:
        if fallback not in FALLBACK_STRATEGIES:
            raise LookupError(f"fallback strategy {fallback!r} is not known; known: {', '.join(FALLBACK_STRATEGIES)}")
        found = FALLBACK_STRATEGIES[fallback](names)
        if found is not None:
            return found
    tried = f" ({', '.join(fallbacks)})" if fallbacks else ""
    raise LookupError(
        "no configuration is requested by name, there is no default, and no fallback strategy finds one"
        f"{tried}; {_list_known_names(names)}"
    )


def _require_existing(names: Collection[str], name: str, role: str) -> str:
    if name in names:
        return name
    close = closest_match(name, names)
    raise LookupError(
        f"configuration {name!r}, {role}, does not exist; {_list_known_names(names)}"
        + (f"; did you mean {close!r}?" if close else "")
    )


def _list_known_names(names: Collection[str]) -> str:
    return f"known: {', '.join(sorted(names))}" if names else "there are none"
