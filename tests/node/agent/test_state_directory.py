"""The state directory: what is promised survives, what cannot be read costs itself, a second agent waits."""

import asyncio
import errno
import itertools
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.agent import control
from gpuplane.node.agent.node import Node
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.health.devicehealth import health_without_parents
from gpuplane.node.core.ledger import FIELDS_WITH_FILE, adapt_to_new_boot, encode_part, is_ledger_stored
from gpuplane.node.host import state
from gpuplane.node.host.lock import locked_directory
from gpuplane.node.model.claims import AllocatedDevice, ClaimName, PreparedClaim, PreparedDevice
from gpuplane.node.model.config import NodeObjectRequests, Settings
from gpuplane.node.model.control import ControlResponse, RestoreDevice
from gpuplane.node.model.facts import (
    AllocationsListed,
    ClaimUnprepareRequested,
    ConfigLoaded,
    DriverReleaseRequested,
    LedgerLoaded,
    MachineObserved,
)
from gpuplane.node.model.health import DeviceRecord, Drain, Finding, HealthRecords, ProbeState
from gpuplane.node.model.machine import Gpu, Machine
from gpuplane.node.model.sharelayout import TIME_SLICES, memory_layout
from gpuplane.node.model.snapshot import DriverRelease, Ledger, Snapshot, TimeSliceState
from gpuplane.node.model.status import STATE_DIRECTORY_PART
from tests.golden import Golden
from tests.removal import remove
from tests.texts import as_shown

FULL = Ledger(
    boot_id="boot",
    release=DriverRelease(until=500.0, reason="firmware"),
    node_requests=NodeObjectRequests(driver_release_reason="new driver"),
    config_name="a100",
    mig_parents={"MIG-1": "GPU-a"},
    share_layouts={"GPU-a": TIME_SLICES.encoded},
    time_slices={
        "GPU-a": TimeSliceState(tried_length="long", requested_at=7.0, last_set_length="short", outcome_unknown=True)
    },
    claims={
        "uid-1": PreparedClaim(
            claim=ClaimName("default", "train", "uid-1"),
            driver="gpu.nvidia.com",
            devices=(PreparedDevice(AllocatedDevice("gpu", "n1/gpu-a", "gpu-a"), "GPU-a", "k/claim=uid-1-gpu-a"),),
        )
    },
    health=HealthRecords(
        devices={"GPU-a": DeviceRecord(drain=Drain("fan"), pci="0000:1b:00.0")}, last_kernel_log_number=7
    ),
)


async def store(first: Ledger, directory: Path, *more: Ledger) -> None:
    """Run the reconciler until the disk holds one ledger after the other."""
    node = Node(Snapshot(), now=lambda: 100.0)
    async with storing(node, directory):
        for ledger in (first, *more):
            node.apply(LedgerLoaded(ledger))
            assert await node.wait_until(is_ledger_stored, deadline=60)


@asynccontextmanager
async def storing(node: Node, directory: Path) -> AsyncIterator[None]:
    """The reconciler, as it runs in an agent."""
    keeping = asyncio.create_task(state.keep_ledger_stored(node, directory, every=0.01, glance=0.02))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    """The ledger of the same boot comes back whole; a later, smaller one leaves nothing behind."""
    await store(FULL, tmp_path)
    assert state.load_ledger(tmp_path, "boot") == (FULL, [])

    await store(FULL, tmp_path, Ledger(boot_id="boot"))
    assert state.load_ledger(tmp_path, "boot") == (Ledger(boot_id="boot"), [])
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


async def test_a_claim_that_is_over_loses_its_file(tmp_path: Path) -> None:
    """Also one that an earlier agent wrote, which ends before anything else was written."""
    await store(FULL, tmp_path)
    node = Node(Snapshot(ledger=state.load_ledger(tmp_path, "boot")[0]), now=lambda: 100.0)
    async with storing(node, tmp_path):
        await asyncio.sleep(0)  # the writer has begun
        node.apply(ClaimUnprepareRequested(ClaimName("default", "a", "uid-1")))
        assert await node.wait_until(is_ledger_stored, deadline=60)
    assert list((tmp_path / "claims").iterdir()) == []


async def test_a_claims_file_that_is_wrong_costs_that_claim(tmp_path: Path) -> None:
    """One under another claim's name, one of no sense, a directory."""
    await store(FULL, tmp_path)
    good = (tmp_path / "claims/uid-1.json").read_bytes()
    (tmp_path / "claims/uid-2.json").write_bytes(good)
    (tmp_path / "claims/uid-3.json").write_text("{}")
    (tmp_path / "claims/uid-4.json").mkdir()
    ledger, problems = state.load_ledger(tmp_path, "boot")

    assert ledger == FULL
    assert [re.findall("uid-[0-9]", each)[0] for each in problems] == ["uid-2", "uid-3", "uid-4"]
    assert (tmp_path / "claims/uid-2.unreadable").exists()


async def test_a_reboot_ends_a_release_and_keeps_the_config_name_the_runtime_and_drains(tmp_path: Path) -> None:
    """Times of another boot mean nothing in this one, and its kernel log begins anew."""
    await store(FULL, tmp_path)

    assert state.load_ledger(tmp_path, "next")[0] == Ledger(
        boot_id="next",
        config_name="a100",
        mig_parents=FULL.mig_parents,
        share_layouts=FULL.share_layouts,
        claims=FULL.claims,
        health=FULL.health.but(last_kernel_log_number=-1) if FULL.health else None,
    )
    assert adapt_to_new_boot(FULL, "boot", 0.0, 0.0) is FULL

    asked = NodeObjectRequests(
        config_name="x",
        container_runtime="containerd://2.1.4",
        driver_release_reason="new driver",
        drain_reasons={"3": "fan"},
        mig_config="all-balanced",
        has_mig_manager=True,
    )
    kept = adapt_to_new_boot(FULL.but(node_requests=asked), "next", 0.0, 0.0).node_requests
    assert kept == asked.but(config_name="", driver_release_reason="")


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'{"version":2,"value":1}', b"\xff\xfe", b"[]", b"[" * 9999])
async def test_an_unreadable_file_costs_only_itself(tmp_path: Path, content: bytes) -> None:
    """It is set aside under a name that says so and named; the other parts are whole."""
    await store(FULL, tmp_path)
    (tmp_path / "release.json").write_bytes(content)

    ledger, problems = state.load_ledger(tmp_path, "boot")

    assert ledger == FULL.but(release=None)
    assert len(problems) == 1 and "release.json" in problems[0]
    assert (tmp_path / "release.unreadable").read_bytes() == content
    assert state.load_ledger(tmp_path, "boot") == (FULL.but(release=None), [])


VERSIONS = Path(__file__).parent / "state"
"""A directory for each version of the format: as an agent of that version wrote it, and one that is made up."""

RELEASED = Ledger(
    boot_id="boot",
    release=DriverRelease(until=500.0, reason="firmware"),
    node_requests=NodeObjectRequests(
        config_name="a100",
        container_runtime="containerd://2.1.4",
        driver_release_reason="new driver",
        drain_reasons={"3": "fan"},
    ),
    config_name="a100",
    mig_parents={"MIG-1": "GPU-a"},
    share_layouts={"GPU-b": TIME_SLICES.encoded, "GPU-c": memory_layout(1024, mps=True).encoded},
    time_slices={
        "GPU-a": TimeSliceState(tried_length="long", requested_at=7.0, last_set_length="short", outcome_unknown=True)
    },
    health=HealthRecords(
        devices={
            "GPU-a": DeviceRecord(
                drain=Drain("waits for its replacement", until=900.0, until_wall_clock=1.8e9, since=5.0),
                pci="0000:1b:00.0",
                uncorrected_errors=2,
                max_active_nvlinks=18,
                fault_counts={"xid-94": 1},
            ),
            "GPU-b": DeviceRecord(
                findings=(
                    Finding(
                        code="xid-79",
                        message="fell off the bus",
                        since=4.0,
                        last_seen=4.0,
                        is_event=True,
                        confirmed=True,
                        pids=(12,),
                        holders=(PodRef.parse("ml/a/main"),),
                    ),
                ),
                probe=ProbeState(
                    requested_at=5.0, not_before=6.0, failed_tries=2, failure="gpu-lost: fell off the bus"
                ),
                last_reset_at=1.0,
                declared_repaired_at=2.0,
                last_recovered_at=3.0,
                relapses=1,
                absent=True,
            ),
        },
        last_kernel_log_number=7,
    ),
)


def test_the_files_of_each_released_version_are_read_whole() -> None:
    assert state.load_ledger(VERSIONS / "version-2", "boot") == (RELEASED, [])


def test_files_of_a_newer_version_are_read_for_what_is_known_here(tmp_path: Path) -> None:
    """No drain and no verdict is lost. What cannot be understood withholds the devices that it is about, and is said;
    a copy of each such file is kept for the version that wrote it."""
    shutil.copytree(VERSIONS / "version-3", tmp_path, dirs_exist_ok=True)

    ledger, problems = state.load_ledger(tmp_path, "boot")

    assert ledger.but(health=None, time_slices=None) == RELEASED.but(health=None, time_slices=None)
    assert ledger.time_slices == {"GPU-b": TimeSliceState(tried_length="short", requested_at=2.0)}
    assert ledger.health is not None and RELEASED.health is not None
    known, found = RELEASED.health.devices, ledger.health.devices
    assert found["GPU-a"] == known["GPU-a"]
    assert found["GPU-b"].findings == known["GPU-b"].findings
    for uuid in ("GPU-b", "GPU-c"):
        drain = found[uuid].drain
        assert drain is not None and "version 3" in as_shown(drain.reason) and drain.until is None
    told = {Path(each.partition(":")[0]).name for each in problems}
    assert told == {"node-requests.json", "share-layouts.json", "health.json", "release.json", "time-slices.json"}
    assert "devices.GPU-b.probe.not_before" in next(each for each in problems if "health.json" in each)
    kept = (tmp_path / "health.other-version").read_bytes()
    assert kept == (VERSIONS / "version-3/health.json").read_bytes()
    assert (tmp_path / "claims.json").exists()


@pytest.mark.parametrize("value", [b"[]", b'{"devices": []}', b"1", b'{"last_kernel_log_number": 1e999}'])
async def test_verdicts_that_are_not_understood_at_all_drain_all_devices(
    tmp_path: Path, value: bytes, golden: Golden
) -> None:
    """Until a person gives them back: gpuplane health restore all. A reboot does not."""
    (tmp_path / "health.json").write_bytes(b'{"version":3,"boot_id":"boot","value":' + value + b"}")
    ledger, [problem] = state.load_ledger(tmp_path, "boot")
    golden(problem, f"the problem of {value.decode()}")

    gpus = (Gpu(index=0, uuid="GPU-a"), Gpu(index=1, uuid="GPU-b"))
    node = Node(Snapshot(ledger=Ledger(boot_id="boot")), now=lambda: 100.0)
    for fact in (
        LedgerLoaded(ledger),
        MachineObserved(Machine(gpus=gpus)),
        ConfigLoaded(Settings()),
        AllocationsListed((), 100.0),
    ):
        node.apply(fact)
    node.apply(MachineObserved(Machine(gpus=gpus[:1])))
    node.apply(MachineObserved(Machine(gpus=gpus)))
    devices = offer(node.snapshot).resources[0].devices
    golden((each.unavailable_reason for each in devices), "the devices")
    assert {each.clear_when_text for each in health_without_parents(node.snapshot) if each.device} == {
        "with gpuplane health restore all"
    }
    assert adapt_to_new_boot(node.snapshot.ledger, "next", 0.0, 0.0).health == node.snapshot.ledger.health

    assert (
        await control.answer(node, msgspec.json.encode(RestoreDevice(requested_at=100.0, device="all")))
        != ControlResponse()
    )
    assert not any(each.unavailable_reason for each in offer(node.snapshot).resources[0].devices)


def test_what_is_left_out_is_told_in_few_words(tmp_path: Path) -> None:
    """However long the names in a file are."""
    names = ",".join(f'"{n}{"x" * 100_000}":1' for n in range(9))
    (tmp_path / "health.json").write_text(f'{{"version":2,"boot_id":"boot","value":{{{names}}}}}')
    _, [problem] = state.load_ledger(tmp_path, "boot")
    assert len(problem) < 1000 + len(str(tmp_path))


async def test_a_directory_that_is_removed_is_made_again_with_all_that_is_remembered(tmp_path: Path) -> None:
    """So is its lock; and what is promised meanwhile counts only once it is there."""
    directory = tmp_path / "s"
    async with locked_directory(directory) as waiting:
        assert [owner async for owner in waiting] == []
        node = Node(Snapshot(), now=lambda: 100.0)
        node.apply(LedgerLoaded(FULL))
        async with storing(node, directory):
            for removed in (directory, directory / "health.json"):
                assert await node.wait_until(is_ledger_stored, deadline=60)
                remove(removed) if removed.is_dir() else removed.unlink()
                assert await node.wait_until(lambda s: not is_ledger_stored(s), deadline=60)
                assert await node.wait_until(is_ledger_stored, deadline=60)
                assert state.load_ledger(directory, "boot") == (FULL, [])
            async with locked_directory(directory, every=0.01) as second:
                assert await anext(second) == f"process {os.getpid()}"


async def test_a_directory_that_was_removed_and_is_another_agents_now_is_left_alone(tmp_path: Path) -> None:
    """The condition says whose it is, and no promise counts as kept."""
    directory = tmp_path / "s"
    async with locked_directory(directory) as waiting:
        assert [owner async for owner in waiting] == []
        node = Node(Snapshot(), now=lambda: 100.0)
        node.apply(LedgerLoaded(FULL))
        async with storing(node, directory):
            assert await node.wait_until(is_ledger_stored, deadline=60)
            remove(directory)
            async with locked_directory(directory) as other:
                assert [owner async for owner in other] == []
                assert await node.wait_until(lambda s: s.statuses[STATE_DIRECTORY_PART].state == "failing", deadline=60)
                assert f" {os.getpid()}" in as_shown(node.snapshot.statuses[STATE_DIRECTORY_PART].text)
                assert not is_ledger_stored(node.snapshot)
                assert [each.name for each in directory.iterdir()] == ["lock"]


async def test_a_directory_that_comes_back_is_ours_and_gets_all_that_is_remembered(tmp_path: Path) -> None:
    """A disk that was mounted over it late, and is unmounted: what it says of earlier days is written over."""
    directory, away = tmp_path / "state", tmp_path / "away"
    drain = Drain(reason="fan", since=1.0)
    drained, nothing = Ledger(health=HealthRecords(devices={"GPU-0": DeviceRecord(drain=drain)})), Ledger()
    async with locked_directory(directory) as waiting:
        async for owner in waiting:
            raise AssertionError(owner)
        writer = state.LedgerWriter(directory)
        assert writer.write(drained) is None
        (directory / "claims").mkdir()
        (directory / "claims" / "uid-1.json").write_bytes(b"{}")
        directory.rename(away)
        assert writer.write(nothing) is None
        directory.rename(tmp_path / "late")
        away.rename(directory)
        assert not writer.intact()
        assert writer.write(nothing) is None
        assert state.load_ledger(directory, "")[0].health is None
        assert [*(directory / "claims").iterdir()] == []
        assert writer.write(drained) is None
        assert state.load_ledger(directory, "")[0] == drained


async def test_a_link_in_the_place_of_the_lock_or_of_a_file_is_not_followed(tmp_path: Path) -> None:
    """What it leads to is somebody else's."""
    (tmp_path / "foreign").write_text("foreign")
    directory = tmp_path / "s"
    directory.mkdir(mode=0o700)
    for name in ("lock", "health.json", "health.json.new"):
        (directory / name).symlink_to(tmp_path / "foreign")
    with pytest.raises(OSError) as raised:
        async with locked_directory(directory):
            pass
    assert raised.value.errno == errno.ELOOP
    assert any("health.json: " in each for each in state.load_ledger(directory, "boot")[1])
    await store(FULL, directory)
    assert state.load_ledger(directory, "boot") == (FULL, [])
    assert (tmp_path / "foreign").read_text() == "foreign"


@pytest.mark.parametrize("mode", [0o770, 0o707])
async def test_a_directory_that_others_can_change_is_not_believed(tmp_path: Path, mode: int) -> None:
    """Nor is one below it: they could put another one in its place."""
    parent = tmp_path / "open"
    parent.mkdir()
    parent.chmod(mode)
    with pytest.raises(PermissionError, match=f"{parent} ") as raised:
        async with locked_directory(parent / "s"):
            pass
    assert raised.value.filename == str(parent / "s")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to somebody else")
async def test_a_directory_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    os.chown(tmp_path / "s", 65534, 65534)
    with pytest.raises(PermissionError, match="65534"):
        async with locked_directory(tmp_path / "s"):
            pass
    assert list((tmp_path / "s").iterdir()) == []


async def test_a_file_in_the_place_of_the_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("x")
    with pytest.raises(NotADirectoryError):
        async with locked_directory(tmp_path / "s"):
            pass


def spoil(path: Path) -> None:
    """What cannot be read, not even by root: a directory stands there, and it is not empty."""
    path.unlink(missing_ok=True)
    (path / "x").mkdir(parents=True)


@pytest.mark.parametrize("spoiled", [part.replace("_", "-") for part in FIELDS_WITH_FILE])
async def test_a_file_that_the_disk_does_not_give_costs_only_itself(tmp_path: Path, spoiled: str) -> None:
    """It is named and left alone; the others are remembered, and still on disk after a run of the agent."""
    await store(FULL, tmp_path)
    spoil(tmp_path / f"{spoiled}.json")
    rest = FULL.but(**{spoiled.replace("-", "_"): None})

    ledger, problems = state.load_ledger(tmp_path, "boot")
    await store(ledger, tmp_path)

    assert ledger == rest
    assert len(problems) == 1 and f"{spoiled}.json: " in problems[0]
    assert state.load_ledger(tmp_path, "boot")[0] == rest
    assert (tmp_path / f"{spoiled}.json/x").is_dir()


async def test_what_could_not_be_read_is_not_taken_for_what_is_not_there(tmp_path: Path) -> None:
    """A ledger that was not loaded removes nothing; a value that this agent came to have replaces the file."""
    await store(FULL, tmp_path)
    await store(Ledger(boot_id="boot"), tmp_path)
    assert state.load_ledger(tmp_path, "boot") == (FULL, [])

    await store(Ledger(boot_id="boot"), tmp_path, Ledger(boot_id="boot", config_name="b"))
    assert state.load_ledger(tmp_path, "boot") == (FULL.but(config_name="b"), [])


async def test_what_cannot_be_set_aside_stays(tmp_path: Path) -> None:
    """A name that is taken for setting aside is said, and the other parts are whole."""
    await store(FULL, tmp_path)
    (tmp_path / "release.json").write_text("{")
    spoil(tmp_path / "release.unreadable")

    ledger, problems = state.load_ledger(tmp_path, "boot")

    assert ledger == FULL.but(release=None)
    assert f"release.unreadable: {os.strerror(errno.EISDIR)}" in problems[0]
    assert (tmp_path / "release.json").read_text() == "{"


async def test_what_may_have_been_written_is_written_over(tmp_path: Path) -> None:
    """A value that could not be written may be on disk all the same: the one before it is written again."""
    node = Node(Snapshot(), now=lambda: 100.0)
    node.apply(LedgerLoaded(FULL))
    async with storing(node, tmp_path):
        assert await node.wait_until(is_ledger_stored, deadline=60)
        spoil(tmp_path / "share-layouts.json.new")
        node.apply(LedgerLoaded(FULL.but(share_layouts={"GPU-a": memory_layout(1024, mps=False).encoded})))
        assert await node.wait_until(lambda s: s.statuses[STATE_DIRECTORY_PART].state == "failing", deadline=60)
        (tmp_path / "share-layouts.json").write_bytes(encode_part({"GPU-a": "1024 MiB"}, "boot"))
        node.apply(LedgerLoaded(FULL))
        shutil.rmtree(tmp_path / "share-layouts.json.new")
        assert await node.wait_until(is_ledger_stored, deadline=60)
        assert node.snapshot.stored_ledger.possible_share_layouts == (FULL.share_layouts,)
        assert state.load_ledger(tmp_path, "boot") == (FULL, [])


async def test_one_file_that_cannot_be_written_holds_up_no_other(tmp_path: Path) -> None:
    """The problem is a condition with the path, all else is on disk, and it is tried again until it goes."""
    spoil(tmp_path / "release.json")
    node = Node(Snapshot(), now=lambda: 100.0)
    node.apply(LedgerLoaded(FULL))
    async with storing(node, tmp_path):
        assert await node.wait_until(lambda s: STATE_DIRECTORY_PART in s.statuses, deadline=60)
        assert f"release.json: {os.strerror(errno.EISDIR)}" in as_shown(
            node.snapshot.statuses[STATE_DIRECTORY_PART].text
        )
        assert state.load_ledger(tmp_path, "boot")[0] == FULL.but(release=None)
        assert not is_ledger_stored(node.snapshot)

        (tmp_path / "release.json/x").rmdir()
        (tmp_path / "release.json").rmdir()
        assert await node.wait_until(is_ledger_stored, deadline=60)
    assert state.load_ledger(tmp_path, "boot") == (FULL, [])


class Killed(Exception):
    """The process died here."""


@given(crash=st.integers(0, 12), before=st.sampled_from([None, "a"]), now=st.sampled_from([None, "b", "c"]))
def test_a_crash_at_any_write_leaves_the_old_value_or_the_new(
    tmp_path_factory: pytest.TempPathFactory, crash: int, before: str | None, now: str | None
) -> None:
    """Whichever system call is the last, the next start reads one of the two, and nothing is unreadable."""
    directory = tmp_path_factory.mktemp("state")
    state._write(directory, "config_name", before, "boot")
    countdown = itertools.count()

    def guard(name: str) -> object:
        real = getattr(os, name)

        def call(*args: object, **kwargs: object) -> object:
            if next(countdown) == crash:
                raise Killed
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fsync", "replace", "rename", "unlink"):
            patch.setattr(os, name, guard(name))
        with suppress(Killed):
            state._write(directory, "config_name", now, "boot")

    ledger, problems = state.load_ledger(directory, "boot")
    assert ledger.config_name in (before, now)
    assert problems == []


async def test_a_second_agent_waits_and_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    """The lock names its holder, and passes on when that one ends."""
    async with locked_directory(tmp_path / "s") as first:
        assert [owner async for owner in first] == []
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
        async with locked_directory(tmp_path / "s", every=0.01) as second:
            assert await anext(second) == f"process {os.getpid()}"
            rest = asyncio.ensure_future(anext(second, None))
            await asyncio.sleep(0)
        rest.cancel()
    async with locked_directory(tmp_path / "s") as third:
        assert [owner async for owner in third] == []


@pytest.fixture
def denied(tmp_path: Path) -> Iterator[Path]:
    """A path that cannot be a directory: a file stands there."""
    path = tmp_path / "file"
    path.write_text("x")
    yield path


async def test_a_wish_is_not_stored_while_the_disk_refuses(denied: Path) -> None:
    """`stored` stays false: no promise is answered that the disk does not hold. The condition names the path."""
    node = Node(Snapshot(), now=lambda: 100.0)
    node.apply(DriverReleaseRequested(DriverRelease(until=500.0, reason="x")))
    async with storing(node, denied):
        assert await node.wait_until(lambda s: STATE_DIRECTORY_PART in s.statuses, deadline=60)

    assert not is_ledger_stored(node.snapshot)
    assert node.snapshot.statuses[STATE_DIRECTORY_PART].state == "failing"
    assert f"{denied}: {os.strerror(errno.ENOTDIR)}" in as_shown(node.snapshot.statuses[STATE_DIRECTORY_PART].text)


async def test_a_wish_taken_back_while_it_is_written_is_not_kept_before_the_disk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger is as it was before the wish, but the disk is not yet: a crash would bring the wish back."""
    node = Node(Snapshot(), now=lambda: 100.0)
    keeping = asyncio.create_task(state.keep_ledger_stored(node, tmp_path))
    assert await node.wait_until(is_ledger_stored, deadline=60)
    writing, go_on, write = threading.Event(), threading.Event(), state._write

    def slowly(directory: Path, part: str, value: object, boot: str) -> None:
        writing.set()
        go_on.wait(60)
        write(directory, part, value, boot)

    monkeypatch.setattr(state, "_write", slowly)
    node.apply(DriverReleaseRequested(DriverRelease(until=500.0, reason="x")))
    assert await asyncio.to_thread(writing.wait, 60)
    node.apply(DriverReleaseRequested(None))
    assert not is_ledger_stored(node.snapshot)

    go_on.set()
    assert await node.wait_until(is_ledger_stored, deadline=60)
    assert not (tmp_path / "release.json").exists()
    keeping.cancel()
