"""The statuses of parts: their names, their types and their JSON."""

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.lenient import decode_leniently
from gpuplane.node.core.serving import may_register, may_serve, standby_reason
from gpuplane.node.model.encoding import decode, encode
from gpuplane.node.model.facts import StatusChanged
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import (
    CDI_FILES_PART,
    CDI_HOOK_PART,
    CONFIG_PART,
    DRIVER_PART,
    KUBELET_LOCK_PART,
    MPS_COMPUTE_MODES_PART,
    STATE_DIRECTORY_PART,
    STATUS_TYPES,
    TIME_SLICES_PART,
    AnyPart,
    CdiConflictStatus,
    CdiFilesStatus,
    CdiHookStatus,
    ComputeModeStatus,
    DriverStatus,
    MpsDaemonStatus,
    Part,
    PartKind,
    PartState,
    Status,
    Statuses,
    TimeSliceStatus,
    TurnStatus,
    cdi_conflict_part,
    mps_daemon_part,
    parse_part_name,
    plugin_part,
)

KINDS: tuple[PartKind, ...] = get_args(PartKind)
SEVERAL = ("plugin", "mps daemon", "cdi conflict", "other")
"""The kinds of which there may be several parts."""

LISTS = {"fingerprints", "devices", "exclusive_gpus", "pending_gpus"}
"""The fields that are tuples of names."""

FULL: dict[AnyPart, Status] = {
    DRIVER_PART: DriverStatus("waiting", "released", since=3.0, released=True),
    CDI_FILES_PART: CdiFilesStatus("ok", "/var/run/cdi", fingerprints=("a@1", "a=0@2")),
    cdi_conflict_part("/etc/cdi/a b.yaml"): CdiConflictStatus("failing", "twice", devices=("a=0", "a=1")),
    CDI_HOOK_PART: CdiHookStatus("ok", "called", path="/opt/hook"),
    mps_daemon_part("nvidia.com/gpu"): MpsDaemonStatus("ok", "process 7", devices=("GPU-a", "GPU-b")),
    MPS_COMPUTE_MODES_PART: ComputeModeStatus("failing", "denied", exclusive_gpus=("GPU-a",)),
    TIME_SLICES_PART: TimeSliceStatus("waiting", "long: GPU 0, 1", pending_gpus=("GPU-a", "GPU-b")),
    KUBELET_LOCK_PART: TurnStatus("waiting", "process 1 serves", turn="standby"),
    STATE_DIRECTORY_PART: TurnStatus("ok", "/var/lib/gpuplane"),
    CONFIG_PART: Status("failing", "c.yaml:2: no such key"),
    plugin_part("nvidia.com/gpu"): Status("ok", "registered"),
}


def subjects(kind: PartKind) -> st.SearchStrategy[str]:
    """What parts of a kind may be called."""
    if kind not in SEVERAL:
        return st.just("")
    if kind == "cdi conflict":
        return st.text(min_size=1).map("/{}".format)
    return st.text(min_size=1).filter(lambda name: kind != "other" or parse_part_name(name).kind == kind)


PARTS: st.SearchStrategy[AnyPart] = st.sampled_from(KINDS).flatmap(
    lambda kind: st.builds(Part, st.just(kind), subjects(kind))
)


@st.composite
def statuses(draw: st.DrawFn) -> Statuses:
    """Of some parts, each of the type of its kind."""
    found: dict[AnyPart, Status] = {}
    for part in draw(st.lists(PARTS)):
        names = {field.name for field in msgspec.structs.fields(part.status_type)}
        lists: dict[str, Any] = {name: tuple(draw(st.lists(st.text()))) for name in names & LISTS}
        if "metadata_root" in names:  # of claims, by UID
            lists = {"fingerprints": draw(st.dictionaries(st.text(), st.text()))}
        others: dict[str, Any] = {"path": draw(st.text())} if "path" in names else {}
        if "turn" in names:
            others = {"turn": draw(st.sampled_from(("", "standby", "leaving", "left")))}
        text = draw(st.text())
        if "released" in names and draw(st.booleans()):
            text, others = "released", {"released": True}
        state: PartState = draw(st.sampled_from(get_args(PartState)))
        found[part] = part.status_type(state, text, draw(st.text()), draw(st.floats(0, 1e9)), **lists, **others)
    return Statuses(found)


def test_each_kind_of_part_has_one_type_of_status() -> None:
    """Kinds without fields of their own have the plain one."""
    assert STATUS_TYPES.keys() <= set(KINDS)
    assert {Part(kind).status_type for kind in KINDS} == {Status, *Status.__subclasses__()}


def test_the_parts_that_are_a_promise_are_known() -> None:
    """Those of one kind with several parts are listed without a subject."""
    names = (Path(__file__).parents[2] / "conformance/golden/names.txt").read_text()
    section = next(each for each in names.split("\n# ") if each.startswith("parts"))
    for name in filter(None, section.splitlines()[1:]):
        assert parse_part_name(name).kind == name or parse_part_name(f"{name}/x").kind != "other"


@given(PARTS)
def test_a_name_leads_back_to_its_part(part: AnyPart) -> None:
    """Names are what JSON, metrics and logs have."""
    assert parse_part_name(part.name) == part
    assert hash(parse_part_name(part.name)) == hash(part)


@given(st.text())
def test_whatever_another_version_calls_a_part_is_kept(name: str) -> None:
    assert parse_part_name(name).name == name


@given(statuses())
def test_statuses_survive_json(found: Statuses) -> None:
    """With the types of their kinds, and read field by field too."""
    snapshot = Snapshot(statuses=found)

    assert decode(encode(snapshot), Snapshot) == snapshot
    read = decode_leniently(json.loads(encode(snapshot)), Snapshot)
    assert read.value == snapshot


@pytest.mark.parametrize("spoilt", [{"state": "resting"}, {}, 7, None])
def test_a_status_that_is_none_costs_itself_only(spoilt: object) -> None:
    written = json.loads(encode(Snapshot(statuses=Statuses(FULL))))
    written["statuses"]["driver"] = spoilt

    read = decode_leniently(written, Snapshot)

    assert read.value.statuses == Statuses(FULL).but(DRIVER_PART, None)
    with pytest.raises(msgspec.ValidationError):
        decode(json.dumps({"statuses": {"driver": spoilt}}).encode(), Snapshot)


def test_a_part_is_given_a_status_of_its_type_alone() -> None:
    with pytest.raises(TypeError, match="DriverStatus"):
        StatusChanged[Any](DRIVER_PART, Status("ok"))
    with pytest.raises(TypeError, match="config"):
        StatusChanged[Any](CONFIG_PART, DriverStatus("ok"))


def test_statuses_are_frozen() -> None:
    """Another status makes another value."""
    before = Statuses({CONFIG_PART: Status("ok")})
    after = before.but(CONFIG_PART, Status("failing"))

    assert (before.of(CONFIG_PART), after.of(CONFIG_PART)) == (Status("ok"), Status("failing"))
    assert after.but(CONFIG_PART, None) == Statuses()
    assert not hasattr(before, "__setitem__")


@pytest.mark.parametrize(
    ("status", "other", "same"),
    [
        (Status("ok", "a"), Status("failing", "a"), False),
        (Status("failing", "a"), Status("failing", "b"), False),
        (Status("failing", "a", "driver-hang"), Status("failing", "b", "driver-hang"), True),
        (Status("failing", "a", "driver-hang"), Status("failing", "a"), False),
        (Status("ok", "a", since=1.0), Status("ok", "a", since=2.0), True),
        (CdiFilesStatus("ok", "a", fingerprints=("b",)), CdiFilesStatus("ok", "a"), True),
    ],
)
def test_what_is_new_in_a_status(status: Status, other: Status, same: bool) -> None:
    """A state, a code, or another text where there is no code; not its other fields."""
    assert status.has_same_state_and_cause(other) == other.has_same_state_and_cause(status) == same


@pytest.mark.parametrize(
    ("lock", "state", "expected"),
    [
        ("", "", (False, True, True)),
        ("standby", "", (True, False, False)),
        ("", "standby", (True, False, False)),
        ("leaving", "", (False, False, True)),
        ("left", "", (False, False, False)),
    ],
)
def test_whose_turn_it_is(lock: Any, state: Any, expected: tuple[bool, bool, bool]) -> None:
    """Whether this agent stands by, may register, and may serve."""
    snapshot = Snapshot(
        statuses=Statuses(
            {
                KUBELET_LOCK_PART: TurnStatus("waiting", "a", turn=lock),
                STATE_DIRECTORY_PART: TurnStatus("waiting", "b", turn=state),
            }
        )
    )
    assert (bool(standby_reason(snapshot)), may_register(snapshot), may_serve(snapshot)) == expected
