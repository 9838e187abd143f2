"""components/dra and the examples: who may write slices and claims, and manifests that the driver can serve."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuplane.node.core.kinds.attributes import UNKNOWN
from gpuplane.node.core.kinds.nvidia.claimconfigs import gpu_config
from gpuplane.node.kubelet.dra.registration import PLUGIN_DIRECTORY, REGISTRATION_DIRECTORY
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, ClaimName, OpaqueConfig
from gpuplane.node.model.config import DraSettings
from tests.deploy.kustomize import DEPLOY
from tests.deploy.test_overlays import DRA_DIRECTORIES

COMPONENT, EXAMPLES = DEPLOY / "components/dra", sorted((DEPLOY / "examples/dra").glob("*.yaml"))
DRIVER = DraSettings().driver
Json = dict[str, Any]


def test_what_the_policy_looks_at() -> None:
    """Every write in the group, and it fails closed. tests/cluster/test_policies.py evaluates it."""
    policy, binding = yaml.safe_load_all((COMPONENT / "policy.yaml").read_text())
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    [rule] = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": ["resource.k8s.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]
    }  # fmt: skip


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
