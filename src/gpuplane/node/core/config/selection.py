"""Which of several named configurations is in force (k8s-device-plugin 0.20, cmd/config-manager/main.go).

The node's label names it; without a label it is the default; without a default the fallback strategies are tried in
their order. This is what NVIDIA's config-manager does. One difference: where config-manager gives up, and the node's
GPUs go away, here the current configuration stays in force and the problem is reported: a mistyped label costs no node.
"""

from collections.abc import Callable, Collection, Sequence

from gpuplane.base.strict import InvalidInput, closest_match
from gpuplane.base.value import Value

FALLBACK_STRATEGIES: dict[str, Callable[[Collection[str]], str | None]] = {
    "named": lambda names: "default" if "default" in names else None,
    "single": lambda names: next(iter(names)) if len(names) == 1 else None,
    "empty": lambda names: "",
}


class SelectedConfig(Value):
    """`name`: of a configuration; "" for the empty one. `problem`: why it is not the requested one; "" if it is."""

    name: str
    problem: str = ""


REQUESTED_BY_LABEL = "requested by the node's label"


def select_config(
    names: Collection[str],
    label_value: str,
    default: str,
    fallbacks: Sequence[str],
    current: str | None,
    requester: str = REQUESTED_BY_LABEL,
) -> SelectedConfig:
    """The configuration to put in force. `label_value`, `default`: names, or "". `current`: the name in force,
    None for none. `requester`: who requests `label_value`, for an error.

    Raises InvalidInput where there is a problem, and the current configuration does not exist either.
    """
    try:
        return SelectedConfig(_requested_config_name(names, label_value, default, fallbacks, requester))
    except LookupError as error:
        problem = str(error.args[0])
        if current is None or (current and current not in names):
            raise InvalidInput([problem]) from None
        return SelectedConfig(current, problem)


def _requested_config_name(
    names: Collection[str], label_value: str, default: str, fallbacks: Sequence[str], requester: str
) -> str:
    if label_value or default:
        return (
            _require_config_exists(names, label_value, requester)
            if label_value
            else _require_config_exists(names, default, "the default")
        )
    for fallback in fallbacks:
        if fallback not in FALLBACK_STRATEGIES:
            raise LookupError(f"unknown fallback strategy {fallback!r}; write one of: {', '.join(FALLBACK_STRATEGIES)}")
        found = FALLBACK_STRATEGIES[fallback](names)
        if found is not None:
            return found
    tried = f" ({', '.join(fallbacks)})" if fallbacks else ""
    raise LookupError(
        "no configuration is chosen: the node label names none, --default-config is not set, and no fallback "
        f"strategy finds one{tried}; {_list_known_names(names)}"
    )


def _require_config_exists(names: Collection[str], name: str, requester: str) -> str:
    if name in names:
        return name
    close = closest_match(name, names)
    raise LookupError(
        f"configuration {name!r}, {requester}, does not exist; {_list_known_names(names)}"
        + (f"; did you mean {close!r}?" if close else "")
    )


def _list_known_names(names: Collection[str]) -> str:
    return f"known configurations: {', '.join(sorted(names))}" if names else "there are no configurations"
