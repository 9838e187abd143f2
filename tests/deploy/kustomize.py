"""A small builder that knows as much of kustomize as deploy/ and its users need, and refuses to guess at the rest.

Resources, components, strategic merge patches, ConfigMaps from files; `namePrefix`, `nameSuffix`, `namespace`, and the
references that follow them. Of those it knows what kustomize 5.0 knows (kubectl 1.27 to 1.30), and `configurations`:
kubernetes-sigs/kustomize, api/internal/konfig/builtinpluginconsts/namereference.go.
"""

import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
NAMES = {"namePrefix", "nameSuffix", "namespace"}
KNOWN = NAMES | {
    "apiVersion", "kind", "resources", "components", "patches", "configMapGenerator", "generatorOptions",
    "configurations",
}  # fmt: skip
CLUSTERS = ("Namespace", "ClusterRole", "ClusterRoleBinding")  # what has no namespace, so far as kustomize 5 knows

Json = dict[str, Any]


class Reference(NamedTuple):
    """Objects of one kind name objects of another in a field."""

    of: str
    kind: str
    path: str


REFERENCES = (
    Reference("ConfigMap", "DaemonSet", "spec/template/spec/volumes/configMap/name"),
    Reference("ServiceAccount", "DaemonSet", "spec/template/spec/serviceAccountName"),
    Reference("ServiceAccount", "RoleBinding", "subjects/name"),
    Reference("ServiceAccount", "ClusterRoleBinding", "subjects/name"),
    Reference("Role", "RoleBinding", "roleRef/name"),
    Reference("ClusterRole", "ClusterRoleBinding", "roleRef/name"),
    Reference("Namespace", "RoleBinding", "subjects/namespace"),
    Reference("Namespace", "ClusterRoleBinding", "subjects/namespace"),
)


def real(directory: Path) -> list[Json] | None:
    """The same by a real kustomize; None where none is installed."""
    programs = (["kustomize", "build"], ["kubectl", "kustomize"])
    program = next((each for each in programs if which(each[0])), None)
    if program is None:
        return None
    done = subprocess.run([*program, str(directory)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def build(directory: Path) -> list[Json]:
    """The objects of a kustomization."""
    return apply(directory, [])


def apply(directory: Path, objects: list[Json]) -> list[Json]:
    """What a kustomization or a component makes of the objects of those before it."""
    layer = _layer(directory)
    for path in (directory / each for each in layer.get("resources", ())):
        objects = objects + (build(path) if path.is_dir() else _documents(path))
    objects = objects + [_config_map(directory, each) for each in layer.get("configMapGenerator", ())]
    for each in layer.get("components", ()):
        objects = apply(directory / each, objects)
    for patch in layer.get("patches", ()):
        for change in _documents(directory / patch["path"]):
            assert any(identity(each) == identity(change) for each in objects), f"{patch} changes nothing"
            gone = change.get("$patch") == "delete"
            changed = [merge(each, change) if identity(each) == identity(change) else each for each in objects]
            objects = [each for each in changed if not gone or identity(each) != identity(change)]
    return _renamed(objects, layer, [*REFERENCES, *_configured(directory)]) if NAMES & set(layer) else objects


def _layer(directory: Path) -> Json:
    layer: Json = yaml.safe_load((directory / "kustomization.yaml").read_text())
    unknown = set(layer) - KNOWN
    assert not unknown, f"{directory}: the builder of this test does not know {unknown}"
    return layer


def _documents(path: Path) -> list[Json]:
    return list(yaml.safe_load_all(path.read_text()))


def _config_map(directory: Path, generator: Json) -> Json:
    files = (each.partition("=")[::2] for each in generator["files"])
    data = {key: (directory / path).read_text() for key, path in files}
    metadata = {"name": generator["name"], "namespace": generator["namespace"], **generator.get("options", {})}
    assert {*metadata} <= {"name", "namespace", "labels", "annotations"}, f"{directory}: unknown options"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def identity(found: Json) -> tuple[Any, ...]:
    """What a patch names an object by."""
    return (*(found.get(key) for key in ("apiVersion", "kind")), found["metadata"]["name"])


def merge(old: Any, new: Any, key: str = "") -> Any:
    """A strategic merge patch."""
    if isinstance(old, dict) and isinstance(new, dict):
        merged = {k: v for k, v in old.items() if k not in new or new[k] is not None}
        return merged | {k: merge(old.get(k), v, k) for k, v in new.items() if v is not None}
    if isinstance(old, list) and key in MERGE_KEYS:
        name = MERGE_KEYS[key]
        changes = {each[name]: each for each in new}
        kept = [merge(each, changes.pop(each[name], {})) for each in old]
        return [each for each in (*kept, *changes.values()) if each.get("$patch") != "delete"]
    return copy.deepcopy(new)


def _configured(directory: Path) -> Iterator[Reference]:
    """The references that a kustomization and those below it add."""
    layer = _layer(directory)
    for each in layer.get("configurations", ()):
        for rule in yaml.safe_load((directory / each).read_text())["nameReference"]:
            yield from (Reference(rule["kind"], field["kind"], field["path"]) for field in rule["fieldSpecs"])
    for below in (directory / each for each in (*layer.get("resources", ()), *layer.get("components", ()))):
        yield from _configured(below) if below.is_dir() else ()


def _renamed(objects: list[Json], layer: Json, references: list[Reference]) -> list[Json]:
    """Every name but a Namespace's, and what refers to it; every namespace, and the Namespace."""
    space = layer.get("namespace")
    new = {(each["kind"], each["metadata"]["name"]): _name(each, layer) for each in objects}
    objects = copy.deepcopy(objects)
    for each in objects:
        for reference in references:
            if reference.kind == each["kind"]:
                _replace(
                    each, reference.path.split("/"), {old: n for (of, old), n in new.items() if of == reference.of}
                )
        each["metadata"]["name"] = new[each["kind"], each["metadata"]["name"]]
        if space and each["kind"] not in CLUSTERS:
            each["metadata"]["namespace"] = space
    return objects


def _name(found: Json, layer: Json) -> str:
    name: str = found["metadata"]["name"]
    if found["kind"] == "Namespace":
        return str(layer.get("namespace", name))
    return f"{layer.get('namePrefix', '')}{name}{layer.get('nameSuffix', '')}"


def _replace(value: Any, path: list[str], names: dict[str, str]) -> None:
    if isinstance(value, list):
        for each in value:
            _replace(each, path, names)
    elif isinstance(value, dict) and path[0] in value:
        if len(path) > 1:
            _replace(value[path[0]], path[1:], names)
        else:
            value[path[0]] = names.get(value[path[0]], value[path[0]])
