"""References to one container from two sources: what joins them, and that two containers are never taken for one."""

from itertools import permutations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import (
    PodRef,
    may_be_same_container,
    merge_all_pod_refs,
    merge_pod_refs,
    same_container,
)

WORLD = tuple(
    PodRef(namespace, name, uid, container)
    for namespace, name, uid in (
        ("ml", "train", "1"),
        ("ml", "train", "2"),  # the pod that followed
        ("ml", "serve", "3"),
        ("web", "train", "4"),
    )
    for container in ("main", "sidecar")
)
"""Containers, with all that could be known of them."""


def told(whole: PodRef, *, by_name: bool, by_uid: bool) -> PodRef:
    """What a source tells of a container that names pods so."""
    named = whole.but(uid="") if by_name else PodRef(container=whole.container)
    return named.but(uid=whole.uid if by_uid else "")


wholes = st.sampled_from(WORLD)
kinds = st.tuples(st.booleans(), st.booleans())
refs = st.builds(lambda whole, kind: told(whole, by_name=kind[0], by_uid=kind[1]), wholes, kinds)
anything = st.builds(PodRef, *(st.sampled_from(("", "a", "b")) for _ in range(4)))
"""Also what no source tells: a name without a namespace, a pod without a container."""


@given(anything, anything)
def test_it_is_the_same_both_ways(one: PodRef, other: PodRef) -> None:
    assert same_container(one, other) == same_container(other, one)
    assert may_be_same_container(one, other) == may_be_same_container(other, one)
    if same_container(one, other):
        assert merge_pod_refs(one, other) == merge_pod_refs(other, one)


@given(anything, anything)
def test_what_is_the_same_may_be_the_same(one: PodRef, other: PodRef) -> None:
    assert not same_container(one, other) or may_be_same_container(one, other)


@given(anything)
def test_what_says_which_pod_is_the_same_as_itself(ref: PodRef) -> None:
    assert same_container(ref, ref) == bool(ref.uid or (ref.namespace and ref.name))


@given(anything, anything)
def test_a_join_keeps_all_that_is_known(one: PodRef, other: PodRef) -> None:
    if same_container(one, other):
        both = msgspec.structs.asdict(merge_pod_refs(one, other))
        for ref in (one, other):
            assert all(both[field] == value for field, value in msgspec.structs.asdict(ref).items() if value)
    else:
        with pytest.raises(ValueError):
            merge_pod_refs(one, other)


@given(wholes, wholes, kinds, kinds)
def test_two_pods_are_not_joined_unless_they_have_one_name_and_no_source_tells_the_uid(
    one: PodRef, other: PodRef, by: tuple[bool, bool], also_by: tuple[bool, bool]
) -> None:
    """A name is all that kubelet's list tells: a pod that followed another under its name is taken for it."""
    first = told(one, by_name=by[0], by_uid=by[1])
    second = told(other, by_name=also_by[0], by_uid=also_by[1])

    if same_container(first, second) and one != other:
        assert (one.namespace, one.name, one.container) == (other.namespace, other.name, other.container)
        assert not (first.uid and second.uid)


@given(wholes, kinds, kinds)
def test_references_to_one_container_never_contradict_each_other(
    whole: PodRef, by: tuple[bool, bool], also_by: tuple[bool, bool]
) -> None:
    one, other = told(whole, by_name=by[0], by_uid=by[1]), told(whole, by_name=also_by[0], by_uid=also_by[1])

    assert may_be_same_container(one, other)
    shared = (by[0] and also_by[0]) or (by[1] and also_by[1])
    assert same_container(one, other) == shared


def test_a_name_and_a_uid_share_nothing() -> None:
    name, uid = PodRef("ml", "train", container="main"), PodRef(uid="1", container="main")

    assert may_be_same_container(name, uid)
    assert not same_container(name, uid)
    assert merge_all_pod_refs((name, uid)) == (name, uid)


def test_nothing_known_is_the_same_as_nothing() -> None:
    assert not same_container(PodRef(), PodRef())
    assert not PodRef().identifies_pod


def test_what_knows_both_joins_what_knew_one() -> None:
    whole = PodRef("ml", "train", "1", "main")
    parts = (whole, told(whole, by_name=True, by_uid=False), told(whole, by_name=False, by_uid=True))

    assert {merge_all_pod_refs(each) for each in permutations(parts)} == {(whole,)}


@given(st.lists(refs, max_size=8))
def test_of_those_that_are_joined_no_two_are_the_same(these: list[PodRef]) -> None:
    left = merge_all_pod_refs(these)

    assert not any(same_container(one, other) for one, other in permutations(left, 2))
    assert len(set(left)) == len(left)
    assert merge_all_pod_refs(left) == left


@given(st.lists(refs, max_size=8))
def test_each_of_those_that_are_joined_is_in_one_of_them(these: list[PodRef]) -> None:
    left = merge_all_pod_refs(these)

    assert all(any(each == one or same_container(each, one) for one in left) for each in these)


@given(refs.filter(lambda ref: not (ref.uid and ref.name)))
def test_a_text_is_read_as_what_it_was_written_for(ref: PodRef) -> None:
    """Of those that know a name or a UID; a name hides a UID."""
    assert PodRef.parse(str(ref)) == (ref if ref.identifies_pod else PodRef())


@pytest.mark.parametrize("text", ["", "a", "/", "a/b/c/d", "////"])
def test_a_text_that_nobody_wrote_says_nothing_of_a_pod(text: str) -> None:
    assert not PodRef.parse(text).identifies_pod
