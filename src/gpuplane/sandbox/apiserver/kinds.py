"""What the API server knows of one kind: where it is served, its shape, and the rules for its writes.

A kind without a shape is kept as it is sent: of nodes, pods and custom resources no more is known than fields' names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuplane.sandbox.apiserver.fielderrors import Errors, check_label_key, check_label_value, check_subdomain, invalid
from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.shapes import Shapes


class Write(NamedTuple):
    """One write of an object. `old`: None for a new one. `namespace`: the labels of its namespace."""

    new: Json
    old: Json | None
    subresource: str
    namespace: Mapping[str, str]


class Kind(NamedTuple):
    """One kind. `version`: its apiVersion. `prepare` may change `new` in place; `validate` says what is wrong.

    `status_apart`: only `…/status` writes its status. `counts_generation`: a new spec is a new generation.
    `selectable`: the fields that a field selector may name, besides those of `metadata`.
    """

    name: str
    plural: str
    version: str
    namespaced: bool
    shapes: Shapes
    prepare: Callable[[Write], None]
    validate: Callable[[Write], Errors]
    status_apart: bool = False
    counts_generation: bool = False
    selectable: tuple[str, ...] = ()
    warn: Callable[[Json], Sequence[str]] = lambda _: ()

    @property
    def selectors(self) -> tuple[str, ...]:
        """All fields that a field selector may name."""
        return ("metadata.name", *(("metadata.namespace",) if self.namespaced else ()), *self.selectable)


def check_metadata(metadata: Mapping[str, Any], field: str = "metadata", *, named: bool = True) -> Errors:
    """The name, the labels, the annotations and the owners of an object (`named` is False in a template)."""
    if named:
        yield from check_subdomain(metadata.get("name", ""), f"{field}.name")
    for key, value in (metadata.get("labels") or {}).items():
        yield from check_label_key(key, f"{field}.labels")
        yield from check_label_value(value, f"{field}.labels")
    for key in metadata.get("annotations") or {}:
        yield from check_label_key(key.lower(), f"{field}.annotations")
    for owner in metadata.get("ownerReferences") or ():
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                yield invalid(f"{field}.ownerReferences.{key}", owner.get(key, ""), "must not be empty")
