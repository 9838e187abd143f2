"""What a client asks before it asks for objects: the version of the server, and the kinds of a group."""

from collections.abc import Iterable, Iterator

from gpuplane.sandbox.apiserver.gates import NEWEST_RELEASE
from gpuplane.sandbox.apiserver.kinds import Kind
from gpuplane.sandbox.apiserver.objects import Json

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
STATUS_VERBS = ["get", "patch", "update"]


def answer_discovery(path: str, kinds: Iterable[Kind], emulates: str) -> Json | None:
    """The answer to a request of this path; None where it asks for something else."""
    if path == "/version":
        return _version_info(emulates)
    known = [each for each in kinds if path in (f"/apis/{each.version}", f"/apis/{each.version.partition('/')[0]}")]
    if not known:
        return None
    version = known[0].version
    group, _, name = version.partition("/")
    if path == f"/apis/{version}":
        resources = [each for kind in sorted(known, key=lambda each: each.plural) for each in _list_api_resources(kind)]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
    served = {"groupVersion": version, "version": name}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [served], "preferredVersion": served}


def _list_api_resources(kind: Kind) -> Iterator[Json]:
    head = {"namespaced": kind.namespaced, "kind": kind.name}
    yield {"name": kind.plural, "singularName": kind.name.lower(), **head, "verbs": VERBS}
    if kind.status_apart:
        yield {"name": f"{kind.plural}/status", "singularName": "", **head, "verbs": STATUS_VERBS}


def _version_info(emulates: str) -> Json:
    (major, minor), (_, emulated) = NEWEST_RELEASE.split("."), emulates.split(".")
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": emulated,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(emulated) - 1),
        "gitVersion": f"v{NEWEST_RELEASE}.2",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "gc",
        "platform": "linux/amd64",
    }
