"""Misspelt keys that NVIDIA's plugin accepts or ignores: so do we, each with a warning.

NVIDIA's plugin reads its file with sigs.k8s.io/yaml into Go structs (k8s-device-plugin 0.20, api/config/v1). Therefore:

- It matches keys in any case: `migstrategy` is migStrategy. So do we. It parses sharing.timeSlicing and sharing.mps by
  hand: there a key in another case is another key, which it ignores or refuses. We refuse it.
- It ignores a key without a field. Many copied files have keys of flags.plugin directly under flags: we ignore them
  too. Any other unknown key is an error here.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

import msgspec

from gpuplane.base.document import DocumentNode, LineProblem
from gpuplane.base.strict import without_extension_keys
from gpuplane.node.core.config.schema import (
    ConfigFile,
    FeatureDiscoverySection,
    FlagsSection,
    ImexSection,
    PluginSection,
    ResourcesSection,
    SharingSection,
)

CASE_INSENSITIVE_SECTIONS = (
    ConfigFile,
    FlagsSection,
    PluginSection,
    FeatureDiscoverySection,
    ResourcesSection,
    SharingSection,
    ImexSection,
)
"""The sections whose keys are matched in upper and lower case."""


def correct_config_keys(root: DocumentNode, warnings: list[LineProblem]) -> DocumentNode:
    """The document with its keys as the schema spells them, without "x-" keys. Adds a warning for each change."""
    return _correct_section_keys(without_extension_keys(root), ConfigFile, "", warnings)


def _correct_section_keys(
    node: DocumentNode, section_type: Any, prefix: str, warnings: list[LineProblem]
) -> DocumentNode:
    if section_type not in CASE_INSENSITIVE_SECTIONS or not isinstance(node.value, dict):
        return node
    sections, normalized = _nested_sections(section_type), {}
    for key, each in _correct_key_case(node.value, sections, prefix, warnings):
        if (
            section_type is FlagsSection
            and key not in sections
            and (meant := _known_spelling(key, _nested_sections(PluginSection)))
        ):
            remedy = f"write it as flags.plugin.{meant}"
            warnings.append((each.line, f"the agent ignores {prefix}{key} (NVIDIA's plugin ignores it too); {remedy}"))
        else:
            normalized[key] = _correct_section_keys(each, sections.get(key), f"{prefix}{key}.", warnings)
    return node.but(value=normalized)


def _correct_key_case(
    value: Mapping[str, DocumentNode], known: Mapping[str, Any], prefix: str, warnings: list[LineProblem]
) -> Iterator[tuple[str, DocumentNode]]:
    """The entries, with each key in the case of the known key. A key that is there in two cases stays as it is."""
    for key, each in value.items():
        meant = _known_spelling(key, known)
        if meant and meant != key and [_known_spelling(other, known) for other in value].count(meant) == 1:
            warnings.append((each.line, f"{prefix}{key} is read as {prefix}{meant}; write {meant}"))
            yield meant, each
        else:
            yield key, each


def _known_spelling(key: str, known: Mapping[str, Any]) -> str:
    """The known key that is equal in lower case, or ""."""
    return next((each for each in known if each.lower() == key.lower()), "")


@cache
def _nested_sections(section_type: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Key → the type of its section; None where its value is no section."""
    fields = msgspec.structs.fields(section_type)
    return {
        each.encode_name: next((arm for arm in get_args(each.type) if arm in CASE_INSENSITIVE_SECTIONS), None)
        for each in fields
    }
