"""What requests make of objects: what a client sends is changed as the request says, and is kept.

The order is the real server's (apiserver/pkg/registry/generic/registry/store.go): decode, preconditions, admit, keep.
What changes nothing makes no version. What is sent is kept as it is sent: `admit` alone refuses or changes it.
"""

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from gpuplane.kubernetes.times import format_time
from gpuplane.sandbox.apiserver.fieldmanagers import Manager, apply_with_manager, record_update
from gpuplane.sandbox.apiserver.objects import (
    Json,
    Objects,
    ResourcePath,
    StatusError,
    parse_path,
    status_details_of,
)
from gpuplane.sandbox.apiserver.paging import select_page
from gpuplane.sandbox.apiserver.patches import MERGE_KEYS, json_patch, merge_patch
from gpuplane.sandbox.apiserver.queries import content_type, parse_boolean_option
from gpuplane.sandbox.apiserver.selectors import matches, parse_selector
from gpuplane.sandbox.apiserver.watch import requested_form
from gpuplane.sandbox.http import Request

APPLY_PATCH, JSON_PATCH = "application/apply-patch+yaml", "application/json-patch+json"
MERGE_PATCH, STRATEGIC_MERGE_PATCH = "application/merge-patch+json", "application/strategic-merge-patch+json"
PATCH_MERGE_KEYS: dict[str, Mapping[str, str]] = {MERGE_PATCH: {}, STRATEGIC_MERGE_PATCH: MERGE_KEYS}
"""Content type → by which fields lists are merged."""
CREATED_ANSWER = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
PLURALS_WITH_STATUS_SUBRESOURCE = ("nodes", "pods", "resourceclaims")
"""Whose status a write of the object does not change."""
GENERATED_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of what the server appends to a generateName (apimachinery/pkg/util/rand)."""

Admit = Callable[[ResourcePath, Json], Json]
"""What a server makes of an object that it is about to keep, at this path. It may raise StatusError."""


class Answer(NamedTuple):
    """What a client is told."""

    code: int
    body: Any


class Registry:
    """The objects of a server and their writes. `publish` keeps an object (None: deletes it) and tells the watchers."""

    def __init__(
        self, objects: Objects, publish: Callable[[ResourcePath, Json | None], Json | None], admit: Admit | None = None
    ) -> None:
        self.objects, self._publish, self._admit = objects, publish, admit

    def respond(self, request: Request) -> Answer:
        """The answer to a request that is no watch. Raises StatusError."""
        where = parse_path(request.path)
        match request.method:
            case "GET" if not where.name:
                return self._list(request, where)
            case "GET":
                return Answer(200, requested_form(request, self.objects.get(where)))
            case "POST" if where.subresource == "eviction":
                return self._evict(where)
            case "POST" if (where.plural, where.subresource) == ("pods", "binding"):
                return self._bind(where, _parse_body(request))
            case "POST":
                return self._create(where, request)
            case "PATCH" if content_type(request) == APPLY_PATCH:
                return self._apply(where, request)
            case "PATCH":
                return self._change(where, request)
            case "DELETE" if not where.name:
                return self._delete_collection(where, request)
            case "DELETE":
                return Answer(200, self._delete(where, request))
        raise StatusError(405, "MethodNotAllowed", f"{request.method} is not supported")

    def _list(self, request: Request, path: ResourcePath) -> Answer:
        items, metadata = self._select_objects(path, request.query)
        partial = "as=PartialObjectMetadataList" in request.headers.get("accept", "")
        head = {"kind": f"{path.kind}List", "apiVersion": path.version}
        shown = [requested_form(request, each) for each in items]
        if partial:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return Answer(200, {**head, "metadata": metadata, "items": None if partial and not shown else shown})

    def _select_objects(self, path: ResourcePath, query: Mapping[str, str]) -> tuple[list[Json], Json]:
        """The objects that a request asks for, and the metadata of their list."""
        selector = query.get("fieldSelector", "")
        parse_selector(selector)  # also where there is nothing to choose from
        found = select_page(self.objects, path, query, lambda each: matches(each, selector))
        return list(found.items), found.metadata

    def _create(self, path: ResourcePath, request: Request) -> Answer:
        body = _parse_body(request)
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            random = "".join(secrets.choice(GENERATED_NAME_LETTERS) for _ in range(5))
            metadata["name"] = metadata["generateName"] + random
        path = msgspec.structs.replace(path, name=metadata.get("name", ""))
        if self.objects.has(path):
            text = f'{path.resource} "{path.name}" already exists'
            raise StatusError(409, "AlreadyExists", text, details=status_details_of(path))
        return Answer(201, self._store(path, None, record_update(None, body, _manager_of(path, request)), request))

    def _evict(self, path: ResourcePath) -> Answer:
        """The Eviction API without disruption budgets: the pod is deleted. Raises StatusError."""
        pod = msgspec.structs.replace(path, subresource="")
        self.objects.get(pod)
        self._publish(pod, None)
        return Answer(201, CREATED_ANSWER)

    def _bind(self, path: ResourcePath, body: Json) -> Answer:
        """Give a pod its node, once, as a scheduler asks for it (pkg/registry/core/pod/storage/storage.go)."""
        where = msgspec.structs.replace(path, subresource="")
        pod, target = self.objects.get(where), (body.get("target") or {}).get("name")
        if not target:
            raise StatusError(400, "BadRequest", "target.name: Required value")
        if assigned := pod["spec"].get("nodeName"):
            text = (
                f'Operation cannot be fulfilled on pods/binding "{path.name}": pod {path.name} is already assigned to'
            )
            raise StatusError(409, "Conflict", f'{text} node "{assigned}"')
        status = pod.get("status") or {}
        others = [each for each in status.get("conditions") or () if each["type"] != "PodScheduled"]
        since = format_time(datetime.now(UTC))
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": since}
        status = {**status, "conditions": [*others, scheduled]}
        self._publish(where, {**pod, "spec": {**pod["spec"], "nodeName": target}, "status": status})
        return Answer(201, CREATED_ANSWER)

    def _change(self, path: ResourcePath, request: Request) -> Answer:
        old = self.objects.get(path)
        body = _patch(old, _parse_body(request), content_type(request))
        _check_uid_and_version(path, body.get("metadata") or {}, old["metadata"])
        new = record_update(old, _change_by_subresource(path, old, body), _manager_of(path, request))
        return Answer(200, self._store(path, old, new, request))

    def _apply(self, path: ResourcePath, request: Request) -> Answer:
        """Server-side apply: it makes what is not there."""
        live, body = self.objects.get(path) if self.objects.has(path) else None, _parse_body(request)
        if live is None and path.subresource:
            self.objects.get(path)
        _check_apply(path, body, live)
        if path.plural in PLURALS_WITH_STATUS_SUBRESOURCE:
            body = {key: value for key, value in body.items() if (key == "status") <= (path.subresource == "status")}
        force = parse_boolean_option(request.query, "force")
        new = apply_with_manager(live, body, _manager_of(path, request, "Apply"), force=force)
        return Answer(201 if live is None else 200, self._store(path, live, new, request))

    def _delete(self, path: ResourcePath, request: Request) -> Json:
        """Delete an object, or mark it where finalizers hold it. The object as it was last."""
        old = self.objects.get(path)
        wanted = _parse_body(request).get("preconditions") or {} if request.body else {}
        _check_uid_and_version(path, wanted, old["metadata"])
        if request.query.get("dryRun"):
            return old
        if old["metadata"].get("finalizers"):
            marked = {"deletionTimestamp": format_time(datetime.now(UTC)), "deletionGracePeriodSeconds": 0}
            return self._publish(path, {**old, "metadata": marked | old["metadata"]}) or {}
        self._publish(path, None)
        return self.objects.history[-1].old or {}

    def _delete_collection(self, path: ResourcePath, request: Request) -> Answer:
        items, metadata = self._select_objects(path, request.query)
        for each in items:
            place = {"namespace": each["metadata"].get("namespace", ""), "name": each["metadata"]["name"]}
            self._delete(msgspec.structs.replace(path, **place), request)
        head = {"kind": f"{path.kind}List", "apiVersion": path.version, "metadata": metadata}
        return Answer(200, {**head, "items": items})

    def _store(self, path: ResourcePath, old: Json | None, new: Json, request: Request) -> Json:
        """Keep what a request makes of an object. What changes nothing makes no version."""
        new = self._admit(path, new) if self._admit else new
        if old is not None and new == old:
            return old
        if request.query.get("dryRun"):
            return {**new, "kind": path.kind, "apiVersion": path.version}
        if old is not None and old["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._publish(path, None)
            return new
        return self._publish(path, new) or {}


def _parse_body(request: Request) -> Any:
    """What a client sent, decoded: an object, or the list of a JSON patch. Raises StatusError."""
    try:
        found = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StatusError(400, "BadRequest", f"the object provided is unrecognized: {error}") from None
    wanted = list if content_type(request) == JSON_PATCH else dict
    if not isinstance(found, wanted):
        raise StatusError(400, "BadRequest", f"the object provided is unrecognized: it is no {wanted.__name__}")
    return found


def _patch(old: Json, body: Any, kind: str) -> Json:
    """What a patch of this content type makes of an object. Raises StatusError."""
    if kind == JSON_PATCH:
        patched: Json = json_patch(old, body)
    elif kind in PATCH_MERGE_KEYS:
        patched = merge_patch(old, body, PATCH_MERGE_KEYS[kind])
    else:
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type")
    return patched


def _check_uid_and_version(path: ResourcePath, sent: Json, found: Json) -> None:
    """Whether a client means the object that is there. Raises StatusError."""
    for key in ("uid", "resourceVersion"):
        if sent.get(key) not in (None, found[key]):
            text = f"{key} is {found[key]}, not {sent[key]}: the object has been modified; please apply your changes to"
            text = f'Operation cannot be fulfilled on {path.resource} "{path.name}": {text} the latest version'
            raise StatusError(409, "Conflict", f"{text} and try again", details=status_details_of(path))


def _check_apply(path: ResourcePath, body: Json, live: Json | None) -> None:
    """Whether an apply is one. Raises StatusError."""
    metadata = body.get("metadata") or {}
    if "managedFields" in metadata:
        raise StatusError(400, "BadRequest", "metadata.managedFields must be nil")
    if (body.get("apiVersion"), body.get("kind"), metadata.get("name")) != (path.version, path.kind, path.name):
        raise StatusError(400, "BadRequest", "apiVersion, kind and name of the object are not those of the URL")
    _check_uid_and_version(path, metadata, (live or {"metadata": {"uid": "", "resourceVersion": ""}})["metadata"])


def _change_by_subresource(path: ResourcePath, old: Json, new: Json) -> Json:
    """What a write makes of an object: `…/status` changes its status alone, and every other write all but it."""
    if path.subresource == "status":
        return {**old, "status": new.get("status")}
    apart = path.plural in PLURALS_WITH_STATUS_SUBRESOURCE and "status" in old
    return {**new, "status": old.get("status")} if apart else new


def _manager_of(path: ResourcePath, request: Request, operation: str = "Update") -> Manager:
    """Who writes: whom the request names, else the program of its User-Agent (managedfields/fieldmanager.go)."""
    name = request.query.get("fieldManager") or request.headers.get("user-agent", "").partition("/")[0]
    return Manager(name or "unknown", operation, path.version, path.subresource)
