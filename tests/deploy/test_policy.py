"""The policy that binds an agent's writes to its own Node, as it stands. tests/cluster/test_policies.py tries it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

POLICY = Path(__file__).parents[2] / "deploy/base/policy.yaml"
AGENT = "system:serviceaccount:gpuplane:gpuplane-agent"
NODE = "authentication.kubernetes.io/node-name"

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
    """As they stand: whoever changes one sees it here, also where no control plane can evaluate it."""
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
        "!variables.isEvent || (has(object.involvedObject.kind) && object.involvedObject.kind == 'Node' "
        "&& has(object.involvedObject.name) && object.involvedObject.name == variables.ownNode "
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


def test_the_taint_is_that_of_the_component() -> None:
    """Which tells the agent its key, and has its pods come in spite of it."""
    spec = yaml.safe_load((POLICY.parents[1] / "components/startup-taint/daemonset.yaml").read_text())
    pod = spec["spec"]["template"]["spec"]
    base = yaml.safe_load((POLICY.parent / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    assert pod["containers"][0]["env"] == [{"name": "STARTUP_TAINT", "value": TAINT}]
    assert pod["tolerations"] == [*base["tolerations"], {"key": TAINT, "operator": "Exists"}]
