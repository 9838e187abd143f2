"""Claims get the devices that kube-scheduler 1.36.2 gave them: 189 recorded cases, decided again.

The first line has what many cases share: slices and classes by number, messages by number. Each other line is a case,
which stands alone: slices, classes, claims and templates as the API server kept them, and steps: `pods` come one after
another, or somebody writes something. `answers` are the nodes and messages of the pods after a step (null: the pod
waits), `claims` what their claims then had: results (request, "driver pool device", more), config, `on` a node or
`nodes`, who reserved them, and the binding `conditions` that their driver had made true.

What other components did (claims of templates, reservations of pods that are gone) is done here by hand. The nodes are
the recorded ones: node-a, node-b, and one on which no pod may run. Of nodes that are equally good the real scheduler
takes any; then its choice has to be one of ours.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuplane.kubernetes.objects import ApiNode, ApiPod
from gpuplane.sandbox.scheduler.cel import check_expression
from gpuplane.sandbox.scheduler.claims import Allocation, ClaimStatus, Consumer, DeviceStatus, ResourceClaim
from gpuplane.sandbox.scheduler.objects import from_object, to_object
from gpuplane.sandbox.scheduler.scheduling import Cluster, Decision, decide, find_claims, is_ready_to_bind
from gpuplane.sandbox.scheduler.slices import DeviceClass, ResourceSlice

Json = dict[str, Any]
RECORDED = Path(__file__).parent / "testdata/kubernetes-1.36/allocation.jsonl"
COMMON, *CASES = (json.loads(line) for line in RECORDED.read_text().splitlines())
NODES = tuple(
    from_object({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **rack}}}, ApiNode)
    for name, rack in {
        "gpu-node-1": {},
        "node-a": {"example.com/rack": "r1"},
        "node-b": {"example.com/rack": "r2"},
    }.items()
)
ELSEWHERE = {"key": "metadata.name", "operator": "NotIn", "values": ["gpu-node-1"]}
REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [ELSEWHERE]}]}}

LEFT_OUT = {
    "ext/": "extended resources that classes stand for",
    "mig/(same-parent|tainted-full-then-mig)": "candidates that are turned down keep their counters (k/k#140436)",
    "taint/noexecute-evicts|reserved/in-use-by": "kube-controller-manager evicts pods, and ends reservations of no pod",
    "reserved/(pre-allocated-by-hand$|256)": "the API server refuses what is written: test_scheduler.py",
}
"""What is not decided, and why."""


def left_out(case: str) -> str:
    return next((why for pattern, why in LEFT_OUT.items() if re.match(pattern, case)), "")


class Replay:
    """One case: what the API server has, and what becomes of the pods."""

    def __init__(self, case: Json) -> None:
        self.slices: dict[str, ResourceSlice] = {}
        self.claims: dict[str, ResourceClaim] = {}
        self.templates = {each["metadata"]["name"]: each for each in case.get("ResourceClaimTemplate", ())}
        self.classes = tuple(from_object(self.shared(each), DeviceClass) for each in case["classes"])
        self.pods: dict[str, ApiPod] = {}
        self.decisions: dict[str, Decision] = {}
        self.put_slices(case["slices"])
        for each in case.get("ResourceClaim", ()):
            self.put_claim(each)

    @staticmethod
    def shared(found: Any) -> Json:
        shared: Json = COMMON["common"][found] if isinstance(found, int) else found
        return shared

    def put_slices(self, slices: list[Any]) -> None:
        for each in slices:
            found = from_object(self.shared(each), ResourceSlice)
            self.slices[found.metadata.name] = found

    def put_claim(self, found: Json) -> None:
        metadata = {"namespace": "default", **found["metadata"]}
        claim = from_object({**found, "metadata": metadata}, ResourceClaim)
        requests = [each.exactly for each in claim.spec.devices.requests if each.exactly]
        if any(check_expression(each.cel.expression) for want in requests for each in want.selectors if each.cel):
            return  # the API server does not take it
        self.claims[claim.key] = claim

    def put_pod(self, found: Json) -> None:
        """The pod, and the claims of its templates."""
        name, space = found["name"], found.get("namespace", "default")
        metadata = {"name": name, "namespace": space, "uid": f"uid-{name}"}
        wanted, made = [], []
        for each, source in found.get("claims", {}).items():
            if isinstance(source, str):
                wanted.append({"name": each, "resourceClaimName": source})
                continue
            wanted.append({"name": each, "resourceClaimTemplateName": source["template"]})
            if template := self.templates.get(source["template"]):
                owner = {"kind": "Pod", "name": name, "uid": metadata["uid"]}
                head = {"name": f"{name}-{each}", "namespace": space, "ownerReferences": [owner]}
                self.put_claim({"metadata": head, "spec": template["spec"]["spec"]})
                made.append({"name": each, "resourceClaimName": f"{name}-{each}"})
        affinity = {"nodeAffinity": REQUIRED}
        spec = {"resourceClaims": wanted, "nodeSelector": found.get("nodeSelector"), "affinity": affinity}
        pod = {"metadata": metadata, "spec": spec, "status": {"resourceClaimStatuses": made}}
        self.pods[name] = from_object(pod, ApiPod)

    def set_status(self, claim: str, status: Json) -> None:
        reserved = status.get("reservedFor", [])
        if isinstance(reserved, dict):
            reserved = [{**reserved["of"], "name": f"x{n}", "uid": f"u{n}"} for n in range(reserved["times"])]
        self.replace_status(f"default/{claim}", from_object({**status, "reservedFor": reserved}, ClaimStatus))

    def replace_status(self, key: str, status: ClaimStatus) -> None:
        claim = self.claims[key]
        self.claims[key] = ResourceClaim(claim.metadata, claim.spec, status)

    def delete_pod(self, name: str) -> None:
        """With its last pod a claim's allocation ends, as kube-controller-manager does it."""
        del self.pods[name]
        for key, claim in list(self.claims.items()):
            kept = tuple(each for each in claim.status.reserved_for if each.name != name)
            if kept != claim.status.reserved_for:
                self.replace_status(key, ClaimStatus(claim.status.allocation if kept else None, kept))

    def decide(self, name: str, node: str | None) -> None:
        """What becomes of a pod; of nodes that are as good, the one that was recorded."""
        pod = self.pods[name]
        cluster = Cluster(NODES, tuple(self.slices.values()), self.classes, tuple(self.claims.values()))
        decision = decide(cluster, pod)
        if node in decision.as_good:
            only = tuple(each for each in NODES if each.metadata.name == node)
            decision = decide(Cluster(only, cluster.slices, cluster.classes, cluster.claims), pod)
        self.decisions[name] = decision
        if decision.deallocate:
            self.replace_status(f"default/{decision.deallocate}", ClaimStatus())
            self.decide(name, node)
        if decision.outcome != "scheduled":
            return
        status = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
        for each in pod.spec.resource_claims or ():
            claim = each.resource_claim_name or status[each.name]
            key = f"{pod.metadata.namespace}/{claim}"
            held = self.claims[key].status
            consumer = {"resource": "pods", "name": name, "uid": pod.metadata.uid}
            allocation = decision.allocations.get(str(claim), held.allocation)
            self.replace_status(
                key, ClaimStatus(allocation, (*held.reserved_for, from_object(consumer, Consumer)), held.devices)
            )

    def meet_conditions(self, recorded: Mapping[str, Json]) -> None:
        """What drivers say of the devices of their claims."""
        for claim in list(self.claims.values()):
            each = recorded.get(claim.metadata.name, {})
            if not each.get("conditions") or not claim.status.allocation:
                continue
            true = tuple({"type": condition, "status": "True"} for condition in each["conditions"])
            devices = tuple(DeviceStatus(*result.id, true) for result in claim.status.allocation.devices.results)
            status = ClaimStatus(claim.status.allocation, claim.status.reserved_for, devices)
            self.replace_status(claim.key, status)

    def answer(self, name: str) -> Any:
        """What became of a pod, as the file has it. Null: the scheduler waits, for a claim or for its devices."""
        decision, pod = self.decisions[name], self.pods[name]
        match decision.outcome:
            case "waiting":
                return None
            case "scheduled":
                cluster = Cluster(claims=tuple(self.claims.values()))
                ready = all(is_ready_to_bind(claim) for claim in find_claims(cluster, pod) or ())
                return decision.node if ready else None
            case "unschedulable":
                return {"Unschedulable": decision.message}
        return {"SchedulerError": decision.message}

    def play(self, step: Json) -> None:
        match step:
            case {"pods": pods}:
                for each in pods:
                    self.put_pod(each)
            case {"status": statuses}:
                for claim, status in statuses.items():
                    self.set_status(claim, status)
            case {"replace": slices}:
                self.put_slices(slices)
            case {"create": {"ResourceSlice": found}}:
                self.put_slices([found])
            case {"create": {"Pod": found}}:
                self.put_pod(found)
                self.decide(found["name"], None)
            case {"delete-slices": names}:
                for name in names:
                    del self.slices[name]
            case {"delete-pods": names}:
                for name in names:
                    self.delete_pod(name)
        for name, answer in step.get("answers", {}).items():
            if name not in self.decisions or self.decisions[name].outcome != "scheduled":
                self.decide(name, answer if isinstance(answer, str) else None)


def recorded_answer(answer: Any) -> Any:
    """A node, or the reason and message of a pod without one; None where it was not looked at."""
    return COMMON["messages"][answer] if isinstance(answer, int) else answer


def show(claim: ResourceClaim) -> Json:
    """What a claim has, as the file has it."""
    held = to_object(claim.status.allocation or Allocation())
    found: Json = {"results": []}
    for each in held.get("devices", {}).get("results", ()):
        request, place = each.pop("request"), " ".join(each.pop(key) for key in ("driver", "pool", "device"))
        found["results"].append(
            [request, place, *([each | ({"shareID": "…"} if "shareID" in each else {})] if each else [])]
        )
    if config := held.get("devices", {}).get("config"):
        found["config"] = config
    match held.get("nodeSelector"):
        case {"nodeSelectorTerms": [{"matchFields": [{"operator": "In", "values": [node]}], **more}]} if not more:
            found["on"] = node
        case None:
            pass
        case selector:
            found["nodes"] = selector
    if claim.status.devices:
        found["conditions"] = [condition["type"] for each in claim.status.devices for condition in each.conditions]
    names = [each.name for each in claim.status.reserved_for]
    if names:
        found["reserved"] = names if len(names) <= 20 else len(names)
    return found


@pytest.mark.parametrize("case", [each for each in CASES if not left_out(each["case"])], ids=lambda case: case["case"])
def test_a_recorded_case(case: Mapping[str, Any]) -> None:
    replay = Replay(dict(case))

    for step in case["steps"]:
        replay.play(step)

        replay.meet_conditions(step.get("claims", {}))
        for name, answer in step.get("answers", {}).items():
            assert replay.answer(name) == recorded_answer(answer), name
        if "answers" in step:
            held = {claim.metadata.name: show(claim) for claim in replay.claims.values() if claim.status.allocation}
            assert held == step.get("claims", {})
