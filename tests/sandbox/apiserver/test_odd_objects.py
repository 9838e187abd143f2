"""Whatever a client sends about resource.k8s.io gets an answer: what is wrong in it is told, and nothing raises."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.sandbox.apiserver.http import Request
from gpuplane.sandbox.apiserver.objects import StatusError, parse_path
from gpuplane.sandbox.apiserver.server import ApiServer
from tests.lengths import length
from tests.sandbox.apiserver.test_resource_api_recorded import GROUP, KINDS, TYPES, expand, recorded

CASES = [each for each in recorded() if "body" in each and "code" in each and not isinstance(each["body"], str)]
ODD: list[Any] = [
    None,
    "",
    0,
    -1,
    1.5,
    True,
    [],
    {},
    "x",
    [None],
    [{}],
    {"a": None},
    ["a"],
    {"": ""},
    10**30,
    "2026-01-01",
]


def damage(data: st.DataObject, found: Any) -> Any:
    """A value with something else at one place of it."""
    if not isinstance(found, dict | list) or not found or data.draw(st.integers(0, 3)) == 0:
        return copy.deepcopy(data.draw(st.sampled_from(ODD)))
    keys = list(found) if isinstance(found, dict) else list(range(len(found)))
    key = data.draw(st.sampled_from(keys))
    changed: Any = copy.copy(found)
    changed[key] = damage(data, found[key])
    return changed


@given(data=st.data())
@settings(max_examples=length(150, 5000))
def test_odd_bodies(data: st.DataObject) -> None:
    server = ApiServer()
    for plural in ("resourceslices/s-upd", "namespaces/default/resourceclaims/k-upd", "resourceslices/s-ssa"):
        pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [{"name": "d"}]}
        server.put(f"{GROUP}/{plural}", {"spec": spec if "slices" in plural else {"devices": {}}})
    case = data.draw(st.sampled_from(CASES))
    method, path = case["send"].split(" ", 1)
    body = damage(data, expand(case["body"]))
    if isinstance(body, dict) and method != "DELETE" and case.get("type") in (None, "apply", "yaml"):
        plural = parse_path(f"{GROUP}/{path}".partition("?")[0]).plural
        body = {"apiVersion": "resource.k8s.io/v1", "kind": KINDS[plural], **body}
    kind = TYPES.get(case.get("type", ""), "application/json")
    url, _, query = f"{GROUP}/{path}".partition("?")
    asked = dict(each.split("=") for each in query.split("&") if each)
    try:
        answer = server.registry.respond(Request(method, url, asked, {"content-type": kind}, msgspec.json.encode(body)))
    except StatusError as refused:
        assert refused.code in (400, 404, 409, 415, 422, 500), refused
        assert refused.code != 500 or "typed patch" in str(refused)
    else:
        assert answer.code in (200, 201)
        assert msgspec.json.encode(answer.body)


@pytest.mark.parametrize(
    "content", [b"", b"null", b"[]", b"{", b"\xff", b"a: [", b"2026-01-01T00:00:00Z", b"[" * 100_000]
)
@pytest.mark.parametrize("kind", ["json", "yaml", "apply-patch+yaml", "merge-patch+json", "json-patch+json"])
def test_what_is_no_object(content: bytes, kind: str) -> None:
    server = ApiServer()
    server.put(f"{GROUP}/deviceclasses/c", {"spec": {}})
    method = "PATCH" if "patch" in kind else "POST"
    path = f"{GROUP}/deviceclasses/c" if method == "PATCH" else f"{GROUP}/deviceclasses"
    asked = Request(method, path, {"fieldManager": "m"}, {"content-type": f"application/{kind}"}, content)
    if (kind, content) == ("json-patch+json", b"[]"):
        assert server.registry.respond(asked).code == 200
        return
    with pytest.raises(StatusError) as refused:
        server.registry.respond(asked)
    assert refused.value.code in (400, 422)


def test_a_time_in_yaml_is_a_text() -> None:
    """As kubectl and the server read it."""
    server = ApiServer()
    body = """
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.example.com
  nodeName: n1
  pool: {name: p, generation: 1, resourceSliceCount: 1}
  devices: [{name: d, taints: [{key: a, effect: None, timeAdded: 2026-01-01T00:00:00Z}]}]
"""
    headers = {"content-type": "application/yaml"}
    made = server.registry.respond(Request("POST", f"{GROUP}/resourceslices", {}, headers, body.encode())).body
    assert made["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
