"""Which container of which pod: as much of that as one source tells.

Kubelet's pod-resources API tells a pod's namespace and name, kubelet's checkpoint tells its UID. So two references to
one container need not be equal. `==` compares what they say; whether they mean the same container says this page alone.

"The same" is not transitive: a reference with both a name and a UID is the same as two others that share no field, and
two pods that follow each other may have one name. So references are never keys by which something is found.
"""

from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from gpuplane.base.value import Value

ADMITTED_TEXT = "a pod that kubelet is admitting"
"""Who has devices, for people, while nothing is known of the pod."""


class PodRef(Value):
    """A container of a pod. What is not known is "". Nothing is known of a pod while kubelet admits it."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    container: str = ""

    @property
    def identifies_pod(self) -> bool:
        """Whether it says which pod."""
        return bool(self.uid or self.name)

    @property
    def pod_name_or_uid(self) -> str:
        """ "namespace/name"; the UID where the name is not known; "" where neither is."""
        return f"{self.namespace}/{self.name}" if self.name else self.uid

    @property
    def text(self) -> str:
        """For people: "container namespace/name/container", or that kubelet is admitting the pod."""
        return f"container {self}" if self.identifies_pod else ADMITTED_TEXT

    def __str__(self) -> str:
        return f"{self.pod_name_or_uid}/{self.container}" if self.identifies_pod else ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` makes of a reference: "namespace/name/container", "UID/container", or "".

        A text that is none of these says nothing of the pod.
        """
        match text.split("/"):
            case [namespace, name, container]:
                return cls(namespace=namespace, name=name, container=container)
            case [uid, container]:
                return cls(uid=uid, container=container)
            case _:
                return cls()


class PodMetadata(Value):
    """What the API server says of a pod: its name, and those of its labels that series shall have."""

    namespace: str
    name: str
    labels: Mapping[str, str] = {}


class ContainerId(Value):
    """A container as the node's kernel and kubelet's records name it."""

    pod_uid: str
    container_id: str


def may_be_same_container(one: PodRef, other: PodRef) -> bool:
    """Whether they could mean the same container: no field that both know differs.

    True too where one knows only the UID and the other only the name.
    """
    pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
    return all(not mine or not theirs or mine == theirs for mine, theirs in pairs)


def same_container(one: PodRef, other: PodRef) -> bool:
    """Whether they are known to mean the same container: both know the UID or both the name, and nothing differs."""
    by_name = one.namespace and one.name and other.namespace and other.name
    return (
        bool((one.uid and other.uid) or by_name)
        and one.container == other.container
        and may_be_same_container(one, other)
    )


def merge_pod_refs(one: PodRef, other: PodRef) -> PodRef:
    """All that two references to the same container know. Raises ValueError where they are not known to be that."""
    if not same_container(one, other):
        raise ValueError(f"{one!r} and {other!r} may be different containers")
    return PodRef(
        namespace=one.namespace or other.namespace,
        name=one.name or other.name,
        uid=one.uid or other.uid,
        container=one.container,
    )


def find_same_container(ref: PodRef, others: Iterable[PodRef]) -> PodRef | None:
    """The first of these that is known to be the same container."""
    return next((each for each in others if same_container(ref, each)), None)


def merge_all_pod_refs(refs: Iterable[PodRef]) -> tuple[PodRef, ...]:
    """These references, each container once where that is known, in the order in which they come first."""
    distinct: list[PodRef] = []
    for ref in refs:
        if ref in distinct:
            continue
        known, place = ref, len(distinct)
        while (same := find_same_container(known, distinct)) is not None:
            place = distinct.index(same)
            known = merge_pod_refs(distinct.pop(place), known)
        distinct.insert(place, known)
    return tuple(distinct)
