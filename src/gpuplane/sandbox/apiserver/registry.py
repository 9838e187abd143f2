"""What requests make of objects: what a client sends becomes an object of its kind, is checked, and is kept.

The order is the real server's (apiserver/pkg/registry/generic/registry/store.go): decode, set defaults, compare names,
preconditions, drop the fields of gates that are off, check, keep. What changes nothing makes no version. Of a kind that
is in no table, what is sent is kept, and metadata alone is checked.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import yaml

from gpuplane.sandbox.apiserver.fieldmanagers import Manager, apply_with_manager, record_update
from gpuplane.sandbox.apiserver.http import Request
from gpuplane.sandbox.apiserver.kinds import Kind, Write
from gpuplane.sandbox.apiserver.objects import Json, Objects, ResourcePath, StatusError, parse_path, status_details_of
from gpuplane.sandbox.apiserver.paging import check_version_reached, select_page
from gpuplane.sandbox.apiserver.patches import MERGE_KEYS, json_patch, merge_patch
from gpuplane.sandbox.apiserver.queries import (
    APPLY_PATCH,
    MAX_FIELD_MANAGER_LENGTH,
    check_query,
    content_type,
    parse_boolean_option,
    parse_version,
)
from gpuplane.sandbox.apiserver.resourceapi import RESOURCE_KINDS
from gpuplane.sandbox.apiserver.schema import invalid_metadata, undeclared_field
from gpuplane.sandbox.apiserver.selectors import matches, parse_fields, parse_labels
from gpuplane.sandbox.apiserver.shapes import DecodeError, format_time
from gpuplane.sandbox.apiserver.watch import requested_form

MERGE_PATCH, STRATEGIC_MERGE_PATCH = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
PATCH_MERGE_KEYS: dict[str, Mapping[str, str]] = {MERGE_PATCH: {}, STRATEGIC_MERGE_PATCH: MERGE_KEYS}
"""Content type → by which fields lists are merged."""
BODY_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
CREATED_ANSWER = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
PLURALS_WITH_STATUS_SUBRESOURCE = ("nodes", "pods")
"""Whose status a write of the object does not change, of the kinds in no table."""
SERVER_METADATA_FIELDS = (
    "uid", "resourceVersion", "creationTimestamp", "generation", "deletionTimestamp", "deletionGracePeriodSeconds",
    "namespace",
)  # fmt: skip
"""What the server alone says in the metadata of an object."""
MAX_GENERATED_NAME_LENGTH = 63
"""Letters of a generated name."""
GENERATED_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of what the server appends to a generateName (apimachinery/pkg/util/rand)."""


class Answer(NamedTuple):
    """What a client is told. `warnings`: for people, in headers."""

    code: int
    body: Any
    warnings: tuple[str, ...] = ()


class Registry:
    """The objects of a server and the rules for their writes. `publish` keeps an object (None: deletes it) and tells
    the watchers; `now` is the time."""

    def __init__(
        self,
        objects: Objects,
        publish: Callable[[ResourcePath, Json | None], Json | None],
        gates_off: frozenset[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.objects, self._publish, self._gates_off, self.now = objects, publish, gates_off, now

    def respond(self, request: Request) -> Answer:
        """The answer to a request that is no watch. Raises StatusError."""
        _check_accept_header(request)
        where = parse_path(request.path)
        check_query(request, where)
        kind = kind_at(where)
        match request.method:
            case "GET" if not where.name:
                return self._list(request, where)
            case "GET":
                check_version_reached(self.objects, parse_version(request.query.get("resourceVersion", "")))
                return Answer(200, requested_form(request, self.objects.get(where)))
            case "POST" if where.subresource == "eviction":
                return self._evict(where)
            case "POST" if (where.plural, where.subresource) == ("pods", "binding"):
                return self._bind(where, _parse_body(where, request))
            case "POST":
                return self._create(where, kind, request)
            case "PATCH" if content_type(request) == APPLY_PATCH:
                return self._apply(where, kind, request)
            case "PUT" | "PATCH":
                return self._update_or_patch(where, kind, request)
            case "DELETE" if not where.name:
                return self._delete_collection(where, kind, request)
            case "DELETE":
                return Answer(200, self._delete(where, kind, request))
        raise StatusError(405, "MethodNotAllowed", f"{request.method} is not supported")

    def normalize(self, path: ResourcePath, found: Json) -> Json:
        """An object as it would be kept if somebody wrote it, without a check. Raises StatusError."""
        kind = kind_at(path)
        return found if kind is None else self._decode_object(kind, found, "Ignore").object

    def _list(self, request: Request, path: ResourcePath) -> Answer:
        items, metadata = self._select_objects(path, request.query)
        partial = "as=PartialObjectMetadataList" in request.headers.get("accept", "")
        head = {"kind": f"{path.kind}List", "apiVersion": path.version}
        shown = [requested_form(request, each) for each in items]
        if partial:
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
        return Answer(200, {**head, "metadata": metadata, "items": None if partial and not shown else shown})

    def _select_objects(self, path: ResourcePath, query: Mapping[str, str]) -> tuple[list[Json], Json]:
        """The objects that a request chooses, and the metadata of their list."""
        fields, labels = query.get("fieldSelector", ""), query.get("labelSelector", "")
        check_selectors(path, query)
        found = select_page(self.objects, path, query, lambda each: matches(each, fields, labels))
        return list(found.items), found.metadata

    def _create(self, path: ResourcePath, kind: Kind | None, request: Request) -> Answer:
        body = _parse_body(path, request)
        decoded = self._decode_body(path, kind, body, request)
        metadata = decoded.object.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            random = "".join(secrets.choice(GENERATED_NAME_LETTERS) for _ in range(5))
            metadata["name"] = metadata["generateName"][: MAX_GENERATED_NAME_LENGTH - 5] + random
        path = msgspec.structs.replace(path, name=metadata.get("name", ""))
        with decoded.add_warnings_to_errors():
            new = self._prepare_and_validate(path, kind, None, decoded.object)
            if self.objects.has(path):
                raise _object_error(409, "AlreadyExists", path, "already exists")
        new = _record_update_of_kind(kind, None, new, _field_manager_of(path, request, "Update"))
        return Answer(201, self._store(path, None, new, request.query), decoded.warnings)

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
        since = format_time(self.now())
        scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": since}
        status = {**status, "conditions": [*others, scheduled]}
        self._publish(where, {**pod, "spec": {**pod["spec"], "nodeName": target}, "status": status})
        return Answer(201, CREATED_ANSWER)

    def _update_or_patch(self, path: ResourcePath, kind: Kind | None, request: Request) -> Answer:
        old, body = (
            self._patch_object(path, request) if request.method == "PATCH" else (None, _parse_body(path, request))
        )
        decoded = self._decode_body(path, kind, body, request)
        metadata = decoded.object.get("metadata") or {}
        if metadata.get("name", path.name) != path.name:
            text = f"the name of the object ({metadata['name']}) does not match the name on the URL ({path.name})"
            raise StatusError(400, "BadRequest", text)
        with decoded.add_warnings_to_errors():
            old = old or self.objects.get(path)
            _check_uid_and_version(path, metadata, old["metadata"])
            new = self._prepare_and_validate(path, kind, old, _change_by_subresource(path, kind, old, decoded.object))
        new = _record_update_of_kind(kind, old, new, _field_manager_of(path, request, "Update"))
        return Answer(200, self._store(path, old, new, request.query), decoded.warnings)

    def _patch_object(self, path: ResourcePath, request: Request) -> tuple[Json, Json]:
        """An object, and what a patch makes of it."""
        patch = content_type(request)
        if patch != JSON_PATCH and patch not in PATCH_MERGE_KEYS:
            raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type")
        old, body = self.objects.get(path), _parse_body(path, request)
        if patch == JSON_PATCH:
            if not isinstance(body, list) or not all(isinstance(each, dict) for each in body):
                raise StatusError(400, "BadRequest", "error decoding patch: a JSON patch is a list of operations")
            return old, json_patch(old, body)
        return old, merge_patch(old, body, {} if kind_at(path) else PATCH_MERGE_KEYS[patch])

    def _apply(self, path: ResourcePath, kind: Kind | None, request: Request) -> Answer:
        """Server-side apply: it makes what is not there."""
        live = self.objects.get(path) if self.objects.has(path) else None
        if live is None and path.subresource:
            raise _object_error(404, "NotFound", path, "not found")
        body = _parse_yaml(path, request)
        if not isinstance(body, dict) or not isinstance(body.get("metadata") or {}, dict):
            raise StatusError(400, "BadRequest", "error decoding YAML: no object")
        _check_apply(path, kind, request, body, live)
        if _is_status_apart(path, kind):
            body = {key: value for key, value in body.items() if (key == "status") <= (path.subresource == "status")}
        force = parse_boolean_option(request.query, "force")
        manager = _field_manager_of(path, request, "Apply")
        if kind is None:
            new = apply_with_manager(live, body, manager, force=force)
            return Answer(
                201 if live is None else 200,
                self._store(path, live, self._prepare_and_validate(path, None, live, new), {}),
            )
        keyed = [kind.shapes.lists_to_maps(kind.name, each) for each in (live, body)]
        new = kind.shapes.maps_to_lists(kind.name, apply_with_manager(keyed[0], keyed[1], manager, force=force))
        decoded = self._decode_object(kind, new, "Ignore").object
        new = self._prepare_and_validate(
            path, kind, live, decoded if live is None else _change_by_subresource(path, kind, live, decoded)
        )
        new["metadata"]["managedFields"] = decoded["metadata"].get("managedFields", [])
        return Answer(201 if live is None else 200, self._store(path, live, new, request.query))

    def _delete(self, path: ResourcePath, kind: Kind | None, request: Request) -> Json:
        """Delete an object, or mark it where finalizers hold it. The object as it was last."""
        old, options = self.objects.get(path), _parse_delete_options(request)
        shown = f"{path.kind}{'.' if path.group else ''}{path.group}"
        for name, key in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
            wanted, found = (options.get("preconditions") or {}).get(key), old["metadata"][key]
            if wanted not in (None, found):
                became = "deleted and then recreated" if key == "uid" else "modified"
                text = f"the {name} in the precondition ({wanted}) does not match the {name} in record ({found})"
                text = f"{text}. The object might have been {became}"
                text = f'Operation cannot be fulfilled on {shown} "{path.name}": {text}'
                details = {**status_details_of(path), "kind": path.kind}
                raise StatusError(409, "Conflict", text, details=details)
        if request.query.get("dryRun"):
            return old
        if kind is not None and old["metadata"].get("finalizers"):
            if old["metadata"].get("deletionTimestamp"):
                return old
            marked = {"deletionTimestamp": format_time(self.now()), "deletionGracePeriodSeconds": 0}
            return self._publish(path, {**old, "metadata": {**old["metadata"], **marked}}) or {}
        self._publish(path, None)
        return self.objects.history[-1].old or {}

    def _delete_collection(self, path: ResourcePath, kind: Kind | None, request: Request) -> Answer:
        items, metadata = self._select_objects(path, request.query)
        for each in items:
            place = {"namespace": each["metadata"].get("namespace", ""), "name": each["metadata"]["name"]}
            self._delete(msgspec.structs.replace(path, **place), kind, request)
        head = {"kind": f"{path.kind}List", "apiVersion": path.version, "metadata": metadata}
        return Answer(200, {**head, "items": items})

    def _decode_body(self, path: ResourcePath, kind: Kind | None, body: Json, request: Request) -> "_Body":
        """What a client sent, as an object of its kind, with the warnings for its author. Raises StatusError."""
        if kind is None:
            return _Body(body, ())
        if not isinstance(body, dict) or (body.get("apiVersion"), body.get("kind")) != (kind.version, kind.name):
            raise StatusError(400, "BadRequest", _wrong_kind_message(kind, body))
        decoded = self._decode_object(kind, body, request.query.get("fieldValidation", "Warn"))
        sent = decoded.object["metadata"].get("namespace", "")
        if sent not in ("", path.namespace):
            text = "the namespace of the provided object does not match the namespace sent on the request"
            raise StatusError(400, "BadRequest", text)
        return decoded

    def _decode_object(self, kind: Kind, body: Json, validation: str) -> "_Body":
        prefix = f'{kind.name} in version "{kind.version.rpartition("/")[2]}" cannot be handled as a {kind.name}'
        try:
            decoded = kind.shapes.decode(kind.name, body, format_time(self.now()))
        except DecodeError as error:
            raise StatusError(400, "BadRequest", f"{prefix}: {error}") from None
        unknown = tuple(f'unknown field "{each}"' for each in decoded.unknown)
        if unknown and validation == "Strict":
            raise StatusError(400, "BadRequest", f"{prefix}: strict decoding error: {', '.join(unknown)}")
        warnings = (*(unknown if validation == "Warn" else ()), *kind.warn(decoded.object))
        return _Body(decoded.object, warnings)

    def _prepare_and_validate(self, path: ResourcePath, kind: Kind | None, old: Json | None, new: Json) -> Json:
        """An object that is about to be kept: without what is switched off, with its metadata, and legal.

        Raises StatusError."""
        if kind is None:
            if wrong := invalid_metadata(new):
                raise StatusError(422, "Invalid", f'{path.kind} "{path.name}" is invalid: {wrong}')
            return new
        off = self._gates_off - kind.shapes.gates_of(kind.name, old)  # what an object has, it keeps
        new = kind.shapes.without_gated_fields(kind.name, new, off)
        new["metadata"] = self._complete_metadata(path, kind, old, new)
        spaces = parse_path(f"/api/v1/namespaces/{path.namespace or 'default'}")
        labels = self.objects.get(spaces)["metadata"].get("labels") if self.objects.has(spaces) else None
        write = Write(new, old, path.subresource, labels or {})
        kind.prepare(write)
        if old is not None and kind.counts_generation and new["spec"] != old["spec"]:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        causes = [each._asdict() for each in kind.validate(write)]
        if causes:
            group = kind.version.partition("/")[0]
            texts = [f"{each['field']}: {each['message']}" for each in causes]
            text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
            details = {"name": path.name, "group": group, "kind": kind.name, "causes": causes}
            text = f'{kind.name}.{group} "{path.name}" is invalid: {text}'
            raise StatusError(422, "Invalid", text, details=details)
        return new

    def _complete_metadata(self, path: ResourcePath, kind: Kind, old: Json | None, new: Json) -> Json:
        """The metadata of an object, with what the server alone says."""
        metadata = {key: value for key, value in new["metadata"].items() if key not in SERVER_METADATA_FIELDS}
        if old is not None:
            return metadata | {key: old["metadata"][key] for key in SERVER_METADATA_FIELDS if key in old["metadata"]}
        generation = {"generation": 1} if kind.counts_generation else {}
        namespace = {"namespace": path.namespace} if path.namespace else {}
        return metadata | {"creationTimestamp": format_time(self.now())} | generation | namespace

    def _store(self, path: ResourcePath, old: Json | None, new: Json, query: Mapping[str, str]) -> Json:
        """Keep what a request makes of an object. What changes nothing makes no version."""
        if old is not None and new == old:
            return old
        if query.get("dryRun"):
            return {**new, "kind": path.kind, "apiVersion": path.version}
        if old is not None and old["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._publish(path, None)
            return new
        return self._publish(path, new) or {}


class _Body(NamedTuple):
    """What a client sent, and the warnings for its author."""

    object: Json
    warnings: tuple[str, ...]

    @contextmanager
    def add_warnings_to_errors(self) -> Iterator[None]:
        """Whoever is refused is warned, too."""
        try:
            yield
        except StatusError as error:
            error.warnings = self.warnings
            raise


def kind_at(path: ResourcePath) -> Kind | None:
    """The kind of what is at a path; None where it is in no table."""
    kind = RESOURCE_KINDS.get(path.plural)
    return kind if kind is not None and kind.version == path.version else None


def check_selectors(path: ResourcePath, query: Mapping[str, str]) -> None:
    """Whether selectors are ones, and name fields that can be selected. Raises StatusError."""
    parse_labels(query.get("labelSelector", ""))
    kind = kind_at(path)
    for term in parse_fields(query.get("fieldSelector", "")):
        if kind is not None and term.key not in kind.selectors:
            group, _, version = kind.version.partition("/")
            text = f"field label not supported for {group}/{version}, Kind={kind.name}: {term.key}"
            raise StatusError(400, "BadRequest", text)


def _parse_body(path: ResourcePath, request: Request) -> Any:
    """What a client sent, decoded. Raises StatusError."""
    kind = content_type(request)
    if request.method in ("POST", "PUT") and kind not in ("", *BODY_TYPES):
        text = "the body of the request was in an unknown format - accepted media types include: "
        raise StatusError(415, "UnsupportedMediaType", text + ", ".join(BODY_TYPES))
    if kind.endswith("yaml"):
        return _parse_yaml(path, request)
    try:
        return msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unrecognized_object_error(path, error) from None


class _DeleteOptions(msgspec.Struct):
    preconditions: dict[str, str | None] | None = None


class _YamlLoader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a time is a text."""


_YamlLoader.yaml_implicit_resolvers = {
    first: [each for each in known if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _parse_yaml(path: ResourcePath, request: Request) -> Any:
    """What a client sent as YAML. JSON is YAML, and read faster. Raises StatusError."""
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(request.body)
    try:
        return yaml.load(request.body, Loader=_YamlLoader)  # noqa: S506 (a safe loader, but for times)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise _unrecognized_object_error(path, error) from None


def _unrecognized_object_error(path: ResourcePath, why: Exception) -> StatusError:
    text = f"the object provided is unrecognized (must be of type {path.kind}): couldn't get version/kind; {why}"
    return StatusError(400, "BadRequest", text)


def _check_accept_header(request: Request) -> None:
    """Whether the client takes an answer that the server can give. Raises StatusError."""
    wanted = [each.partition(";")[0].strip() for each in request.headers.get("accept", "*/*").split(",")]
    if not any(each in ("*/*", "application/*", *BODY_TYPES) for each in wanted):
        known = ", ".join((*BODY_TYPES, *(f"{each};stream=watch" for each in BODY_TYPES[::2])))
        text = f"406: Not Acceptable\n\nAvailable representations: {known}"
        raise StatusError(406, "NotAcceptable", text)


def _parse_delete_options(request: Request) -> Json:
    """The DeleteOptions of a request."""
    try:
        options: Json = msgspec.to_builtins(msgspec.json.decode(request.body or b"{}", type=_DeleteOptions))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StatusError(400, "BadRequest", f"these are no DeleteOptions: {error}") from None
    return options


def _wrong_kind_message(kind: Kind, body: Any) -> str:
    version, name = (body.get("apiVersion"), body.get("kind")) if isinstance(body, dict) else (None, None)
    if not version or not name:
        return f"the object provided is unrecognized (must be of type {kind.name}): couldn't get version/kind"
    if version != kind.version:
        return f"the API version in the data ({version}) does not match the expected API version ({kind.version})"
    group, _, short = kind.version.partition("/")
    types = f"({short}.{name}) to ({group.partition('.')[0]}.{kind.name})"
    return f'{name} in version "{short}" cannot be handled as a {kind.name}: converting {types}: unknown conversion'


def _record_update_of_kind(kind: Kind | None, old: Json | None, new: Json, manager: Manager) -> Json:
    """An object after a write that is no apply, with its managers."""
    if kind is None:
        return record_update(old, new, manager)
    keyed_old, keyed_new = (kind.shapes.lists_to_maps(kind.name, each) for each in (old, new))
    managed: Json = kind.shapes.maps_to_lists(kind.name, record_update(keyed_old, keyed_new, manager))
    return managed


def _check_uid_and_version(path: ResourcePath, sent: Json, found: Json) -> None:
    """Whether a client means the object that is there. Raises StatusError."""
    if sent.get("uid") not in (None, found["uid"]):
        place = "/".join(filter(None, (path.plural, path.namespace, path.name)))
        text = (
            f"StorageError: invalid object, Code: 4, Key: /registry/{place}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {sent['uid']}, UID in object meta: {found['uid']}"
        )
    elif sent.get("resourceVersion") not in (None, found["resourceVersion"]):
        text = "the object has been modified; please apply your changes to the latest version and try again"
    else:
        return
    raise StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {path.resource} "{path.name}": {text}',
        details=status_details_of(path),
    )


def _check_apply(path: ResourcePath, kind: Kind | None, request: Request, body: Json, live: Json | None) -> None:
    """Whether an apply is one. Raises StatusError."""
    metadata = body.get("metadata") or {}
    if "managedFields" in metadata:
        raise StatusError(400, "BadRequest", "metadata.managedFields must be nil")
    if (body.get("apiVersion"), body.get("kind")) != (path.version, path.kind):
        raise StatusError(400, "BadRequest", "the apiVersion and kind of the body are not those of the path")
    if metadata.get("name") != path.name:
        raise StatusError(400, "BadRequest", "the name of the object does not match the name on the URL")
    if wrong := _undeclared_field_problem(path, kind, body):
        where = f"({path.namespace}/{path.name}; {path.version}, Kind={path.kind})"
        raise StatusError(500, "", f"failed to create typed patch object {where}: {wrong}")
    for key in ("uid", "resourceVersion"):
        if metadata.get(key) not in (None, (live or {}).get("metadata", {}).get(key)):
            text = "no existing object was found" if live is None else "the object has been modified"
            raise StatusError(409, "Conflict", f'{path.plural} "{path.name}": {key} {metadata[key]}: {text}')


def _undeclared_field_problem(path: ResourcePath, kind: Kind | None, body: Json) -> str:
    """What of an apply is no object of its kind; "" for nothing."""
    if kind is None:
        unknown = undeclared_field(path.version, path.kind, body)
    else:
        try:
            unknown = next((f".{each}" for each in kind.shapes.decode(kind.name, body, "").unknown), "")
        except DecodeError as error:
            return str(error)
    return f"{unknown}: field not declared in schema" if unknown else ""


def _is_status_apart(path: ResourcePath, kind: Kind | None) -> bool:
    return path.plural in PLURALS_WITH_STATUS_SUBRESOURCE if kind is None else kind.status_apart


def _change_by_subresource(path: ResourcePath, kind: Kind | None, old: Json, new: Json) -> Json:
    """What a write makes of an object: `…/status` changes its status alone, and every other write all but it."""
    if path.subresource == "status":
        return {**old, "status": new.get("status")}
    apart = _is_status_apart(path, kind) and "status" in old
    return {**new, "status": old.get("status")} if apart else new


def _object_error(code: int, reason: str, path: ResourcePath, text: str) -> StatusError:
    return StatusError(code, reason, f'{path.resource} "{path.name}" {text}', details=status_details_of(path))


def _field_manager_of(path: ResourcePath, request: Request, operation: str) -> Manager:
    """Who writes: whom the request names, else the program of its User-Agent (managedfields/fieldmanager.go)."""
    name = request.query.get("fieldManager") or request.headers.get("user-agent", "").partition("/")[0]
    return Manager(name[:MAX_FIELD_MANAGER_LENGTH] or "unknown", operation, path.version, path.subresource)
