"""The patches that change an object by what they say: merge patches, strategic ones, and JSON patches (RFC 6902)."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from gpuplane.sandbox.apiserver.objects import StatusError

MERGE_KEYS = {"conditions": "type", "addresses": "type", "taints": "key", "containers": "name"}
"""Lists that a strategic merge patch merges item by item, and the field that says which item is which
(patchMergeKey in k8s.io/api/core/v1/types.go). Every other list is replaced."""


def merge_patch(old: Any, patch: Any, keys: Mapping[str, str] = {}, field: str = "") -> Any:
    """A JSON merge patch (RFC 7386); with `keys`, a strategic one, without directives."""
    if field in keys and isinstance(old, list) and isinstance(patch, list):
        name = keys[field]
        changes = {each[name]: each for each in patch}
        kept = [merge_patch(each, changes.pop(each[name], {}), keys) for each in old]
        return [*kept, *changes.values()]
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value, keys, key)
    return result


def json_patch(old: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """A JSON patch with the operations test, add, replace and remove. Raises StatusError 422, as the real server
    answers where a test fails or a path is not there."""
    result = copy.deepcopy(old)
    for each in operations:
        try:
            _apply_operation(result, each)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            reason = "the server rejected our request due to an error in our request"
            raise StatusError(422, "Invalid", reason) from error
    return result


def _apply_operation(document: Any, operation: Mapping[str, Any]) -> None:
    path = [each.replace("~1", "/").replace("~0", "~") for each in operation["path"].split("/")[1:]]
    if not path:
        raise ValueError("the whole object is no target")
    holder = document
    for step in path[:-1]:
        holder = holder[int(step) if isinstance(holder, list) else step]
    key: Any = path[-1]
    if isinstance(holder, list):
        key = len(holder) if key == "-" else int(key)
    match operation["op"]:
        case "add" if isinstance(holder, list):
            holder.insert(key, operation["value"])
        case "add":
            holder[key] = operation["value"]
        case "test":
            if holder[key] != operation["value"]:
                raise ValueError("the test fails")
        case "replace":
            if isinstance(holder, dict) and key not in holder:
                raise KeyError(key)
            holder[key] = operation["value"]
        case "remove":
            del holder[key]
        case other:
            raise ValueError(f"{other} is no operation")
