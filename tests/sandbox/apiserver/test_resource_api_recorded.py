"""The sandbox's API server answers about resource.k8s.io as Kubernetes 1.36.2 did: 544 recorded requests, replayed.

One line a request, in the order sent. `send`: method and path. `body`: what was sent, without kind and apiVersion; or
`change`: a merge patch that makes it from the object as it is. `before`: what somebody else did. What is compared:

- `code`; `causes` of a 422 (reason, field, message; from these follows the whole Status), else `reason`, `message`,
  `details`; `warnings`;
- `stored`: spec and status as they are kept (⟪sent⟫: as sent; ⟪kept⟫: as before; ⟪now⟫: the server's time), `metadata`;
- `version`: where two answers have one version, ours have one version, too; `managers`: metadata.managedFields;
- `names` of a list, and its `metadata`; `events` of a watch; the whole `answer`.

⟪x*3⟫ stands for xxx, and {"⟪each⟫": [0, 3], "item": "a⟪#⟫"} in a list for a0, a1, a2.
"""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from gpuplane.sandbox.apiserver.objects import parse_path
from gpuplane.sandbox.apiserver.patches import merge_patch
from gpuplane.sandbox.apiserver.server import ApiServer

Json = dict[str, Any]
RECORDED = Path(__file__).parent / "testdata/kubernetes-1.36/resource-api.jsonl"
GROUP = "/apis/resource.k8s.io/v1"
KINDS = {
    "resourceslices": "ResourceSlice",
    "deviceclasses": "DeviceClass",
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
}
TYPES = {
    "merge": "application/merge-patch+json",
    "json-patch": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
    "yaml": "application/yaml",
    "plain": "text/plain",
}

LEFT_OUT = {
    "node/|status/auth-(devices-[0-356]|reserve-[01])": "authorization: the sandbox does not look at who asks",
    r"class/cel-(1[256789]|2[0147-9]|33|38)|class/upd-bad-cel|claim/cel-(bad|in-sub-bad)|template/bad-cel": (
        "CEL expressions are measured, and not compiled"
    ),
    "class/config-10KiB$|status/ssa-b-other-device|ssa-config/blanks-(apply|merge)": (
        "opaque configuration is kept as a value, and not as the bytes that were sent: blanks do not count"
    ),
    ".*/table": "tables are for kubectl",
    "taintrule/|discovery/(v1beta2|v1alpha3|group)": (
        "v1 alone is served, as by default; the recorded server had DRADeviceTaintRules and older versions switched on"
    ),
    "slice/policy-range-step-zero": "it panics the real server; here it is a 422",
    "status/reserve-duplicate-uid": "somebody else had changed the claim, so that it says nothing about duplicates",
}
"""What is not sent, and why."""
WORDS_OF_A_PARSER = ("slice/not-json", "list/continue-garbage")
"""Whose message has the words of Go's parser for JSON."""


def recorded() -> list[Json]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def expand(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"⟪(.)\*(\d+)⟫", lambda run: run[1] * int(run[2]), value, flags=re.DOTALL)
    if isinstance(value, dict):
        return {expand(key): expand(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    items = []
    for each in value:
        if isinstance(each, dict) and "⟪each⟫" in each:
            text = json.dumps(expand(each["item"]), ensure_ascii=False)
            items += [json.loads(text.replace("⟪#⟫", str(number))) for number in range(*each["⟪each⟫"])]
        else:
            items.append(expand(each))
    return items


class Replay:
    """A server, its time, and what its last answers were."""

    def __init__(self, server: ApiServer, http: httpx2.AsyncClient) -> None:
        self.server, self.http = server, http
        self.time = datetime(2030, 1, 1, tzinfo=UTC)
        self.versions: dict[str, str] = {}  # the recording's → ours
        server.registry.now = lambda: self.time

    async def send(self, method: str, path: str, kind: str | None, body: Any, headers: Json) -> httpx2.Response:
        url = path if path.startswith("/") else f"{GROUP}/{path}"
        if isinstance(body, dict) and method != "DELETE" and kind in (None, "apply", "yaml"):
            plural = parse_path(url.partition("?")[0]).plural
            body = {"apiVersion": "resource.k8s.io/v1", "kind": KINDS[plural], **body}
        content = None if body is None else body if isinstance(body, str) else json.dumps(body)
        if kind == "yaml" and isinstance(body, dict):
            content = yaml.safe_dump(body)
        if content is not None:
            headers = {**headers, "Content-Type": TYPES.get(kind or "", "application/json")}
        url = re.sub("timeoutSeconds=[0-9]+", "timeoutSeconds=-1", url)
        return await self.http.request(method, url, content=content, headers=headers)

    async def happen(self, step: list[Any]) -> None:
        """What somebody else does."""
        match step:
            case ["VERSION", version]:
                self.server.objects.version = version
            case ["EXPIRE", _]:
                self.server.expire_history()
            case [method, path, *rest]:
                body = rest.pop() if rest else None
                answer = await self.send(method, path, rest[0] if rest else None, body, {})
                assert answer.is_success, (step, answer.text)

    def current(self, path: str) -> Json | None:
        where = parse_path(f"{GROUP}/{path}".partition("?")[0])
        return self.server.objects.get(where) if self.server.objects.has(where) else None

    async def play(self, case: Json) -> list[str]:
        """What is different, of one case."""
        for step in case.get("before", ()):
            await self.happen(step)
        self.time += timedelta(seconds=1)
        method, path = case["send"].split(" ", 1)
        body, old = expand(case.get("body")), self.current(path) if not path.startswith("/") else None
        if "change" in case:
            assert old is not None, case["case"]
            sent = {key: value for key, value in old.items() if key not in ("kind", "apiVersion")}
            sent["metadata"] = {key: value for key, value in old["metadata"].items() if key != "managedFields"}
            body = merge_patch(sent, expand(case["change"]))
        answer = await self.send(method, path, case.get("type"), body, case.get("headers", {}))
        if "watch=" in path and answer.status_code == 200:
            told: Any = [json.loads(line) for line in answer.text.splitlines()]
        else:
            told = answer.json()
        found = {"code": answer.status_code, **shown(case, told, answer, body, old, self.stamp())}
        expected = {"code": case["code"], **wanted(case, old)}
        different = [
            f"{key}: {found.get(key)!r}\n   not {value!r}" for key, value in expected.items() if found.get(key) != value
        ]
        if "version" in case and "metadata" in told and case["version"] is not None:
            ours = told["metadata"].get("resourceVersion")
            if self.versions.setdefault(case["version"], ours) != ours:
                different.append(f"version: {ours}, not {self.versions[case['version']]}")
        if case.get("gone") and answer.status_code == 201:
            space = f"namespaces/{told['metadata']['namespace']}/" if "namespace" in told["metadata"] else ""
            plural = parse_path(f"{GROUP}/{path}".partition("?")[0]).plural
            await self.happen(["DELETE", f"{space}{plural}/{told['metadata']['name']}"])
        return different

    def stamp(self) -> str:
        return self.time.strftime("%Y-%m-%dT%H:%M:%SZ")


def wanted(case: Json, old: Json | None) -> Json:
    """What an answer has to be."""
    keys = ("reason", "message", "details", "warnings", "names", "events", "answer", "kind", "causes", "managers")
    expected = {key: expand(case[key]) for key in keys if key in case}
    if case["case"] in WORDS_OF_A_PARSER:
        del expected["message"]
    if "message" in expected and old is not None:
        text = expected["message"].replace("⟪uid⟫", old["metadata"]["uid"])
        expected["message"] = text.replace("⟪version⟫", old["metadata"]["resourceVersion"])
    if "metadata" in case:
        expected["metadata"] = case["metadata"]
    for key, value in expand(case.get("stored", {})).items():
        expected[key] = (old or {}).get(key) if value == "⟪kept⟫" else value
    return expected


def shown(case: Json, told: Any, answer: httpx2.Response, body: Any, old: Json | None, now: str) -> Json:
    """The same of our answer."""
    found: Json = {
        "warnings": [each.partition(" - ")[2][1:-1].replace('\\"', '"') for each in answer.headers.get_list("warning")]
    }
    if isinstance(told, list):
        found["events"] = [
            [
                each["type"],
                meta(each).get("name", ""),
                meta(each).get("resourceVersion") or each["object"].get("message"),
            ]
            for each in told
        ]
        return found
    answer_keys = case.get("answer", {})
    found |= {"kind": told.get("kind"), "metadata": told.get("metadata", {})}
    found["answer"] = {key: told.get(key) for key in answer_keys}
    if told.get("kind") == "Status":
        details = told.get("details", {})
        causes = details.get("causes", ())
        found |= {key: told.get(key, "") for key in ("reason", "message")} | {"details": details}
        found["causes"] = [[each["reason"], each.get("field"), each["message"]] for each in causes]
        texts = [f"{each.get('field')}: {each['message']}" for each in causes]
        if "causes" in case:
            text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
            assert told["message"] == f'{details["kind"]}.{details["group"]} "{details["name"]}" is invalid: {text}'
        return found
    if "items" in told:
        found["names"] = [each["metadata"]["name"] for each in told["items"]]
        found["metadata"] = {key: value for key, value in told["metadata"].items() if key != "resourceVersion"}
        return found
    for key in ("spec", "status"):
        if key in told:
            same = case.get("stored", {}).get(key) == "⟪sent⟫" and isinstance(body, dict) and told[key] == body.get(key)
            times = re.sub(
                r'"2030-[^"]+"', lambda time: f'"⟪{"now" if now in time[0] else "earlier"}⟫"', json.dumps(told[key])
            )
            kept = case.get("stored", {}).get(key) == "⟪kept⟫"
            found[key] = "⟪sent⟫" if same else told[key] if kept else json.loads(times)
    if "metadata" not in told:
        return found
    names = ("generation", "labels", "annotations", "finalizers", "ownerReferences", "deletionGracePeriodSeconds")
    found["metadata"] = {key: told["metadata"][key] for key in names if key in told["metadata"]}
    found["managers"] = sorted(told["metadata"].get("managedFields", ()), key=str)
    return found


def meta(event: Json) -> Json:
    found: Json = event["object"]["metadata"]
    return found


async def test_replay() -> None:
    different = []
    async with (
        ApiServer() as server,
        httpx2.AsyncClient(base_url=server.url, headers={"User-Agent": "", **server.authorization}) as http,
    ):
        for space, label in (("gpu-ops", "true"), ("gpu-ops2", "yes")):
            labels = {"resource.kubernetes.io/admin-access": label}
            server.put(f"/api/v1/namespaces/{space}", {"metadata": {"labels": labels}})
        replay = Replay(server, http)
        for case in recorded():
            if "code" in case:
                different += [f"{case['case']}: {each}" for each in await replay.play(case)]
    assert not different, f"{len(different)} differences\n" + "\n".join(different)


@pytest.mark.parametrize("pattern", LEFT_OUT)
def test_what_is_left_out(pattern: str) -> None:
    """Each line of the table is about something, and nothing else is left out."""
    cases = recorded()
    assert len(cases) == 544
    assert [each["case"] for each in cases if re.match(pattern, each["case"]) and "code" not in each]
    left = [each["case"] for each in cases if "code" not in each]
    assert [each for each in left if not any(re.match(one, each) for one in LEFT_OUT)] == []
    assert len(left) == 52
