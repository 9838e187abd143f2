"""What NVIDIA's plugin takes or passes over in a file although it is written otherwise, each with a warning.

Their file is read by sigs.k8s.io/yaml into Go's structs (k8s-device-plugin 0.20, api/config/v1), which means:

- Keys are matched in any case: `migstrategy` is migStrategy. So are they here. Where they take keys apart by hand, in
  sharing.timeSlicing and sharing.mps, another case is another key, which is dropped or an error: here it is an error.
- A key without a field is dropped. Those of flags.plugin that stand directly under flags are, in files that many have
  copied; they are passed over here too, and have no effect. Any other unknown key is an error here.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

import msgspec

from gpuplane.core.config.schema import DiscoveryFlags, File, Flags, Imex, PluginFlags, Resources, Strategies
from gpuplane.core.document import Node, Problem
from gpuplane.core.strict import without_own

ANY_CASE = (File, Flags, PluginFlags, DiscoveryFlags, Resources, Strategies, Imex)
"""The sections whose keys are matched in any case."""


def accepted(root: Node, warnings: list[Problem]) -> Node:
    """The document as it is taken, without its author's own keys. What is taken otherwise than written is warned of."""
    return _section(without_own(root), File, "", warnings)


def _section(node: Node, kind: Any, place: str, warnings: list[Problem]) -> Node:
    if kind not in ANY_CASE or not isinstance(node.value, dict):
        return node
    sections, taken = _sections(kind), {}
    for key, each in _in_their_case(node.value, sections, place, warnings):
        if kind is Flags and key not in sections and (meant := _among(key, _sections(PluginFlags))):
            belongs = f"it belongs to flags.plugin.{meant}"
            warnings.append((each.line, f"{place}{key} is passed over here, as by NVIDIA's plugin: {belongs}"))
        else:
            taken[key] = _section(each, sections.get(key), f"{place}{key}.", warnings)
    return node.but(value=taken)


def _in_their_case(
    value: Mapping[str, Node], known: Mapping[str, Any], place: str, warnings: list[Problem]
) -> Iterator[tuple[str, Node]]:
    """The entries, those keys in their right case that are known in another. What stands there twice stays unknown."""
    for key, each in value.items():
        meant = _among(key, known)
        if meant and meant != key and [_among(other, known) for other in value].count(meant) == 1:
            warnings.append((each.line, f"{place}{key} is taken as {place}{meant}; write it so"))
            yield meant, each
        else:
            yield key, each


def _among(key: str, known: Mapping[str, Any]) -> str:
    """The known key that it is in any case, or ""."""
    return next((each for each in known if each.lower() == key.lower()), "")


@cache
def _sections(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Key → the section that it holds, or None."""
    fields = msgspec.structs.fields(kind)
    return {each.encode_name: next((arm for arm in get_args(each.type) if arm in ANY_CASE), None) for each in fields}
