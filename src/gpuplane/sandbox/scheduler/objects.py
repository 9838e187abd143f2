"""What the scheduler reads of the API's objects, as frozen values; what it copies comes out as it went in.

Sources: k8s.io/api/resource/v1/types.go, k8s.io/api/core/v1/types.go. Other fields are not looked at.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gpuplane.kubernetes.selectors import NodeSelector

Json = Mapping[str, Any]


class Object(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of the API's objects."""


class Metadata(Object, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    labels: Mapping[str, str] = {}
    finalizers: tuple[str, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    resource_version: str = ""
    owner_references: tuple[Json, ...] = ()


class Node(Object, frozen=True):
    metadata: Metadata


class PodClaim(Object, frozen=True):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class NodeAffinity(Object, frozen=True):
    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Object, frozen=True):
    node_affinity: NodeAffinity = NodeAffinity()


class PodSpec(Object, frozen=True):
    resource_claims: tuple[PodClaim, ...] = ()
    node_name: str = ""
    node_selector: Mapping[str, str] = {}
    affinity: Affinity = Affinity()
    scheduler_name: str = "default-scheduler"


class PodStatus(Object, frozen=True):
    resource_claim_statuses: tuple[PodClaim, ...] = ()
    phase: str = ""


class Pod(Object, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


Kind = TypeVar("Kind", bound=Object)


def read(found: Json, kind: type[Kind]) -> Kind:
    """An object of the API as a value. Raises ValueError where a field has another type than the API's."""
    return msgspec.convert(_without_nulls(found), kind)


def write(value: Object) -> dict[str, Any]:
    """A value as the API has it."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return found


def _without_nulls(found: Any) -> Any:
    """The API has null for what is not there, as kubectl's users do."""
    if isinstance(found, Mapping):
        return {key: _without_nulls(each) for key, each in found.items() if each is not None}
    return [_without_nulls(each) for each in found] if isinstance(found, list | tuple) else found
