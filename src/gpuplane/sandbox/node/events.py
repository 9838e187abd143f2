"""Events of pods, as kubelet writes them (client-go, tools/record/events_cache.go).

An Event that comes again counts up the one that is there. Of very many that differ in their messages alone one is left,
and who says too much of one pod is not heard for a while.
"""

import secrets

import msgspec

from gpuplane.sandbox.kubelet.pods import Event
from gpuplane.sandbox.node.objects import Json, PodObject

COMBINED = "(combined from similar events): "
LONGEST_NAME = 236
"""Characters of a pod's name in that of its Event, which has 253 at the most."""


SIMILAR_EVENTS, SIMILAR_SECONDS = 10, 600.0
"""From so many messages of one reason on, each at most so long after the last, they are one Event."""
BURST, SECONDS_PER_EVENT = 25, 300.0
"""Events of one pod that are written at once, and the time after which one more is."""


class EventBook:
    """What kubelet has told of one pod since it started: objects by what makes Events the same."""

    def __init__(self) -> None:
        self._written: dict[Event, Json] = {}
        self._messages: dict[Event, tuple[set[str], float]] = {}  # an Event without its message → messages, and when
        self._left, self._since = float(BURST), 0.0

    def enter(self, pod: PodObject, event: Event, node: str, now: str, seconds: float) -> Json | None:
        """The object to write: a new one, or one with a higher count; None for what is too much. `seconds`: of a clock
        that never goes back."""
        self._left = min(BURST, self._left + (seconds - self._since) / SECONDS_PER_EVENT)
        self._since = seconds
        same = msgspec.structs.replace(event, message="")
        messages, last = self._messages.get(same, (set[str](), seconds))
        if seconds - last > SIMILAR_SECONDS:
            messages = set()
        self._messages[same] = messages, seconds
        messages.add(event.message)
        key = event
        if len(messages) >= SIMILAR_EVENTS:
            messages.pop()
            key, event = same, msgspec.structs.replace(event, message=f"{COMBINED}{event.message}")
        if (known := self._written.get(key)) is not None:
            again = {"count": known["count"] + 1, "lastTimestamp": now, "message": event.message}
            found = self._written[key] = known | again
        else:
            found = self._written[key] = event_object(pod, event, node, now)
        if self._left < 1:
            return None
        self._left -= 1
        return found


def event_object(pod: PodObject, event: Event, node: str, now: str) -> Json:
    """The object of a new Event."""
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
