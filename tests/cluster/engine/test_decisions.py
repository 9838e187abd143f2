"""The decision about a pod, as its node is told: written and read the same; what is not such a text is an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.contracts.podplacement import (
    MAX_BYTES,
    PlacedContainer,
    PlacedGpu,
    PodPlacement,
    decode_pod_placement,
    encode_pod_placement,
)

NAMES = st.text(min_size=1, max_size=20)
PARTS = st.builds(PlacedGpu, NAMES, st.integers(1, 1000), st.integers(0, 1 << 30))
MIG = st.builds(lambda uuid, profile: PlacedGpu(uuid, profile=profile), NAMES, NAMES)
CONTAINERS = st.builds(
    PlacedContainer,
    NAMES,
    st.lists(PARTS, min_size=1, max_size=3, unique_by=lambda each: each.uuid).map(tuple)
    | st.lists(MIG, min_size=1, max_size=3).map(tuple),
)
PLACEMENTS = st.builds(
    PodPlacement, NAMES, NAMES, st.lists(CONTAINERS, max_size=3, unique_by=lambda each: each.name).map(tuple)
)
GOOD = {
    "version": 1,
    "uid": "u",
    "node": "n",
    "containers": [{"name": "c", "gpus": [{"uuid": "GPU-0", "milli": 500, "memory_mib": 0}]}],
}


@given(PLACEMENTS)
def test_what_is_written_is_read(placement: PodPlacement) -> None:
    text = encode_pod_placement(placement)

    assert "\n" not in text
    assert decode_pod_placement(text) == placement


def with_gpus(*gpus: dict[str, object]) -> dict[str, object]:
    return GOOD | {"containers": [{"name": "c", "gpus": [*gpus]}]}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (GOOD | {"version": 2}, "version 2; this program reads version 1"),
        (GOOD | {"version": None}, "version None"),
        (GOOD | {"uid": ""}, "uid"),
        (GOOD | {"more": 1}, "more"),
        ([], "object"),
        (with_gpus(), "gpus"),
        (with_gpus({"uuid": "g", "milli": 1001}), "milli"),
        (with_gpus({"uuid": "g", "milli": -1}), "milli"),
        (with_gpus({"uuid": "g"}), "gets nothing"),
        (with_gpus({"uuid": "g", "milli": 1, "profile": "1g.10gb"}), "in part"),
        (with_gpus({"uuid": "g", "milli": 1}, {"uuid": "g", "milli": 2}), "has a GPU twice"),
        (GOOD | {"containers": GOOD["containers"] * 2}, "named twice"),  # type: ignore[operator]
    ],
)
def test_what_is_no_decision_is_refused(document: object, problem: str) -> None:
    with pytest.raises(ValueError, match="the placement of a pod cannot be read") as refused:
        decode_pod_placement(json.dumps(document))
    assert problem in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "null", "\ud800", " " * (MAX_BYTES + 1), "[" * 60_000])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode_pod_placement(text)


@pytest.mark.parametrize("levels", [2_000, 5_000, 20_000, 60_000])
@pytest.mark.parametrize(
    ("first", "each"), [("", "["), ("", '{"version":'), ('{"version":1,"more":', "["), ("", '{"more":')]
)
def test_a_text_that_is_nested_deep_is_refused(first: str, each: str, levels: int) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        decode_pod_placement(first + each * levels)


def test_what_could_not_be_read_again_is_not_written() -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        encode_pod_placement(PodPlacement("", "n"))
