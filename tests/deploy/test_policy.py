"""The policy that binds an agent's writes to its own Node: its expressions, evaluated by Google's CEL."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

POLICY = Path(__file__).parents[2] / "deploy/base/policy.yaml"
AGENT = "system:serviceaccount:gpuplane:gpuplane-agent"
NODE = "authentication.kubernetes.io/node-name"
OURS = {NODE: ["gpu-1"], "authentication.kubernetes.io/pod-name": ["gpuplane-agent-x"]}

METADATA = ["labels", "annotations", "finalizers", "ownerReferences"]
STATUS = [
    "addresses", "allocatable", "capacity", "config", "daemonEndpoints", "declaredFeatures", "features",
    "images", "nodeInfo", "phase", "runtimeHandlers", "volumesAttached", "volumesInUse",
]  # fmt: skip

Json = dict[str, Any]


@pytest.fixture
def spec() -> Json:
    policy, binding = yaml.safe_load_all(POLICY.read_text())

    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}

    found: Json = policy["spec"]
    return found


def test_what_it_looks_at(spec: Json) -> None:
    """Every write on every part of a Node, and on Events; it fails closed."""
    [rule] = spec["matchConstraints"]["resourceRules"]

    assert rule == {
        "apiGroups": [""],
        "apiVersions": ["*"],
        "operations": ["*"],
        "resources": ["nodes", "nodes/*", "events"],
    }
    assert spec["failurePolicy"] == "Fail"


def test_its_expressions(spec: Json) -> None:
    """As they stand: whoever changes one sees it here, whether or not a CEL library is installed."""
    assert [_plain(each["expression"]) for each in spec["matchConditions"]] == [
        "request.userInfo.username.matches('^system:serviceaccount:[^:]+:[^:]*gpuplane-agent[^:]*$')"
    ]
    assert {each["name"]: _plain(each["expression"]) for each in spec["variables"]} == {
        "ownNode": f"has(request.userInfo.extra) && '{NODE}' in request.userInfo.extra "
        f"&& size(request.userInfo.extra['{NODE}']) == 1 ? request.userInfo.extra['{NODE}'][0] : ''",
        "isEvent": "request.resource.resource == 'events'",
        "isStatus": "!variables.isEvent && request.operation == 'UPDATE' "
        "&& has(request.subResource) && request.subResource == 'status'",
    }
    same = "{0}.all(field, (field in object.{1}) == (field in oldObject.{1}) && (!(field in object.{1}) "
    same += "|| object.{1}[field] == oldObject.{1}[field]))"
    others = "(has({0}.status.conditions) ? {0}.status.conditions"
    others += ".filter(each, !(each.type in ['GPUProblem', 'gpuplane.io/GPUReady'])) : [])"
    assert [_plain(each["expression"]) for each in spec["validations"]] == [
        "variables.ownNode != ''",
        "request.operation == 'UPDATE' || (variables.isEvent && request.operation == 'CREATE')",
        "variables.isEvent || (has(request.name) && request.name == variables.ownNode)",
        "!variables.isEvent || (has(object.involvedObject) && object.involvedObject.kind == 'Node' "
        "&& object.involvedObject.name == variables.ownNode "
        "&& (request.operation == 'CREATE' || object.involvedObject == oldObject.involvedObject))",
        f"!variables.isStatus || ( {same.format(METADATA, 'metadata')} && {same.format(STATUS, 'status')} "
        f"&& {others.format('object')} == {others.format('oldObject')} )",
    ]


def _plain(expression: str) -> str:
    return re.sub(r"\s+", " ", expression).strip()


def write(operation: str = "UPDATE", name: str | None = "gpu-1", user: str = AGENT, extra: Any = OURS) -> Json:
    """An admission request, as far as the policy looks."""
    info = {"username": user} | ({} if extra is None else {"extra": extra})
    resource = {"group": "", "version": "v1", "resource": "nodes"}
    request = {"operation": operation, "userInfo": info, "resource": resource}
    return request | ({} if name is None else {"name": name})


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        (write(), "allowed"),
        (write(user="system:node:gpu-2"), "not looked at"),
        (write(user="kubernetes-admin", operation="DELETE", extra=None), "not looked at"),
        (write(user="system:serviceaccount:gpuplane:other"), "not looked at"),
        (write(user="system:serviceaccount:elsewhere:gpuplane-agent"), "allowed"),
        (write(user="system:serviceaccount:elsewhere:gpuplane-agent", name="gpu-2"), "may not write to another"),
        (write(user="system:serviceaccount:gpuplane:a-gpuplane-agent-b", name="gpu-2"), "may not write to another"),
        (write(user="system:serviceaccount:gpuplane-agent:other", name="gpu-2"), "not looked at"),
        (write(user=f"x{AGENT}", name="gpu-2"), "not looked at"),
        (write(name="gpu-2"), "may not write to another"),
        (write(name=""), "may not write to another"),
        (write(name=None), "may not write to another"),
        (write(operation="CREATE"), "updates its Node"),
        (write(operation="CREATE", name=None), "updates its Node"),
        (write(operation="DELETE"), "updates its Node"),
        (write(operation="CONNECT"), "updates its Node"),
        (write(extra=None), "names no node"),
        (write(extra={}), "names no node"),
        (write(extra={NODE: []}), "names no node"),
        (write(extra={NODE: ["gpu-1", "gpu-2"]}), "names no node"),
        (write(extra={NODE: [""]}, name=""), "names no node"),
    ],
)
def test_verdicts(spec: Json, request_: Json, verdict: str) -> None:
    """An agent updates its own Node, and is told why it may not do anything else; nobody else is looked at."""
    assert verdict in judge(spec, request_)


def node(metadata: Mapping[str, Any] = {}, conditions: Any = None, **status: Any) -> Json:
    """A Node as the API server shows it to the policy."""
    fields = {"capacity": {"cpu": "8"}, "nodeInfo": {"architecture": "arm64"}} | status
    fields |= {} if conditions is None else {"conditions": conditions}
    return {"metadata": {"name": "gpu-1", "labels": {"a": "b"}, **metadata}, "status": fields}


SERVING = {"type": "gpuplane.io/GPUReady", "status": "True"}
READY, OURS_WELL = {"type": "Ready", "status": "True"}, {"type": "GPUProblem", "status": "False"}
OURS_ILL = {
    "type": "GPUProblem",
    "status": "True",
    "reason": "GPUUnhealthy",
    "lastHeartbeatTime": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (node(conditions=[READY, OURS_WELL]), node(conditions=[READY, OURS_ILL]), "allowed"),
        (node(conditions=[READY]), node(conditions=[READY, OURS_ILL]), "allowed"),
        (node(), node(conditions=[OURS_ILL]), "allowed"),
        (node(conditions=[READY, SERVING]), node(conditions=[READY, OURS_ILL]), "allowed"),
        (node(conditions=[READY]), node(conditions=[READY, OURS_WELL, {**SERVING, "status": "False"}]), "allowed"),
        (node(), node(conditions=[{"type": "GPUReady", "status": "True"}]), "nothing else"),
        (node({"annotations": {"x": "y"}}), node({"annotations": {"x": "y"}}), "allowed"),
        (node({"managedFields": []}), node({"managedFields": [{"manager": "gpuplane"}]}), "allowed"),
        (node(conditions=[READY]), node(conditions=[{**READY, "status": "False"}]), "nothing else"),
        (node(conditions=[READY]), node(conditions=[OURS_ILL]), "nothing else"),
        (node(conditions=[]), node(conditions=[{"type": "Idle", "status": "True"}]), "nothing else"),
        (node(), node(capacity={"cpu": "9"}), "nothing else"),
        (node(), node(addresses=[{"type": "InternalIP", "address": "10.0.0.1"}]), "nothing else"),
        (node(volumesInUse=["v"]), node(), "nothing else"),
        (node(), node({"labels": {"a": "c"}}), "nothing else"),
        (node(), node({"annotations": {"gpuplane.io/drain": "all"}}), "nothing else"),
    ],
)
def test_of_the_status_two_conditions(spec: Json, old: Json, new: Json, verdict: str) -> None:
    """Where an agent writes its Node's status, all but its conditions is as it was, labels and annotations too."""
    request = write() | {"subResource": "status"}

    assert verdict in judge(spec, request, new, old)
    assert "may not write to another" in judge(spec, request | {"name": "gpu-2"}, new, old)


def event(name: str = "gpu-1", kind: str = "Node", **more: Any) -> Json:
    """An Event, as far as the policy looks."""
    return {"involvedObject": {"kind": kind, "name": name, "uid": name}, "reason": "GPUUnhealthy"} | more


@pytest.mark.parametrize(
    ("operation", "new", "old", "verdict"),
    [
        ("CREATE", event(), None, "allowed"),
        ("UPDATE", event(count=2), event(count=1), "allowed"),
        ("CREATE", event("gpu-2"), None, "about its Node"),
        ("CREATE", event(kind="Pod"), None, "about its Node"),
        ("CREATE", {"reason": "x"}, None, "about its Node"),
        ("UPDATE", event(), event("gpu-2"), "about its Node"),
        ("UPDATE", event("gpu-2"), event("gpu-2"), "about its Node"),
        ("DELETE", None, event(), "does nothing else"),
    ],
)
def test_of_events_those_about_its_node(spec: Json, operation: str, new: Any, old: Any, verdict: str) -> None:
    """An agent tells nothing of other Nodes, and makes no other's Event its own."""
    request = write(operation, name="gpu-1.18b") | {"resource": {"group": "", "version": "v1", "resource": "events"}}

    assert verdict in judge(spec, request, new, old)


def judge(spec: Json, request: Json, new: Any = None, old: Any = None) -> str:
    """What the API server makes of a request that makes `new` of `old`."""
    cel = pytest.importorskip("cel_expr_python.cel", reason="the CEL library (cel-expr-python) is not installed")
    env = cel.NewEnv(variables=dict.fromkeys(("request", "variables", "object", "oldObject"), cel.Type.DYN))
    bound: Json = {"request": request, "variables": {}, "object": new, "oldObject": old}

    def value(expression: str) -> Any:
        return env.compile(expression).eval(data=bound).value()

    if not all(value(each["expression"]) for each in spec["matchConditions"]):
        return "not looked at"
    for each in spec["variables"]:
        bound["variables"][each["name"]] = value(each["expression"])
    for each in spec["validations"]:
        if value(each["expression"]) is not True:
            return str(each.get("message") or value(each["messageExpression"]))
    return "allowed"
