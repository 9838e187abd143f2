"""Events of pods, as kubelet writes them (client-go, tools/record)."""

import secrets

from gpuplane.sandbox.kubelet.pods import Event
from gpuplane.sandbox.node.objects import Json, PodObject

LONGEST_NAME = 236
"""Characters of a pod's name in that of its Event, which has 253 at the most."""


def event_object(pod: PodObject, event: Event, node: str, now: str) -> Json:
    """The object of an Event, which is never the same as another."""
    metadata, where = pod.metadata, _field_path(pod, event.container)
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": metadata.namespace,
        "name": metadata.name,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        **({"fieldPath": where} if where else {}),
    }
    name = f"{metadata.name[:LONGEST_NAME]}.{secrets.token_hex(8)}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata.namespace},
        "involvedObject": involved,
        "reason": event.reason,
        "message": event.message,
        "type": event.type,
        "source": {"component": "kubelet", "host": node},
        "reportingComponent": "kubelet",
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _field_path(pod: PodObject, container: str) -> str:
    if not container:
        return ""
    is_init = any(each["name"] == container for each in pod.spec.get("initContainers") or ())
    return f"spec.{'initContainers' if is_init else 'containers'}{{{container}}}"
