"""The policy that binds an agent's writes to its own Node: its expressions, evaluated by Google's CEL."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.node.core.reports.nodelabels import writable_labels

POLICY = Path(__file__).parents[2] / "deploy/base/policy.yaml"
AGENT = "system:serviceaccount:gpuplane:gpuplane-agent"
NODE = "authentication.kubernetes.io/node-name"
OURS = {NODE: ["gpu-1"], "authentication.kubernetes.io/pod-name": ["gpuplane-agent-x"]}

METADATA = ["labels", "annotations", "finalizers", "ownerReferences"]
STATUS = [
    "addresses", "allocatable", "capacity", "config", "daemonEndpoints", "declaredFeatures", "features",
    "images", "nodeInfo", "phase", "runtimeHandlers", "volumesAttached", "volumesInUse",
]  # fmt: skip

SPEC = [
    "configSource", "externalID", "podCIDR", "podCIDRs", "podPreemptionPolicy", "providerID", "unschedulable",
]  # fmt: skip
TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/gpuplane"
DESCRIBES = (
    "key == 'nvidia.com/mig.config.state' || (key.matches('^(nvidia[.]com|gpuplane[.]io)/.+$') && !key.matches( "
    "'^nvidia[.]com/(device-plugin[.]config|mig[.]config.*|gpu[.]deploy[.].*|mps[.]config|gpu[.]workload[.]config)$'))"
)

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
        "isNode": "!variables.isEvent && request.operation == 'UPDATE' "
        "&& (!has(request.subResource) || request.subResource == '')",
        **{
            f"{old}{part.capitalize() if old else part}": (
                f"variables.isNode && has({whole}.metadata.{part}) ? {whole}.metadata.{part} : {{}}"
            )
            for part in ("labels", "annotations")
            for old, whole in (("", "object"), ("old", "oldObject"))
        },
        **{
            name: f"variables.isNode && has({o}.spec) && has({o}.spec.taints) ? {o}.spec.taints : []"
            for name, o in (("taints", "object"), ("oldTaints", "oldObject"))
        },
        "changedLabels": "variables.labels.filter(key, !(key in variables.oldLabels) "
        "|| variables.oldLabels[key] != variables.labels[key]) "
        "+ variables.oldLabels.filter(key, !(key in variables.labels))",
    }
    same = "{0}.all(field, (field in object.{1}) == (field in oldObject.{1}) && (!(field in object.{1}) "
    same += "|| object.{1}[field] == oldObject.{1}[field]))"
    others = "(has({0}.status.conditions) ? {0}.status.conditions"
    others += ".filter(each, !(each.type in ['GPUProblem', 'gpuplane.io/GPUReady', 'gpuplane.io/MIGReady'])) : [])"
    assert [_plain(each["expression"]) for each in spec["validations"]] == [
        "variables.ownNode != ''",
        "request.operation == 'UPDATE' || (variables.isEvent && request.operation == 'CREATE')",
        "variables.isEvent || (has(request.name) && request.name == variables.ownNode)",
        "!variables.isEvent || (has(object.involvedObject) && object.involvedObject.kind == 'Node' "
        "&& object.involvedObject.name == variables.ownNode "
        "&& (request.operation == 'CREATE' || object.involvedObject == oldObject.involvedObject))",
        f"!variables.isStatus || ( {same.format(METADATA, 'metadata')} && {same.format(STATUS, 'status')} "
        f"&& {others.format('object')} == {others.format('oldObject')} )",
        f"variables.changedLabels.all(key, {DESCRIBES})",
        "variables.annotations.all(key, key == 'gpuplane.io/gpus' || (key in variables.oldAnnotations "
        "&& variables.oldAnnotations[key] == variables.annotations[key])) "
        "&& variables.oldAnnotations.all(key, key == 'gpuplane.io/gpus' || key in variables.annotations)",
        "!variables.isNode || variables.taints == variables.oldTaints "
        f"|| variables.taints == variables.oldTaints.filter(each, each.key != '{TAINT}')",
        f"!variables.isNode || ( {same.format(['finalizers', 'ownerReferences'], 'metadata')} "
        f"&& has(object.spec) == has(oldObject.spec) && (!has(object.spec) || {same.format(SPEC, 'spec')}) )",
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
    assert verdict in judge(spec, request_, node(), node())


def node(metadata: Mapping[str, Any] = {}, conditions: Any = None, **status: Any) -> Json:
    """A Node as the API server shows it to the policy."""
    fields = {"capacity": {"cpu": "8"}, "nodeInfo": {"architecture": "arm64"}} | status
    fields |= {} if conditions is None else {"conditions": conditions}
    return {"metadata": {"name": "gpu-1", "labels": {"a": "b"}, **metadata}, "status": fields}


SERVING = {"type": "gpuplane.io/GPUReady", "status": "True"}
LAYOUTS = {"type": "gpuplane.io/MIGReady", "status": "False", "reason": "Held"}
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
        (node(conditions=[READY]), node(conditions=[READY, LAYOUTS]), "allowed"),
        (node(), node(conditions=[{"type": "GPUReady", "status": "True"}]), "nothing else"),
        (node(), node(conditions=[{"type": "MIGReady", "status": "True"}]), "nothing else"),
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
def test_of_the_status_three_conditions(spec: Json, old: Json, new: Json, verdict: str) -> None:
    """Where an agent writes its Node's status, all but its conditions is as it was, labels and annotations too."""
    request = write() | {"subResource": "status"}

    assert verdict in judge(spec, request, new, old)
    assert "may not write to another" in judge(spec, request | {"name": "gpu-2"}, new, old)


def labelled(**labels: str) -> Json:
    """A Node with these labels."""
    return node({"labels": {"a": "b", **labels}})


def annotated(**annotations: str) -> Json:
    return node({"annotations": {"x": "y", **annotations}})


def tainted(*keys: str, **spec: Any) -> Json:
    return node() | {"spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": key} for key in keys], **spec}}


DEPLOYED = {"nvidia.com/gpu.deploy.driver": "true"}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (labelled(), labelled(**{"nvidia.com/gpu.count": "8"}), "allowed"),
        (labelled(**{"nvidia.com/gpu.count": "8"}), labelled(), "allowed"),
        (labelled(**{"gpuplane.io/x": "8"}), labelled(**{"gpuplane.io/x": "9", "nvidia.com/x": "7"}), "allowed"),
        (labelled(**DEPLOYED), labelled(**DEPLOYED), "allowed"),
        (node({"labels": {}}), node(), "describe the node"),
        (labelled(), labelled(**{"kubernetes.io/hostname": "n"}), "describe the node"),
        (labelled(**{"node-role.kubernetes.io/x": ""}), labelled(), "describe the node"),
        (labelled(), labelled(plain="1"), "describe the node"),
        (labelled(), labelled(**{"nvidia.com.evil/x": "1"}), "describe the node"),
        (labelled(), labelled(**{"evil.nvidia.com/x": "1"}), "describe the node"),
        (labelled(), labelled(**{"nvidia_com/x": "1"}), "describe the node"),
        (labelled(), labelled(**{"nvidia.com/device-plugin.config": "x"}), "describe the node"),
        (labelled(), labelled(**{"nvidia.com/gpu.deploy.driver": "true"}), "describe the node"),
        (labelled(**{"nvidia.com/mig.config": "all-1g"}), labelled(), "describe the node"),
        (labelled(), labelled(**{"nvidia.com/mig.config.state": "success"}), "allowed"),
        (labelled(**{"nvidia.com/mig.config.state": "pending"}), labelled(), "allowed"),
        (labelled(), labelled(**{"nvidia.com/mig.config.stat": "x"}), "describe the node"),
        (labelled(), labelled(**{"nvidia.com/mig.config.states": "x"}), "describe the node"),
        (labelled(), labelled(**{"nvidia.com/mig.config.state.x": "x"}), "describe the node"),
        (annotated(), annotated(**{"gpuplane.io/gpus": "{}"}), "allowed"),
        (annotated(**{"gpuplane.io/gpus": "{}"}), annotated(), "allowed"),
        (annotated(), annotated(**{"gpuplane.io/drain": "all"}), "gpuplane.io/gpus and no other"),
        (annotated(**{"gpuplane.io/drain": "all"}), annotated(), "gpuplane.io/gpus and no other"),
        (annotated(z="1"), annotated(z="2"), "gpuplane.io/gpus and no other"),
        (tainted("a", TAINT, "b"), tainted("a", "b"), "allowed"),
        (tainted(TAINT), node() | {"spec": {"podCIDR": "10.0.0.0/24"}}, "allowed"),
        (tainted("a", TAINT), tainted(TAINT), "changes none"),
        (tainted("a"), tainted(), "changes none"),
        (tainted("a"), tainted("a", TAINT), "changes none"),
        (tainted("a"), tainted("a", "b"), "changes none"),
        (tainted("a", unschedulable=True), tainted("a"), "nothing else"),
        (tainted("a"), tainted("a", providerID="x"), "nothing else"),
        (node(), node() | {"spec": {}}, "nothing else"),
        (node(), node({"finalizers": ["x"]}), "nothing else"),
        (node({"ownerReferences": [{"uid": "1"}]}), node(), "nothing else"),
        (node({"managedFields": []}), node({"managedFields": [{"manager": "gpuplane"}]}), "allowed"),
    ],
)  # fmt: skip
def test_of_the_node_labels_one_annotation_and_one_taint(spec: Json, old: Json, new: Json, verdict: str) -> None:
    """Labels that describe the node, and no instruction; the annotation; the startup taint, which may only go."""
    assert verdict in judge(spec, write(), new, old)
    assert "may not write to another" in judge(spec, write(name="gpu-2"), new, old)
    assert judge(spec, write(user="system:node:gpu-1"), new, old) == "not looked at"


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.com/gpu.count", "nvidia.com/mig.capable", "nvidia.com/mig-3g.40gb.count", "gpuplane.io/x",
        "nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/mig.config.state2",
        "nvidia.com/device-plugin.config",
        "nvidia.com/gpu.deploy.dcgm", "nvidia.com/mps.config", "nvidia.com/gpu.workload.config",
        "nvidia.com/gpu.deployed", "kubernetes.io/os", "topology.kubernetes.io/zone",
    ],
)  # fmt: skip
def test_the_agent_leaves_out_what_the_policy_refuses(spec: Json, key: str) -> None:
    """And nothing else: else one label would keep all the others from being written."""
    written, _ = writable_labels({key: "x"})
    verdict = judge(spec, write(), labelled(**{key: "x"}), labelled())
    assert (verdict == "allowed") == bool(written)


def test_the_taint_is_that_of_the_component() -> None:
    """Which tells the agent its key, and has its pods come in spite of it."""
    spec = yaml.safe_load((POLICY.parents[1] / "components/startup-taint/daemonset.yaml").read_text())
    pod = spec["spec"]["template"]["spec"]
    base = yaml.safe_load((POLICY.parent / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["containers"][0]["env"] == [{"name": "STARTUP_TAINT", "value": TAINT}]
    assert pod["tolerations"] == [*base["tolerations"], {"key": TAINT, "operator": "Exists"}]


def feature(name: str = "nvidia-features-for-gpu-1", node: str = "gpu-1", **labels: str) -> Json:
    """A NodeFeature, as far as its policy looks."""
    metadata = {"name": name, "labels": {"nfd.node.kubernetes.io/node-name": node}}
    return {"metadata": metadata, "spec": {"labels": {"nvidia.com/gpu.count": "8", **labels}}}


@pytest.mark.parametrize(
    ("operation", "new", "verdict"),
    [
        ("CREATE", feature(), "allowed"),
        ("UPDATE", feature(), "allowed"),
        ("DELETE", None, "allowed"),
        ("CREATE", {**feature(), "spec": {}}, "allowed"),
        ("CREATE", feature("nvidia-features-for-gpu-2"), "may only write the NodeFeature"),
        ("CREATE", feature(node="gpu-2"), "may only write the NodeFeature"),
        ("UPDATE", {"metadata": {"name": "nvidia-features-for-gpu-1"}, "spec": {}}, "may only write the NodeFeature"),
        ("CONNECT", None, "may only write the NodeFeature"),
        ("CREATE", feature(**{"node-role.kubernetes.io/x": ""}), "describe the node"),
        ("UPDATE", feature(**{"nvidia.com/gpu.deploy.driver": "true"}), "describe the node"),
    ],
)
def test_of_node_features_that_of_its_node(operation: str, new: Any, verdict: str) -> None:
    """components/node-feature: what node-feature-discovery would put on another Node is not the agent's to say."""
    path = POLICY.parents[1] / "components/node-feature/policy.yaml"
    policy, binding = yaml.safe_load_all(path.read_text())
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    name = new["metadata"]["name"] if new else "nvidia-features-for-gpu-1"
    request = write(operation, name=name) | {"resource": {"group": "nfd.k8s-sigs.io", "resource": "nodefeatures"}}
    assert verdict in judge(policy["spec"], request, new, feature())
    if operation == "DELETE":
        other = {**request, "name": "nvidia-features-for-gpu-2"}
        assert "may only write the NodeFeature" in judge(policy["spec"], other, None, feature())
    assert "names no node" in judge(policy["spec"], {**request, "userInfo": {"username": AGENT}}, new, feature())


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


def plain_value(found: Any) -> Any:
    """A value of the library, which it does not take back, as Python's."""
    if isinstance(found, dict):
        return {plain_value(key): plain_value(each) for key, each in found.items()}
    if isinstance(found, list):
        return [plain_value(each) for each in found]
    return plain_value(found.value()) if hasattr(found, "value") else found


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
        bound["variables"][each["name"]] = plain_value(value(each["expression"]))
    for each in spec["validations"]:
        if value(each["expression"]) is not True:
            return str(each.get("message") or value(each["messageExpression"]))
    return "allowed"
