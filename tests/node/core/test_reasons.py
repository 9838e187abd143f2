"""A reason is a value: programs compare its code and its holder, and never its text."""

import pytest

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.kinds.nvidia.faults import CATALOGUE
from gpuplane.node.model.reasons import REASON_CODES, Holder, Reason

HELD = Reason(kind="held", text="held by pod ml/train", code="held-as-other-resource")


def by(name: str) -> Holder:
    return Holder(resource="nvidia.com/gpu", pod=PodRef(namespace="ml", name=name, container="main"))


@pytest.mark.parametrize("kind", ["problem", "released", "held"])
def test_another_wording_is_the_same_cause(kind: str) -> None:
    reason = Reason(kind=kind, text="it fails", part="cdi", code="cdi-write-failed")  # type: ignore[arg-type]
    assert reason.identity_key == reason.but(text="it does not work").identity_key


@pytest.mark.parametrize(
    "other",
    [
        HELD.but(code="held-in-other-layout"),
        HELD.but(part="cdi"),
        HELD.but(faulty_device="GPU-a"),
        HELD.but(kind="problem"),
        HELD.but(holder=by("train")),
    ],
)
def test_another_code_part_device_or_holder_is_another_cause(other: Reason) -> None:
    assert other.identity_key != HELD.identity_key


def test_the_containers_of_two_pods_are_two_causes() -> None:
    assert HELD.but(holder=by("a")).identity_key != HELD.but(holder=by("b")).identity_key


def test_no_code_means_a_fault_and_another_reason() -> None:
    assert not REASON_CODES.keys() & CATALOGUE.keys()
    assert Reason(kind="problem", text="", code=next(iter(CATALOGUE))).is_fault
    assert not HELD.is_fault
