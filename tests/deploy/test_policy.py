"""The policy that binds writes on Nodes to the agent's own: its expressions, evaluated by Google's CEL."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

POLICY = Path(__file__).parents[2] / "deploy/base/policy.yaml"
AGENT = "system:serviceaccount:gpuplane:gpuplane-agent"
NODE = "authentication.kubernetes.io/node-name"
OURS = {NODE: ["gpu-1"], "authentication.kubernetes.io/pod-name": ["gpuplane-agent-x"]}

Json = dict[str, Any]


@pytest.fixture
def spec() -> Json:
    policy, binding = yaml.safe_load_all(POLICY.read_text())

    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}

    found: Json = policy["spec"]
    return found


def test_what_it_looks_at(spec: Json) -> None:
    """Every write on every part of a Node, and it fails closed."""
    [rule] = spec["matchConstraints"]["resourceRules"]

    assert rule == {"apiGroups": [""], "apiVersions": ["*"], "operations": ["*"], "resources": ["nodes", "nodes/*"]}
    assert spec["failurePolicy"] == "Fail"


def test_its_expressions(spec: Json) -> None:
    """As they stand: whoever changes one sees it here, whether or not a CEL library is installed."""
    assert [_plain(each["expression"]) for each in spec["matchConditions"]] == [
        "request.userInfo.username.matches('^system:serviceaccount:[^:]+:gpuplane-agent$')"
    ]
    assert {each["name"]: _plain(each["expression"]) for each in spec["variables"]} == {
        "ownNode": f"has(request.userInfo.extra) && '{NODE}' in request.userInfo.extra "
        f"&& size(request.userInfo.extra['{NODE}']) == 1 ? request.userInfo.extra['{NODE}'][0] : ''"
    }
    assert [_plain(each["expression"]) for each in spec["validations"]] == [
        "variables.ownNode != ''",
        "request.operation == 'UPDATE'",
        "has(request.name) && request.name == variables.ownNode",
    ]


def _plain(expression: str) -> str:
    return re.sub(r"\s+", " ", expression).strip()


def write(operation: str = "UPDATE", name: str | None = "gpu-1", user: str = AGENT, extra: Any = OURS) -> Json:
    """An admission request, as far as the policy looks."""
    info = {"username": user} | ({} if extra is None else {"extra": extra})
    return {"operation": operation, "userInfo": info} | ({} if name is None else {"name": name})


@pytest.mark.parametrize(
    ("request_", "verdict"),
    [
        (write(), "allowed"),
        (write(user="system:node:gpu-2"), "not looked at"),
        (write(user="kubernetes-admin", operation="DELETE", extra=None), "not looked at"),
        (write(user="system:serviceaccount:gpuplane:other"), "not looked at"),
        (write(user="system:serviceaccount:elsewhere:gpuplane-agent"), "allowed"),
        (write(user="system:serviceaccount:elsewhere:gpuplane-agent", name="gpu-2"), "may not write to another"),
        (write(user=f"x{AGENT}x", name="gpu-2"), "not looked at"),
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


def judge(spec: Json, request: Json) -> str:
    """What the API server makes of a request."""
    cel = pytest.importorskip("cel_expr_python.cel", reason="the CEL library (cel-expr-python) is not installed")
    env = cel.NewEnv(variables={"request": cel.Type.DYN, "variables": cel.Type.DYN})
    bound: Json = {"request": request, "variables": {}}

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
