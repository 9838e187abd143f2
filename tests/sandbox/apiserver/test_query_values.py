"""The values of a query are read as a real API server reads them.

`query-values.jsonl` was recorded of Kubernetes 1.36.2 with three Nodes, a, b and c. VERSION is the newest
resourceVersion, TOKEN a continue token of it after a. Left out of the recording: fields of a Node that cannot be
selected, `dryRun` twice, `orphanDependents` beside `propagationPolicy`, and what a list has of an older version.
"""

import base64
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuplane.sandbox.apiserver.http import Request
from gpuplane.sandbox.apiserver.objects import StatusError, parse_path
from gpuplane.sandbox.apiserver.registry import check_selectors
from gpuplane.sandbox.apiserver.selectors import matches
from gpuplane.sandbox.apiserver.server import ApiServer
from tests.lengths import length

RECORDED = Path(__file__).parent / "testdata/kubernetes-1.36/query-values.jsonl"
NODES = "/api/v1/nodes"


def with_nodes() -> ApiServer:
    server = ApiServer()
    for name, labels in (("a", {"x": "1"}), ("b", {}), ("c", {})):
        server.put(f"{NODES}/{name}", {"metadata": {"labels": labels}})
    return server


def told(answer: httpx2.Response) -> dict[str, Any]:
    """What of an answer a program goes by."""
    found: dict[str, Any] = {"code": answer.status_code}
    body = answer.json()
    if body.get("kind") == "Status":
        found["reason"] = body["reason"]
        causes = body.get("details", {}).get("causes", ())
        found["causes"] = [(each["reason"], each.get("field", "")) for each in causes]
    elif "items" in body:
        found["items"] = len(body["items"])
    return found


async def test_as_recorded() -> None:
    different = []
    async with with_nodes() as server, httpx2.AsyncClient(base_url=server.url, headers=server.authorization) as http:
        for case in map(json.loads, RECORDED.read_text().splitlines()):
            method, path = case["send"].split(" ", 1)
            token = {"v": "meta.k8s.io/v1", "rv": server.objects.version, "start": "/a\0"}
            encoded = base64.urlsafe_b64encode(json.dumps(token).encode()).decode().rstrip("=")
            path = path.replace("VERSION", str(server.objects.version)).replace("TOKEN", encoded)
            content = json.dumps(case["body"]).encode() if "body" in case else None
            headers = {"Content-Type": case["type"]} if "body" in case else {}
            async with http.stream(method, path, content=content, headers=headers) as answer:
                found: dict[str, Any] = {"code": answer.status_code}
                if answer.headers.get("transfer-encoding") != "chunked":
                    await answer.aread()
                    found = told(answer)
            wanted = {key: case[key] for key in ("code", "reason", "items") if key in case}
            if "causes" in case:
                wanted["causes"] = [(each["reason"], each.get("field", "")) for each in case["causes"]]
            if any(found.get(key) != value for key, value in wanted.items()):
                different.append(f"{case['send']}: {found}, not {wanted}")
    assert not different, f"{len(different)} differences\n" + "\n".join(different)


NAMES = (
    "watch", "limit", "continue", "resourceVersion", "resourceVersionMatch", "timeoutSeconds", "sendInitialEvents",
    "allowWatchBookmarks", "fieldSelector", "labelSelector", "dryRun", "fieldManager", "fieldValidation", "force",
    "gracePeriodSeconds", "propagationPolicy",
)  # fmt: skip
ODD = (
    "",
    "-1",
    "0",
    "1",
    "nan",
    "9" * 5000,
    "-" + "9" * 30,
    "\0",
    "a=b",
    "!",
    "Exact",
    "e30",
    "٣",
    " 1",
    "\\",
)


@given(
    method=st.sampled_from(("GET", "POST", "PUT", "PATCH", "DELETE")),
    place=st.sampled_from(("", "/a")),
    query=st.dictionaries(
        st.sampled_from(NAMES),
        st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
        max_size=4,
    ),
)
@settings(max_examples=length(300, 20_000))
def test_any_value_has_an_answer(method: str, place: str, query: dict[str, str]) -> None:
    server, body = with_nodes(), b'{"metadata": {"name": "a"}}'
    try:
        server.registry.respond(Request(method, f"{NODES}{place}", query, {}, body))
    except StatusError as refused:
        assert refused.code in (400, 405, 409, 410, 415, 422, 500, 504), refused
        assert refused.code != 500 or "resourceVersion" in str(refused)


@pytest.mark.parametrize(
    "selector", ["a" * 1_000_000, "a." * 500_000, " " * 1_000_000 + ",", "a/" * 500_000, "\\" * 1_000_001]
)
@pytest.mark.parametrize("key", ["fieldSelector", "labelSelector"])
def test_a_long_selector_is_refused_soon(key: str, selector: str) -> None:
    """As many bytes as a request may have."""
    with pytest.raises(StatusError):
        check_selectors(parse_path(NODES), {key: selector})


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("x", True), ("!x", False), ("!y", True), ("y", False), (" x = 1 , !y", True), ("x!=1", False), ("y!=1", True)],
)
def test_a_label_may_be_asked_for_without_a_value(labels: str, *, expected: bool) -> None:
    assert matches({"metadata": {"labels": {"x": "1"}}}, "", labels) is expected


@pytest.mark.parametrize("name", ["a,b", "a=b", "a\\b"])
def test_a_field_with_signs_is_asked_for_with_a_backslash(name: str) -> None:
    wanted = "".join(f"\\{each}" if each in "\\,=" else each for each in name)
    assert matches({"metadata": {"name": name}}, f"metadata.name={wanted}", "")
    assert not matches({"metadata": {"name": "a"}}, f"metadata.name={wanted}", "")
