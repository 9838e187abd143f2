"""components/dra and the examples: who may write slices and claims, and manifests that the driver can serve."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.node.core.dra.publishing import manifest
from gpuplane.node.core.dra.slices import resource_slices
from gpuplane.node.core.kinds.attributes import UNKNOWN
from gpuplane.node.core.kinds.nvidia.claimconfigs import gpu_config
from gpuplane.node.kubelet.dra.registration import PLUGIN_DIRECTORY, REGISTRATION_DIRECTORY
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, OpaqueConfig
from gpuplane.node.model.config import DraSettings
from tests.deploy.kustomize import DEPLOY
from tests.deploy.test_overlays import DRA_DIRECTORIES
from tests.deploy.test_policy import AGENT, NODE, OURS, judge, write
from tests.node.core.dra.nodes import node

COMPONENT, EXAMPLES = DEPLOY / "components/dra", sorted((DEPLOY / "examples/dra").glob("*.yaml"))
DRIVER = DraSettings().driver
Json = dict[str, Any]


@pytest.fixture
def spec() -> Json:
    """The policy."""
    policy, binding = yaml.safe_load_all((COMPONENT / "policy.yaml").read_text())
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    found: Json = policy["spec"]
    assert found["failurePolicy"] == "Fail"
    [rule] = found["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": ["resource.k8s.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]
    }  # fmt: skip
    return found


def request(operation: str, resource: str = "resourceslices", part: str = "", **more: Any) -> Json:
    found = write(operation, **more) | {"resource": {"group": "resource.k8s.io", "version": "v1", "resource": resource}}
    return found | ({"subResource": part} if part else {})


def slice_of(node_name: str = "gpu-1", driver: str = DRIVER, **fields: Any) -> Json:
    """A slice as our agent on that node writes it."""
    found = resource_slices(node(), node_name)
    assert found is not None
    made = json.loads(json.dumps(manifest(found[0], owner="uid")))
    made["spec"] |= {"driver": driver, **fields}
    return dict(made)


OTHER = slice_of("gpu-2")
ALL_NODES = {key: each for key, each in slice_of()["spec"].items() if key != "nodeName"} | {"allNodes": True}
OWNED = slice_of()["metadata"]["ownerReferences"][0]


@pytest.mark.parametrize(
    ("operation", "new", "old", "verdict"),
    [
        ("CREATE", slice_of(), None, "allowed"),
        ("UPDATE", slice_of(), slice_of(), "allowed"),
        ("DELETE", None, slice_of(), "allowed"),
        ("CREATE", OTHER, None, "ResourceSlices of its Node"),
        ("UPDATE", slice_of(), OTHER, "ResourceSlices of its Node"),
        ("UPDATE", OTHER, slice_of(), "ResourceSlices of its Node"),
        ("DELETE", None, OTHER, "ResourceSlices of its Node"),
        ("CREATE", {**slice_of(), "spec": ALL_NODES}, None, "ResourceSlices of its Node"),
        ("DELETE", None, {**slice_of(), "spec": ALL_NODES}, "ResourceSlices of its Node"),
        ("CREATE", slice_of(driver="nic.example.com"), None, "of driver"),
        ("UPDATE", slice_of(driver="nic.example.com"), slice_of(), "of driver"),
        ("DELETE", None, slice_of(driver="nic.example.com"), "of driver"),
        ("CREATE", slice_of(pool=OTHER["spec"]["pool"]), None, "pool of this Node"),
        ("CREATE", {**slice_of(), "metadata": {"name": "s", "ownerReferences": [{**OWNED, "name": "gpu-2"}]}}, None,
            "pool of this Node"),
        ("CONNECT", None, None, "nothing else of resource.k8s.io"),
    ],
)  # fmt: skip
def test_of_slices_those_of_its_node_and_driver(spec: Json, operation: str, new: Any, old: Any, verdict: str) -> None:
    """Whoever is not an agent is not looked at; a token that names no node may write nothing."""
    asked = request(operation)
    assert verdict in judge(spec, asked, new, old)
    assert judge(spec, request(operation, user="system:node:gpu-1"), new, old) == "not looked at"
    assert "names no node" in judge(spec, request(operation, extra=None), new, old)
    assert "names no node" in judge(spec, request(operation, extra={NODE: ["gpu-1", "gpu-2"]}), new, old)
    assert judge(spec, {**asked, "userInfo": {"username": f"{AGENT}-blue", "extra": OURS}}, new, old) != "not looked at"


def result(node_name: str = "gpu-1", driver: str = DRIVER, **more: Any) -> Json:
    return {"driver": driver, "pool": f"{node_name}/gpu-0", "device": "gpu-0", **more}


def claim(*results: Json, devices: Any = None, **status: Any) -> Json:
    """A claim that these devices were allocated to."""
    fields = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": [{"name": "p", "uid": "u"}]}
    said = {} if devices is None else {"devices": devices}
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": {}, "status": {**fields, **said, **status}}


READY = {"conditions": [{"type": "Ready", "status": "True"}]}
HERE, ELSEWHERE, NIC = result(), result("gpu-2"), result(driver="nic.example.com")


@pytest.mark.parametrize(
    ("new", "old", "verdict"),
    [
        (claim(HERE, devices=[{**HERE, **READY}]), claim(HERE), "allowed"),
        (claim(HERE, devices=[HERE]), claim(HERE, devices=[{**HERE, **READY}]), "allowed"),
        (claim(HERE, NIC, devices=[NIC, HERE]), claim(HERE, NIC, devices=[NIC]), "allowed"),
        (claim(ELSEWHERE, devices=[ELSEWHERE]), claim(ELSEWHERE), "device of this Node"),
        (claim(ELSEWHERE, devices=[HERE]), claim(ELSEWHERE), "device of this Node"),
        (claim(NIC, devices=[NIC]), claim(NIC), "device of this Node"),
        ({"metadata": {}, "status": {"devices": [HERE]}}, {"metadata": {}}, "device of this Node"),
        (claim(HERE), claim(ELSEWHERE), "device of this Node"),
        (claim(HERE, HERE), claim(HERE), "nothing else"),
        (claim(HERE, reservedFor=[]), claim(HERE), "nothing else"),
        (claim(HERE) | {"metadata": {"labels": {"a": "b"}}}, claim(HERE), "nothing else"),
        (claim(HERE, NIC, devices=[{**NIC, **READY}]), claim(HERE, NIC, devices=[NIC]), "only what its devices"),
        (claim(HERE, NIC), claim(HERE, NIC, devices=[NIC]), "only what its devices"),
        (claim(HERE, ELSEWHERE, devices=[ELSEWHERE]), claim(HERE, ELSEWHERE), "only what its devices"),
    ],
)
def test_of_claims_the_status_of_its_own_devices(spec: Json, new: Json, old: Json, verdict: str) -> None:
    """Nothing else of a claim, nor of any other object of the group."""
    assert verdict in judge(spec, request("UPDATE", "resourceclaims", "status"), new, old)
    assert "nothing else of resource.k8s.io" in judge(spec, request("UPDATE", "resourceclaims"), new, old)
    assert "nothing else of resource.k8s.io" in judge(spec, request("DELETE", "resourceclaims"), None, old)
    assert "nothing else of resource.k8s.io" in judge(spec, request("CREATE", "deviceclasses"), new)


def test_the_component_has_the_drivers_name_and_kubelets_directories() -> None:
    """Those of the code."""
    assert set(DRA_DIRECTORIES) == {REGISTRATION_DIRECTORY, f"{PLUGIN_DIRECTORY}/{DRIVER}"}
    role = next(yaml.safe_load_all((COMPONENT / "rbac.yaml").read_text()))
    assert [rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule] == [[DRIVER]]
    device_class = yaml.safe_load((COMPONENT / "deviceclass.yaml").read_text())
    assert device_class["metadata"]["name"] == "gpu.nvidia.com"
    [selector] = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"].startswith(f"device.driver == '{DRIVER}' && ")
    assert "extendedResourceName" not in device_class["spec"]


def documents(path: Path) -> list[Json]:
    return list(yaml.safe_load_all(path.read_text()))


def specs(path: Path) -> Iterator[Json]:
    """The devices of the claims and templates of an example."""
    for each in documents(path):
        if each["kind"] == "ResourceClaim":
            yield each["spec"]["devices"]
        elif each["kind"] == "ResourceClaimTemplate":
            yield each["spec"]["spec"]["devices"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_holds_together(path: Path) -> None:
    """Its classes, claims and requests are there, and its configuration is one that the agent follows."""
    found = documents(path)
    classes = {"gpu.nvidia.com", *(each["metadata"]["name"] for each in found if each["kind"] == "DeviceClass")}
    names = {each["metadata"]["name"] for each in found}
    for devices in specs(path):
        for asked in devices["requests"]:
            kinds = asked.get("firstAvailable") or [asked["exactly"]]
            assert {each["deviceClassName"] for each in kinds} <= classes
        requests = {asked["name"] for asked in devices["requests"]}
        for each in (*devices.get("config", ()), *devices.get("constraints", ())):
            assert set(each["requests"]) <= requests
        for each in devices.get("config", ()):
            entry = OpaqueConfig(json.dumps(each["opaque"]["parameters"]), tuple(each["requests"]))
            device = AllocatedDevice(each["requests"][0], "n/gpu-0", "gpu-0")
            assert gpu_config(AllocatedClaim(ClaimName("d", "c", "u"), (device,), (entry,)), device) is not None
            assert each["opaque"]["driver"] == DRIVER
    for pod in (each for each in found if each["kind"] == "Pod"):
        claims = {each["name"] for each in pod["spec"]["resourceClaims"]}
        assert {each.get("resourceClaimTemplateName") or each["resourceClaimName"]
            for each in pod["spec"]["resourceClaims"]} <= names  # fmt: skip
        for container in pod["spec"]["containers"]:
            assert {each["name"] for each in container["resources"]["claims"]} <= claims


@pytest.mark.parametrize("path", [*EXAMPLES, COMPONENT / "deviceclass.yaml"], ids=lambda path: path.stem)
def test_selectors_ask_for_attributes_that_every_device_has(path: Path) -> None:
    """One that is missing would fail the pod everywhere."""
    for name in re.findall(r"device\.attributes\['gpu\.nvidia\.com'\]\.(\w+)", path.read_text()):
        assert name in UNKNOWN


def test_a_wrong_configuration_would_be_seen() -> None:
    """The test of the examples can fail."""
    device = AllocatedDevice("gpu", "n/gpu-0", "gpu-0")
    [training] = [copy.deepcopy(each) for each in specs(DEPLOY / "examples/dra/training.yaml")]
    training["config"][0]["opaque"]["parameters"]["sharing"]["strategie"] = "TimeSlicing"
    entry = OpaqueConfig(json.dumps(training["config"][0]["opaque"]["parameters"]))
    with pytest.raises(Exception, match="strategie"):
        gpu_config(AllocatedClaim(ClaimName("d", "c", "u"), (device,), (entry,)), device)
