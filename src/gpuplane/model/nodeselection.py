"""Which nodes a pod, a claim or a slice is for: selectors, taints and tolerations, as the API has them.

Source: k8s.io/api/core/v1/types.go. Fields that are not here are not looked at.
"""

import msgspec


class _ApiObject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of the API's objects."""


class Requirement(_ApiObject, frozen=True):
    """`operator`: In, NotIn, Exists, DoesNotExist, Gt or Lt; another one is never met."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_ApiObject, frozen=True):
    """All of these have to be met: by labels, and by fields, of which there is `metadata.name`."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(_ApiObject, frozen=True):
    """One of these has to match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Taint(_ApiObject, frozen=True):
    """What keeps pods from a node, or claims from a device."""

    key: str
    effect: str
    value: str = ""


class Toleration(_ApiObject, frozen=True):
    """Of a taint; the operator is Equal where none is given. The seconds are of those that evict."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None
