"""Environment of a container: from values, fields, resources, ConfigMaps and Secrets, in kubelet's words."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node.environment import Kind, Variable, container_environment, expand
from tests.sandbox.node.objects import bound_pod

OBJECTS: Mapping[tuple[str, str], Mapping[str, bytes]] = {
    ("configmap", "c"): {"a": b"1", "b": b"2"},
    ("secret", "s"): {"key": b"hidden"},
}
NODE = {"spec.nodeName": "n1", "status.podIP": "10.2.1.7"}


async def fetch(kind: Kind, namespace: str, name: str) -> Mapping[str, bytes] | None:
    assert namespace == "ns"
    return OBJECTS.get((kind, name))


async def environment(*env: Any, env_from: Any = (), **container: Any) -> dict[str, Variable]:
    described = {"name": "main", "image": "busybox", "env": env, "envFrom": env_from, **container}
    pod = bound_pod(containers=[described], labels={"app": "x"}, serviceAccountName="robot")
    return await container_environment(pod, described, NODE, fetch)


def of(**source: Any) -> dict[str, Any]:
    return {"name": "V", "valueFrom": source}


async def test_values_refer_to_those_before_them() -> None:
    found = await environment({"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(B)-$$(A)"}, {"name": "C"})
    assert {name: each.value for name, each in found.items()} == {"A": "1", "B": "1-$(B)-$(A)", "C": ""}
    assert expand("--node=$(B) $(X)", found) == "--node=1-$(B)-$(A) $(X)"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"),
        ("metadata.labels['app']", "x"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "robot"),
        ("status.podIP", "10.2.1.7"),
    ],
)
async def test_fields_of_the_pod(path: str, value: str) -> None:
    assert await environment(of(fieldRef={"fieldPath": path})) == {"V": Variable(value)}


async def test_resources_of_the_container_in_units_of_a_divisor() -> None:
    resources = {"limits": {"cpu": "1500m", "memory": "1Gi"}}
    for resource, divisor, value in (
        ("limits.cpu", "", "2"),
        ("limits.cpu", "1m", "1500"),
        ("limits.memory", "1Mi", "1024"),
    ):
        wanted = of(resourceFieldRef={"resource": resource, "divisor": divisor})
        assert (await environment(wanted, resources=resources))["V"].value == value


async def test_what_comes_from_a_secret_is_known() -> None:
    found = await environment(
        of(secretKeyRef={"name": "s", "key": "key"}),
        env_from=[{"configMapRef": {"name": "c"}, "prefix": "P_"}, {"secretRef": {"name": "none", "optional": True}}],
    )
    assert found == {"P_a": Variable("1"), "P_b": Variable("2"), "V": Variable("hidden", is_secret=True)}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "a"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "none", "key": "a"}}, 'secret "none" not found'),
        ({"configMapKeyRef": {"name": "c", "key": "z"}}, "couldn't find key z in ConfigMap ns/c"),
    ],
)
async def test_what_is_missing_is_said_unless_it_is_optional(source: dict[str, Any], said: str) -> None:
    with pytest.raises(KubeletError) as refused:
        await environment(of(**source))
    assert str(refused.value) == said
    [[kind, wanted]] = source.items()
    assert await environment(of(**{kind: {**wanted, "optional": True}})) == {}
