"""Where a kustomization gives everything other names, the policy still binds the agent's account."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.deploy.kustomize import DEPLOY, Json, build, identity, real

NAMES = [
    {"namePrefix": "team-a-"},
    {"nameSuffix": "-canary"},
    {"namespace": "elsewhere"},
    {"namePrefix": "team-a-", "nameSuffix": "-canary", "namespace": "elsewhere"},
]


@pytest.fixture(params=NAMES, ids=lambda each: "+".join(each))
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Somebody's kustomization around an overlay."""
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "own").mkdir()
    layer = {"resources": ["../deploy/overlays/nvidia-runtime"], **request.param}
    (tmp_path / "own/kustomization.yaml").write_text(yaml.safe_dump(layer))
    return tmp_path / "own"


def one(objects: list[Json], kind: str) -> Json:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def built(own: Path) -> list[list[Json]]:
    """By the builder of these tests, and by a real kustomize where one is installed."""
    return [each for each in (build(own), real(own)) if each is not None]


def test_the_policy_looks_at_the_account(own: Path) -> None:
    """Its condition means the account that the pods have, and the binding names it."""
    for objects in built(own):
        account = one(objects, "ServiceAccount")["metadata"]
        policy, binding = (one(objects, f"ValidatingAdmissionPolicy{each}") for each in ("", "Binding"))
        user = f"system:serviceaccount:{account['namespace']}:{account['name']}"

        assert one(objects, "DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"] == account["name"]
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        [condition] = policy["spec"]["matchConditions"]
        [pattern] = re.findall(r"^request[.]userInfo[.]username[.]matches\('(.*)'\)$", condition["expression"])
        assert re.search(pattern, user)


def test_rights_go_to_the_account(own: Path) -> None:
    """Who is bound to the roles is the account, whatever it is called."""
    for objects in built(own):
        account = one(objects, "ServiceAccount")["metadata"]
        for kind in ("Role", "ClusterRole"):
            binding = one(objects, f"{kind}Binding")
            assert binding["roleRef"]["name"] == one(objects, kind)["metadata"]["name"]
            assert [(each["name"], each["namespace"]) for each in binding["subjects"]] == [
                (account["name"], account["namespace"])
            ]


def test_the_real_kustomize_agrees(own: Path) -> None:
    """The builder of these tests names things as kubectl does."""
    found = real(own)
    if found is None:
        pytest.skip("neither kustomize nor kubectl is installed; the builder of these tests stands in")
    ours, theirs = ({identity(each): _references(each) for each in objects} for objects in (build(own), found))

    assert ours == theirs


def _references(found: Json) -> Json:
    pod = found.get("spec", {}).get("template", {}).get("spec", {})
    volumes = [each["configMap"]["name"] for each in pod.get("volumes", ()) if "configMap" in each]
    named = {key: found.get(key) for key in ("subjects", "roleRef")}
    return named | {"account": pod.get("serviceAccountName"), "volumes": volumes, "namespace": _namespace(found)}


def _namespace(found: Json) -> str:
    """An API server takes that of a policy away again, which kustomize gives it for want of knowing better."""
    return "" if found["kind"].startswith("Validating") else found["metadata"].get("namespace", "")
