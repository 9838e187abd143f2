"""The admission policies that ship, on a real API server: of each rule writes that pass and writes that must not.

An agent is an administrator who acts as its account (so that its rights refuse nothing), with the name of a node as the
API server writes it into a pod's token. What it writes is a dry run: it goes through all but the storage.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
import yaml

from gpuplane.node.core.dra.publishing import manifest
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.core.reports.nodelabels import writable_labels
from gpuplane.node.model.config import DraSettings
from tests.cluster.controlplane import Client, ControlPlane, Headers, Json
from tests.deploy.kustomize import DEPLOY
from tests.deploy.test_policy import AGENT, NODE, TAINT
from tests.node.core.dra.nodes import node as snapshot

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("control plane")]
POLICIES = ("base", "components/dra", "components/node-feature")
NODES, EVENTS = "/api/v1/nodes", "/api/v1/namespaces/default/events"
FEATURES = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/default/nodefeatures"
RESOURCES = "/apis/resource.k8s.io/v1"
SLICES, CLAIMS = f"{RESOURCES}/resourceslices", f"{RESOURCES}/namespaces/default/resourceclaims"
MERGE = "application/merge-patch+json"
ANOTHER, NAMELESS = "may not write to another Node", "this token names no node"
DRIVER = DraSettings().driver


def acting(*nodes: str, user: str = AGENT) -> Headers:
    """The headers of an administrator who acts as a user, whose token names these nodes."""
    extra = f"Impersonate-Extra-{NODE.replace('/', '%2f')}"
    return [
        ("Impersonate-User", user),
        ("Impersonate-Group", "system:masters"),
        *((extra, each) for each in nodes),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """With the policies, which are in force a moment after they are there."""
    async with Client(control_plane) as admin:
        await admin.apply(feature_kind())
        for place in POLICIES:
            for each in yaml.safe_load_all((DEPLOY / place / "policy.yaml").read_text()):
                status, answer = await admin.apply(each)
                assert status < 300, answer

        async def in_force() -> bool:
            tried = [
                await admin.tried_as(acting("policies"), "POST", path, body, dryRun="All")
                for path, body in (
                    (NODES, {"metadata": {"name": "policies"}}),
                    (SLICES, slice_of("policies", driver="nic.example.com")),
                    (FEATURES, feature("policies", name="another")),
                )
            ]
            return [status for status, _ in tried] == [403] * len(tried)

        await admin.until(in_force)
        yield admin
        for kind in ("validatingadmissionpolicies", "validatingadmissionpolicybindings"):
            await admin.ask("DELETE", f"/apis/admissionregistration.k8s.io/v1/{kind}/gpuplane-agent-own-node-feature")
        await admin.ask("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{FEATURE_KIND}")


async def judged(admin: Client, method: str, path: str, body: Any, headers: Headers, kind: str = MERGE) -> str:
    """What the API server makes of a write that is not kept: "allowed", or why not."""
    kind = kind if method == "PATCH" else "application/json"
    status, answer = await admin.tried_as(headers, method, path, body, kind, dryRun="All")
    return "allowed" if status < 300 else f"{status} {answer['message']}"


async def hold(*wrong: Any) -> None:
    """All cases, a few at a time; each gives what is not as expected, or ""."""
    free = asyncio.Semaphore(8)

    async def one(each: Any) -> str:
        async with free:
            return str(await each)

    assert [each for each in await asyncio.gather(*map(one, wrong)) if each] == []


# Nodes


class Case(NamedTuple):
    """A change of a Node, and the verdict. `old`, `new`: merge patches; of taints their keys. `part`: "" or status."""

    old: Json
    new: Json
    verdict: str
    part: str = ""


def labels(**found: str | None) -> Json:
    return {"metadata": {"labels": found}}


def annotations(**found: str | None) -> Json:
    return {"metadata": {"annotations": found}}


def said(*conditions: Json, **fields: Any) -> Json:
    return {"status": {"conditions": [*conditions], **fields}}


def condition(kind: str, status: str = "True", **more: str) -> Json:
    return {"type": kind, "status": status, **more}


READY, WELL, ILL = condition("Ready"), condition("GPUProblem", "False"), condition("GPUProblem", reason="GPUUnhealthy")
SERVING, LAYOUTS = condition("gpuplane.io/GPUReady"), condition("gpuplane.io/MIGReady", "False", reason="Held")
DESCRIBES, ONE, NOTHING, NONE = "describe the node", "gpuplane.io/gpus and no other", "nothing else", "changes none"
STATUS = [
    (said(READY, WELL), said(READY, ILL), "allowed"),
    (said(READY), said(READY, ILL), "allowed"),
    (said(), said(ILL), "allowed"),
    (said(READY, SERVING), said(READY, ILL), "allowed"),
    (said(READY), said(READY, WELL, condition("gpuplane.io/GPUReady", "False")), "allowed"),
    (said(READY), said(READY, LAYOUTS), "allowed"),
    (said(), said(condition("GPUReady")), NOTHING),
    (said(), said(condition("MIGReady")), NOTHING),
    (said(), said(condition("Idle")), NOTHING),
    (said(READY), said(condition("Ready", "False")), NOTHING),
    (said(READY), said(ILL), NOTHING),
    ({}, {"status": {"capacity": {"cpu": "9"}}}, NOTHING),
    ({}, {"status": {"allocatable": {"nvidia.com/gpu": "9"}}}, NOTHING),
    ({}, {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}, NOTHING),
    ({"status": {"volumesInUse": ["v"]}}, {"status": {"volumesInUse": None}}, NOTHING),
    ({}, {"status": {"nodeInfo": {"kernelVersion": "9"}}}, NOTHING),
    ({}, labels(a="c"), NOTHING),
    ({}, annotations(**{"gpuplane.io/drain": "all"}), NOTHING),
]
NODE_ITSELF = [
    ({}, labels(**{"nvidia.com/gpu.count": "8"}), "allowed"),
    (labels(**{"nvidia.com/gpu.count": "8"}), labels(**{"nvidia.com/gpu.count": None}), "allowed"),
    (labels(**{"gpuplane.io/x": "8"}), labels(**{"gpuplane.io/x": "9", "nvidia.com/x": "7"}), "allowed"),
    (labels(**{"nvidia.com/gpu.deploy.driver": "true"}), labels(**{"nvidia.com/x": "1"}), "allowed"),
    ({}, labels(**{"nvidia.com/mig.config.state": "success"}), "allowed"),
    (labels(**{"nvidia.com/mig.config.state": "pending"}), labels(**{"nvidia.com/mig.config.state": None}), "allowed"),
    ({}, labels(a=None), DESCRIBES),
    ({}, labels(**{"kubernetes.io/hostname": "n"}), DESCRIBES),
    (labels(**{"node-role.kubernetes.io/x": ""}), labels(**{"node-role.kubernetes.io/x": None}), DESCRIBES),
    ({}, labels(plain="1"), DESCRIBES),
    ({}, labels(**{"nvidia.com.evil/x": "1"}), DESCRIBES),
    ({}, labels(**{"evil.nvidia.com/x": "1"}), DESCRIBES),
    ({}, labels(**{"nvidia-com/x": "1"}), DESCRIBES),
    ({}, labels(**{"nvidia.com/device-plugin.config": "x"}), DESCRIBES),
    ({}, labels(**{"nvidia.com/gpu.deploy.driver": "true"}), DESCRIBES),
    ({}, labels(**{"nvidia.com/mps.config": "x"}), DESCRIBES),
    ({}, labels(**{"nvidia.com/gpu.workload.config": "x"}), DESCRIBES),
    (labels(**{"nvidia.com/mig.config": "all-1g"}), labels(**{"nvidia.com/mig.config": None}), DESCRIBES),
    ({}, labels(**{"nvidia.com/mig.config.stat": "x"}), DESCRIBES),
    ({}, labels(**{"nvidia.com/mig.config.states": "x"}), DESCRIBES),
    ({}, labels(**{"nvidia.com/mig.config.state.x": "x"}), DESCRIBES),
    ({}, annotations(**{"gpuplane.io/gpus": "{}"}), "allowed"),
    (annotations(**{"gpuplane.io/gpus": "{}"}), annotations(**{"gpuplane.io/gpus": None}), "allowed"),
    ({}, annotations(**{"gpuplane.io/drain": "all"}), ONE),
    (annotations(**{"gpuplane.io/drain": "all"}), annotations(**{"gpuplane.io/drain": None}), ONE),
    (annotations(z="1"), annotations(z="2"), ONE),
    ({"taints": ["a", TAINT, "b"]}, {"taints": ["a", "b"]}, "allowed"),
    ({"taints": [TAINT]}, {"taints": []}, "allowed"),
    ({"taints": ["a", TAINT]}, {"taints": [TAINT]}, NONE),
    ({"taints": ["a"]}, {"taints": []}, NONE),
    ({"taints": ["a"]}, {"taints": ["a", TAINT]}, NONE),
    ({"taints": ["a"]}, {"taints": ["a", "b"]}, NONE),
    ({}, {"spec": {"unschedulable": True}}, NOTHING),
    ({"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}, NOTHING),
    ({}, {"spec": {"providerID": "x"}}, NOTHING),
    ({}, {"metadata": {"finalizers": ["example.com/x"]}}, NOTHING),
    (
        {},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]}},
        NOTHING,
    ),
]  # fmt: skip
CASES = [*(Case(*each, part="status") for each in STATUS), *(Case(*each) for each in NODE_ITSELF)]


async def patch_of(admin: Client, path: str, wanted: Json) -> Json:
    """A merge patch. Kubernetes' own taints come and go meanwhile: they are left as they are."""
    if "taints" not in wanted:
        return wanted
    live = await admin.ask("GET", path)
    taints = live["spec"].get("taints") or []
    kept = [each for each in taints if each["key"] in wanted["taints"] or "node.kubernetes.io/" in each["key"]]
    known = {each["key"] for each in taints}
    new = [{"key": key, "effect": "NoSchedule"} for key in wanted["taints"] if key not in known]
    return {"metadata": {"resourceVersion": live["metadata"]["resourceVersion"]}, "spec": {"taints": [*kept, *new]}}


async def change(admin: Client, path: str, case: Case, headers: Headers) -> str:
    """What the API server makes of a case's change of a Node."""
    verdict = "409"
    while verdict.startswith("409"):  # somebody else has written
        patch = await patch_of(admin, path, case.new)
        verdict = await judged(admin, "PATCH", f"{path}/{case.part}".rstrip("/"), patch, headers)
    return verdict


async def decide(admin: Client, name: str, case: Case) -> str:
    """What is not as expected of a case."""
    path = f"{NODES}/{name}"
    body: Json = {"metadata": {"name": name, "labels": {"a": "b"}, "annotations": {"x": "y"}}}
    if "taints" in case.old:
        body["spec"] = {"taints": [{"key": key, "effect": "NoSchedule"} for key in case.old["taints"]]}
    await admin.ask("POST", NODES, body)
    if "taints" not in case.old:
        await admin.patch(path, case.old, "status" if "status" in case.old else "")
    found = [
        await change(admin, path, case, acting("another")),
        await change(admin, path, case, acting(name)),
        await change(admin, path, case, acting(name, user=f"system:node:{name}")),
    ]
    await admin.ask("DELETE", path)
    expected = (ANOTHER, case.verdict, "allowed")
    right = all(each in verdict for each, verdict in zip(expected, found, strict=True))
    return "" if right else f"{case}: {found}"


async def test_of_a_node_what_describes_its_gpus(admin: Client) -> None:
    """Three conditions; labels that describe the node, and no instruction; one annotation; one taint, which may only
    go. On another Node nothing. Whoever is no agent is not looked at."""
    await hold(*(decide(admin, f"policy-{number}", case) for number, case in enumerate(CASES)))


KEYS = (
    "nvidia.com/gpu.count", "nvidia.com/mig.capable", "nvidia.com/mig-3g.40gb.count", "gpuplane.io/x",
    "nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/mig.config.state2",
    "nvidia.com/device-plugin.config", "nvidia.com/gpu.deploy.dcgm", "nvidia.com/mps.config",
    "nvidia.com/gpu.workload.config", "nvidia.com/gpu.deployed", "kubernetes.io/os", "topology.kubernetes.io/zone",
)  # fmt: skip


async def test_the_agent_leaves_out_what_the_policy_refuses(admin: Client) -> None:
    """And nothing else: else one label would keep all the others from being written."""
    await admin.ask("POST", NODES, {"metadata": {"name": "policy-keys"}})
    for key in KEYS:
        case = Case({}, labels(**{key: "x"}), "")
        written, _ = writable_labels({key: "x"})
        verdict = await change(admin, f"{NODES}/policy-keys", case, acting("policy-keys"))
        assert (verdict == "allowed") == bool(written), (key, verdict)
    await admin.ask("DELETE", f"{NODES}/policy-keys")


SYSTEM = "system:serviceaccount"


@pytest.mark.parametrize(
    ("user", "looked_at"),
    [
        (AGENT, True),
        (f"{SYSTEM}:elsewhere:gpuplane-agent", True),
        (f"{SYSTEM}:elsewhere:team-a-gpuplane-agent-canary", True),
        (f"{SYSTEM}:gpuplane:other", False),
        (f"{SYSTEM}:gpuplane-agent:other", False),
        (f"x{AGENT}", False),
        ("kubernetes-admin", False),
    ],
)
async def test_who_is_looked_at(admin: Client, user: str, looked_at: bool) -> None:
    """The account in whichever namespace, with what kustomize puts before and after its name."""
    name = "policy-user"
    await admin.ask("POST", NODES, {"metadata": {"name": name}})
    case = Case({}, labels(**{"nvidia.com/x": "1"}), "allowed")
    assert await change(admin, f"{NODES}/{name}", case, acting(name, user=user)) == "allowed"
    verdict = await change(admin, f"{NODES}/{name}", case, acting("another", user=user))
    assert (ANOTHER in verdict) if looked_at else verdict == "allowed"
    await admin.ask("DELETE", f"{NODES}/{name}")


@pytest.mark.parametrize("nodes", [(), ("",), ("policy-token", "another")])
async def test_a_token_that_names_no_node(admin: Client, nodes: Sequence[str]) -> None:
    """Or more than one."""
    body = {"metadata": {"name": "policy-token"}}
    await admin.ask("POST", NODES, body)
    spec = slice_of("policy-token")
    path = f"{NODES}/policy-token"
    for method, place, sent in (
        ("PATCH", path, {}),
        ("POST", SLICES, spec),
        ("POST", FEATURES, feature("policy-token")),
    ):
        assert NAMELESS in await judged(admin, method, place, sent, acting(*nodes))
    await admin.ask("DELETE", path)


async def test_an_agent_makes_and_deletes_no_node(admin: Client) -> None:
    """Nor does it speak to kubelet through the API server."""
    name, updates = "policy-made", "an agent updates its Node"
    await admin.ask("POST", NODES, {"metadata": {"name": name}})
    for method, path, body in (
        ("POST", NODES, {"metadata": {"name": "policy-new"}}),
        ("POST", NODES, {"metadata": {"generateName": "policy-"}}),
        ("DELETE", f"{NODES}/{name}", None),
        ("DELETE", NODES, None),
    ):
        assert updates in await judged(admin, method, path, body, acting(name))
    _, answer = await admin.tried_as(acting(name), "GET", f"{NODES}/{name}/proxy/pods")
    assert updates in answer["message"]
    await admin.ask("DELETE", f"{NODES}/{name}")


# Events


def event(name: str, node: str, kind: str = "Node", **more: Any) -> Json:
    about = {"kind": kind, "name": node, "uid": node}
    return {"metadata": {"name": name, "namespace": "default"}, "involvedObject": about, "reason": "Why", **more}


async def test_of_events_those_about_its_node(admin: Client) -> None:
    """An agent tells nothing of other Nodes, makes no other's Event its own, and deletes none."""
    agent, about = acting("n1"), "may only tell Events about its Node"
    for name, node in (("policy-own", "n1"), ("policy-other", "n2")):
        await admin.ask("POST", EVENTS, event(name, node))
    nobody = {"metadata": {"name": "policy-none", "namespace": "default"}, "reason": "Why"}
    for method, path, body, verdict in (
        ("POST", "", event("policy-new", "n1"), "allowed"),
        ("PATCH", "/policy-own", {"count": 2}, "allowed"),
        ("POST", "", event("policy-new", "n2"), about),
        ("POST", "", event("policy-new", "n1", kind="Pod"), about),
        ("POST", "", nobody, about),
        ("POST", "", {**nobody, "involvedObject": {"kind": "Node"}}, about),
        ("PATCH", "/policy-other", {"count": 2}, about),
        ("PATCH", "/policy-other", {"involvedObject": {"name": "n1", "uid": "n1"}}, about),
        ("DELETE", "/policy-own", None, "does nothing else"),
    ):
        assert verdict in await judged(admin, method, f"{EVENTS}{path}", body, agent), (method, path, body)
    for name in ("policy-own", "policy-other"):
        await admin.ask("DELETE", f"{EVENTS}/{name}")


# NodeFeatures

FEATURE_KIND = "nodefeatures.nfd.k8s-sigs.io"


def feature_kind() -> Json:
    """The kind of node-feature-discovery, as far as its policy looks."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": "nodefeatures", "singular": "nodefeature", "kind": "NodeFeature"}
    spec = {"group": "nfd.k8s-sigs.io", "scope": "Namespaced", "names": names, "versions": [version]}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**head, "metadata": {"name": FEATURE_KIND}, "spec": spec}


def feature(node: str, name: str = "", about: str = "", **more: str) -> Json:
    head = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature"}
    metadata = {"name": name or f"nvidia-features-for-{node}"}
    metadata |= {"labels": {"nfd.node.kubernetes.io/node-name": about or node}}  # type: ignore[dict-item]
    return {**head, "metadata": metadata, "spec": {"labels": {"nvidia.com/gpu.count": "8", **more}}}


async def test_of_node_features_that_of_its_node(admin: Client) -> None:
    """What node-feature-discovery would put on another Node is not the agent's to say."""
    agent, only = acting("n1"), "may only write the NodeFeature"
    mine, other = "nvidia-features-for-n1", "nvidia-features-for-n2"
    assert await judged(admin, "POST", FEATURES, feature("n1"), agent) == "allowed"
    for node in ("n1", "n2"):
        await admin.ask("POST", FEATURES, feature(node))
    for method, path, body, verdict in (
        ("POST", "", feature("n1", **{"node-role.kubernetes.io/x": ""}), DESCRIBES),
        ("POST", "", feature("n1", about="n2"), only),
        ("POST", "", feature("n1", name="another"), only),
        ("PATCH", f"/{mine}", {"spec": {"labels": {"nvidia.com/gpu.count": "4"}}}, "allowed"),
        ("PATCH", f"/{mine}", {"spec": None}, "allowed"),
        ("PATCH", f"/{mine}", {"spec": {"labels": {"nvidia.com/gpu.deploy.driver": "true"}}}, DESCRIBES),
        ("PATCH", f"/{mine}", {"metadata": {"labels": None}}, only),
        ("PATCH", f"/{other}", {"spec": None}, only),
        ("DELETE", f"/{other}", None, only),
        ("DELETE", f"/{mine}", None, "allowed"),
    ):
        assert verdict in await judged(admin, method, f"{FEATURES}{path}", body, agent), (method, path, body)


# ResourceSlices and claims


def slice_of(node: str, name: str = "", **spec: Any) -> Json:
    """A slice as our agent on that node writes it."""
    found = resource_slices(snapshot(), node)
    assert found is not None
    made: Json = json.loads(json.dumps(manifest(found[0], owner="uid")))
    made["metadata"] |= {"name": name or f"policy-{node}"}
    return {**made, "spec": made["spec"] | spec}


OF_NODE, OF_DRIVER, OF_POOL = "ResourceSlices of its Node", "ResourceSlices of driver", "is of a pool of this Node"
NO_OTHER = "nothing else of resource.k8s.io"


async def test_of_slices_those_of_its_node_and_driver(admin: Client) -> None:
    """An agent offers no devices of another node or driver, and takes none away."""
    others = slice_of("n2", "policy-n2")
    everywhere = slice_of("n1", "policy-all")
    everywhere["spec"] = {key: each for key, each in everywhere["spec"].items() if key != "nodeName"} | {
        "allNodes": True
    }
    foreign = slice_of("n1", "policy-nic", driver="nic.example.com")
    own = slice_of("n1", "policy-n1")
    [owner] = own["metadata"]["ownerReferences"]
    owned_by_another = {**own, "metadata": {"name": "policy-owner", "ownerReferences": [{**owner, "name": "n2"}]}}
    made = (slice_of("n1", "policy-own"), others, everywhere, foreign)
    for each in made:
        await admin.ask("POST", SLICES, {**each, "metadata": {"name": each["metadata"]["name"]}})
    touched = {"metadata": {"labels": {"a": "b"}}}
    agent = acting("n1")
    for method, path, body, verdict in (
        ("POST", "", own, "allowed"),
        ("PATCH", "/policy-own", touched, "allowed"),
        ("DELETE", "/policy-own", None, "allowed"),
        ("POST", "", slice_of("n2"), OF_NODE),
        ("PATCH", "/policy-n2", touched, OF_NODE),
        ("DELETE", "/policy-n2", None, OF_NODE),
        ("POST", "", {**everywhere, "metadata": {"name": "policy-everywhere"}}, OF_NODE),
        ("DELETE", "/policy-all", None, OF_NODE),
        ("POST", "", slice_of("n1", driver="other.example.com"), OF_DRIVER),
        ("PATCH", "/policy-nic", touched, OF_DRIVER),
        ("DELETE", "/policy-nic", None, OF_DRIVER),
        ("POST", "", slice_of("n1", pool=others["spec"]["pool"]), OF_POOL),
        ("POST", "", owned_by_another, OF_POOL),
    ):
        assert verdict in await judged(admin, method, f"{SLICES}{path}", body, agent), (method, path)
    for each in made:
        await admin.ask("DELETE", f"{SLICES}/{each['metadata']['name']}")


def result(node: str = "n1", driver: str = DRIVER) -> Json:
    return {"driver": driver, "pool": f"{node}/gpu-0", "device": "gpu-0"}


def told(**keys: str) -> Json:
    """What a driver says of a device."""
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "Prepared", "message": ""}
    return {**keys, "conditions": [{"type": "Ready", "status": "True", **since}]}


HERE, ELSEWHERE, NIC = result(), result("n2"), result(driver="nic.example.com")
OF_DEVICE, OWN_DEVICES = "have a device of this Node", "only what its devices"
CLAIM_CASES: list[tuple[list[Json], list[Json], Json, str]] = [
    ([HERE], [], {"devices": [told(**HERE)]}, "allowed"),
    ([HERE], [told(**HERE)], {"devices": [HERE]}, "allowed"),
    ([HERE, NIC], [told(**NIC)], {"devices": [told(**NIC), told(**HERE)]}, "allowed"),
    ([ELSEWHERE], [], {"devices": [told(**ELSEWHERE)]}, OF_DEVICE),
    ([NIC], [], {"devices": [told(**NIC)]}, OF_DEVICE),
    ([], [], {"devices": [told(**HERE)]}, ""),  # the server's own rule
    ([HERE], [], {"allocation": None}, NOTHING),
    ([HERE], [], {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}, NOTHING),
    ([HERE, NIC], [told(**NIC)], {"devices": [NIC]}, OWN_DEVICES),
    ([HERE, NIC], [told(**NIC)], {"devices": None}, OWN_DEVICES),
    ([HERE, ELSEWHERE], [], {"devices": [told(**ELSEWHERE)]}, OWN_DEVICES),
]


async def decide_on_claim(
    admin: Client, name: str, results: list[Json], devices: list[Json], new: Json, verdict: str
) -> str:
    """What is not as expected of an agent that writes the status of a claim."""
    requests = [{"name": f"r{number}", "exactly": {"deviceClassName": "x"}} for number in range(len(results) or 1)]
    path = f"{CLAIMS}/{name}"
    await admin.ask("POST", CLAIMS, {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}})
    if results:
        allocated = [{"request": f"r{number}", **each} for number, each in enumerate(results)]
        status = {"allocation": {"devices": {"results": allocated}}, "devices": devices}
        await admin.patch(path, {"status": status}, "status")
    agent = acting("n1")
    found = await judged(admin, "PATCH", f"{path}/status", {"status": new}, agent)
    others = [
        await judged(admin, "PATCH", path, {"metadata": {"labels": {"a": "b"}}}, agent),
        await judged(admin, "DELETE", path, None, agent),
    ]
    await admin.ask("DELETE", path)
    refused = found != "allowed" if verdict == "" else verdict in found
    return "" if refused and all(NO_OTHER in each for each in others) else f"{new}: {found}, {others}"


async def test_of_claims_the_status_of_its_own_devices(admin: Client) -> None:
    """Nothing else of a claim, nor of any other object of the group."""
    await hold(*(decide_on_claim(admin, f"policy-{number}", *each) for number, each in enumerate(CLAIM_CASES)))
    body = {"metadata": {"name": "policy"}, "spec": {}}
    assert NO_OTHER in await judged(admin, "POST", f"{RESOURCES}/deviceclasses", body, acting("n1"))
