"""Objects as an API server keeps them: plain JSON under a path, one version counter, a history to watch from.

Nothing here knows a kind. A path is a collection ("/api/v1/nodes", "/api/v1/namespaces/a/pods"), an object in it, or a
part of that object ("…/status"); the collection of all namespaces ("/api/v1/pods") holds what its namespaces hold.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]
OBJECT_PATH = re.compile(
    r"(?P<prefix>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)
KIND_BY_PLURAL = {"nodefeatures": "NodeFeature", "deviceclasses": "DeviceClass", "resourceclaims": "ResourceClaim"}
KIND_BY_PLURAL |= {"resourceclaimtemplates": "ResourceClaimTemplate", "resourceslices": "ResourceSlice"}
"""Plural → kind, where the kind is not simply the singular."""


class StatusError(Exception):
    """A Status that is no success."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Json | None = None, metadata: Json | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.details, self.metadata = code, reason, details, metadata

    def status(self) -> Json:
        """The Status object that says so."""
        head = {"kind": "Status", "apiVersion": "v1", "metadata": self.metadata or {}, "status": "Failure"}
        details = {"details": self.details} if self.details else {}
        return {**head, "message": str(self), "reason": self.reason, **details, "code": self.code}


class ResourcePath(msgspec.Struct, frozen=True):
    """A path, taken apart; empty where a piece is absent."""

    prefix: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def kind(self) -> str:
        """The kind of what is here."""
        return KIND_BY_PLURAL.get(self.plural, self.plural.removesuffix("s").capitalize())

    @property
    def version(self) -> str:
        """apiVersion."""
        return self.prefix.removeprefix("/apis/").removeprefix("/api/")

    @property
    def group(self) -> str:
        """The API group; "" for the core group."""
        return self.version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        """How messages name the collection: resourceslices.resource.k8s.io."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def contains(self, other: "ResourcePath") -> bool:
        """Whether an object's place is in this collection."""
        return (self.prefix, self.plural) == (other.prefix, other.plural) and self.namespace in ("", other.namespace)


class Change(msgspec.Struct, frozen=True):
    """One step of the history. `old` is None for what was added, `new` for what was deleted."""

    version: int
    path: ResourcePath
    old: Json | None
    new: Json | None


def status_details_of(path: ResourcePath) -> Json:
    """The details of a Status about an object."""
    return {"name": path.name} | ({"group": path.group} if path.group else {}) | {"kind": path.plural}


def parse_path(path: str) -> ResourcePath:
    """Where a path points. Raises StatusError."""
    found = OBJECT_PATH.fullmatch(path)
    if found is None:
        raise StatusError(404, "NotFound", "the server could not find the requested resource")
    return ResourcePath(**{key: value or "" for key, value in found.groupdict().items()})


class Objects:
    """All objects and what became of them."""

    def __init__(self) -> None:
        self.version = 0
        self.history: list[Change] = []
        self._compacted_version = 0
        self._objects: dict[ResourcePath, Json] = {}

    def has(self, path: ResourcePath) -> bool:
        """Whether an object is there."""
        return msgspec.structs.replace(path, subresource="") in self._objects

    def get(self, path: ResourcePath) -> Json:
        """One object. Raises StatusError."""
        found = self._objects.get(msgspec.structs.replace(path, subresource=""))
        if found is None:
            raise StatusError(
                404, "NotFound", f'{path.resource} "{path.name}" not found', details=status_details_of(path)
            )
        return found

    def list(self, path: ResourcePath) -> Iterator[Json]:
        """The objects of a collection, by name."""
        return iter(self.list_at(path, self.version))

    def list_at(self, path: ResourcePath, version: int) -> Sequence[Json]:
        """The objects that a collection had at a version, by name. Raises StatusError 410 where that is forgotten."""
        if version < self._compacted_version:
            raise StatusError(410, "Expired", f"too old resource version: {version} ({self._compacted_version})")
        found = {each: held for each, held in self._objects.items() if path.contains(each)}
        for change in reversed(self.history):
            if change.version <= version:
                break
            if not path.contains(change.path):
                continue
            if change.old is None:
                found.pop(change.path, None)
            else:
                found[change.path] = change.old
        return tuple(held for _, held in sorted(found.items(), key=lambda pair: (pair[0].namespace, pair[0].name)))

    def put(self, path: ResourcePath, new: Json | None) -> Json | None:
        """Make, change or (None) delete an object; the object as it is kept."""
        path = msgspec.structs.replace(path, subresource="")
        old = self._objects.get(path)
        self.version += 1
        if new is not None:
            new = copy.deepcopy(new)
            new.update(kind=path.kind, apiVersion=path.version)
            metadata = new.setdefault("metadata", {})
            uid = old["metadata"]["uid"] if old is not None else f"uid-{self.version}-of-{path.name}"
            metadata.update(name=path.name, resourceVersion=str(self.version), uid=uid)
            if path.namespace:
                metadata["namespace"] = path.namespace
            self._objects[path] = new
        elif old is not None:
            del self._objects[path]
            old = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self.version)}}
        self.history.append(Change(version=self.version, path=path, old=old, new=new))
        return new

    def compact(self) -> None:
        """Forget the history: whoever wants to watch from before now is told 410."""
        self._compacted_version = self.version
        self.history.clear()

    def changes_since(self, path: ResourcePath, version: int) -> Iterator[Change]:
        """What became of a collection after a version. Raises StatusError, as the watch cache says it."""
        if version < self._compacted_version:
            raise StatusError(410, "Expired", f"too old resource version: {version} ({self._compacted_version})")
        return (each for each in self.history if each.version > version and path.contains(each.path))
