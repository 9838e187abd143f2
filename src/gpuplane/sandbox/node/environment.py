"""The environment of a container, as kubelet makes it (pkg/kubelet/kubelet_pods.go, makeEnvironmentVariables)."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

from gpuplane.kubernetes.quantities import parse_quantity
from gpuplane.sandbox.kubelet.devices import KubeletError
from gpuplane.sandbox.node.objects import Json, PodObject

Kind = Literal["configmap", "secret"]
Fetch = Callable[[Kind, str, str], Awaitable[Mapping[str, bytes] | None]]
"""(kind, namespace, name) → its data; None where there is no such object. Raises KubeletError."""

REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
DIVISORS = {"": 1, "1": 1, "1m": 0.001, "1k": 1e3, "1M": 1e6, "1G": 1e9, "1Ki": 1 << 10, "1Mi": 1 << 20, "1Gi": 1 << 30}


class Variable(NamedTuple):
    """The value of a variable, and whether it comes from a Secret."""

    value: str
    is_secret: bool = False


async def container_environment(
    pod: PodObject, container: Json, node_values: Mapping[str, str], fetch: Fetch
) -> dict[str, Variable]:
    """Name → value. `node_values`: what the downward API knows of where the pod runs, by its field paths. Raises
    KubeletError, in kubelet's words, where what is referred to is not there."""
    found: dict[str, Variable] = {}
    for source in container.get("envFrom") or ():
        found |= await _from_object(pod, source, fetch)
    for variable in container.get("env") or ():
        value = await _variable(pod, container, variable, found, node_values, fetch)
        if value is not None:
            found[variable["name"]] = value
    return found


def expand(text: str, environment: Mapping[str, Variable]) -> str:
    """`$(NAME)` → its value; `$$(NAME)` stays `$(NAME)` (third_party/forked/golang/expansion)."""

    def replace(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return environment[match[2]].value if match[2] in environment else match[0]

    return REFERENCE.sub(replace, text)


async def _from_object(pod: PodObject, source: Json, fetch: Fetch) -> dict[str, Variable]:
    kind: Kind = "configmap" if "configMapRef" in source else "secret"
    wanted = source["configMapRef" if kind == "configmap" else "secretRef"]
    data = await _data(kind, pod.metadata.namespace, wanted, fetch)
    prefix = source.get("prefix") or ""
    return {f"{prefix}{key}": _of_data(value, kind) for key, value in (data or {}).items()}


async def _variable(
    pod: PodObject, container: Json, variable: Json, before: Mapping[str, Variable], node_values: Mapping[str, str],
    fetch: Fetch,
) -> Variable | None:  # fmt: skip
    source = variable.get("valueFrom")
    if not source:
        return Variable(expand(variable.get("value") or "", before))
    if field := source.get("fieldRef"):
        return Variable(downward_value(pod, field["fieldPath"], node_values))
    if resource := source.get("resourceFieldRef"):
        return Variable(resource_value(container, resource))
    kind: Kind = "configmap" if "configMapKeyRef" in source else "secret"
    wanted = source["configMapKeyRef" if kind == "configmap" else "secretKeyRef"]
    data = await _data(kind, pod.metadata.namespace, wanted, fetch)
    if data is None or wanted["key"] not in data:
        if data is None or wanted.get("optional"):
            return None
        named = "ConfigMap" if kind == "configmap" else "Secret"
        raise KubeletError(f"couldn't find key {wanted['key']} in {named} {pod.metadata.namespace}/{wanted['name']}")
    return _of_data(data[wanted["key"]], kind)


def _of_data(value: bytes, kind: Kind) -> Variable:
    return Variable(value.decode(errors="replace"), kind == "secret")


async def _data(kind: Kind, namespace: str, wanted: Json, fetch: Fetch) -> Mapping[str, bytes] | None:
    data = await fetch(kind, namespace, wanted["name"])
    if data is None and not wanted.get("optional"):
        raise KubeletError(f'{kind} "{wanted["name"]}" not found')
    return data


def downward_value(pod: PodObject, path: str, node_values: Mapping[str, str]) -> str:
    """A field of the downward API; "" for one that is not there."""
    metadata = pod.metadata
    known = {
        "metadata.name": metadata.name,
        "metadata.namespace": metadata.namespace,
        "metadata.uid": metadata.uid,
        "spec.serviceAccountName": str(pod.spec.get("serviceAccountName") or "default"),
        **node_values,
    }
    if path in known:
        return known[path]
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']*)'\]", path):
        return ((metadata.labels if match[1] == "labels" else metadata.annotations) or {}).get(match[2], "")
    if path in ("metadata.labels", "metadata.annotations"):
        shown = (metadata.labels if path == "metadata.labels" else metadata.annotations) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(shown.items()))
    return ""


def resource_value(container: Json, wanted: Json) -> str:
    """A container's own request or limit, in units of the divisor."""
    kind, _, name = wanted["resource"].partition(".")
    amount = parse_quantity(str(((container.get("resources") or {}).get(kind) or {}).get(name, "0"))) or 0
    divisor = DIVISORS.get(str(wanted.get("divisor") or ""), 1)
    return str(-(-float(amount) // divisor)).removesuffix(".0")
