"""Which lengths are wanted, and the one try that follows: when, of which GPU, and what is said meanwhile."""

import pytest

from gpuplane.node.core import timeslices
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.ledger import adapt_to_new_boot
from gpuplane.node.core.step import next_due_time, step
from gpuplane.node.model.config import ReplicatedResource, Settings, Sharing, TimeSlice
from gpuplane.node.model.facts import (
    ConfigLoaded,
    DriverReleaseRequested,
    LedgerLoaded,
    StatusChanged,
    TimeSliceFinished,
)
from gpuplane.node.model.machine import Fault, Gpu
from gpuplane.node.model.snapshot import DriverRelease, Snapshot, TimeSliceState
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from tests.golden import Golden
from tests.node.core.health.world import World, machine
from tests.texts import as_shown


def shared(*entries: tuple[TimeSlice | None, str], strategy: str = "time-slicing") -> Settings:
    """GPUs in two shares each, by entries: a length, and the GPUs' indices."""
    resources = (
        ReplicatedResource(name="nvidia.com/gpu", replicas=2, devices=tuple(indices.split()), time_slice=length)
        for length, indices in entries
    )
    return Settings(sharing=Sharing(replicated_resources=tuple(resources), strategy=strategy))  # type: ignore[arg-type]


def world(*entries: tuple[TimeSlice | None, str]) -> World:
    """Three GPUs."""
    return World(machine(3), shared(*entries))


def tried(world: World) -> tuple[str, TimeSlice] | None:
    """The try that is under way: GPU and length."""
    wish = timeslices.current_try(world.snapshot)
    return None if wish is None else (wish.gpu.removeprefix("GPU-"), wish.length)


def answer(world: World, problem: str = "", *, unsure: bool = False) -> None:
    """End the try that is under way."""
    wish = timeslices.current_try(world.snapshot)
    assert wish is not None
    world.apply(
        TimeSliceFinished(
            gpu=wish.gpu, length=wish.length, requested_at=wish.requested_at, problem=problem, outcome_unknown=unsure
        )
    )


def serve(world: World) -> list[tuple[str, TimeSlice]]:
    """Let every try succeed that is under way; which they were."""
    found = []
    while (each := tried(world)) is not None:
        found.append(each)
        answer(world)
    return found


def known(world: World) -> dict[str, TimeSlice | None]:
    """The lengths that are remembered as ours."""
    return {
        gpu.removeprefix("GPU-"): each.last_set_length
        for gpu, each in (world.snapshot.ledger.time_slices or {}).items()
    }


def said(world: World) -> tuple[str, str]:
    """The condition: standing and reason."""
    condition = timeslices.time_slice_status(world.snapshot)
    return (condition.state, as_shown(condition.text)) if condition else ("", "")


def test_entries_name_gpus() -> None:
    """As they share them: the first entry that takes a GPU decides, and one without a length leaves it as it is."""
    assert timeslices.desired_lengths(world(("long", "0 1"), ("short", "1 2")).snapshot) == {
        "GPU-0": "long", "GPU-1": "long", "GPU-2": "short",
    }  # fmt: skip
    assert timeslices.desired_lengths(world((None, "0"), ("short", "0 1")).snapshot) == {"GPU-1": "short"}
    assert timeslices.desired_lengths(World(machine(3), shared(("long", "0"), strategy="mps")).snapshot) == {}


def test_nothing_is_known_before_the_first_look_and_configuration() -> None:
    """Then nothing is set, and nothing set back either."""
    slicing = TimeSliceState(tried_length="long", requested_at=1.0, last_set_length="long")
    ledger = Snapshot().ledger.but(time_slices={"GPU-0": slicing})
    for snapshot in (Snapshot(), World(machine(1), settings=None).snapshot):
        after = step(snapshot, LedgerLoaded(ledger), 1000.0)
        assert timeslices.desired_lengths(after) is None
        assert after.ledger.time_slices == {"GPU-0": slicing}
        assert (timeslices.current_try(after), timeslices.time_slice_status(after)) == (None, None)


def test_one_gpu_after_the_other_in_the_drivers_order(golden: Golden) -> None:
    """And each stays set."""
    node = world(("long", "0 2"), ("short", "1"))
    assert said(node)[0] == "waiting"
    golden(said(node)[1], "before")
    answer(node)
    status = timeslices.time_slice_status(node.snapshot)
    assert status is not None
    assert (status.state, status.pending_gpus) == ("waiting", ("GPU-1", "GPU-2"))
    assert serve(node) == [("1", "short"), ("2", "long")]
    assert known(node) == {"0": "long", "1": "short", "2": "long"}
    assert said(node)[0] == "ok"
    golden(said(node)[1], "after")
    node.wait(3600.0)
    node.look()
    assert serve(node) == []


def test_unset_gpus_become_default_and_no_others() -> None:
    """Those that we set, and no longer than until that is done."""
    node = world(("long", "0"), ("short", "1"))
    serve(node)
    node.apply(ConfigLoaded(shared(("short", "1 2"))))
    assert serve(node) == [("0", "default"), ("2", "short")]
    node.apply(ConfigLoaded(Settings()))
    assert serve(node) == [("1", "default"), ("2", "default")]
    assert (node.snapshot.ledger.time_slices, said(node)) == (None, ("", ""))


def test_what_was_only_wished_is_not_set_back() -> None:
    """The driver was away until the wish was taken back."""
    node = World(machine(2), Settings())
    node.fail("driver-hang")
    node.apply(ConfigLoaded(shared(("long", "0 1"))))
    assert (tried(node), said(node)[0]) == (None, "waiting")
    node.apply(ConfigLoaded(Settings()))
    node.fail()
    assert (serve(node), said(node)) == ([], ("", ""))


def test_what_is_refused_is_said_and_tried_again_ever_later(golden: Golden) -> None:
    """The GPU is served; once nobody wants it any more, nothing has to be set back."""
    node = world(("long", "0 1"))
    answer(node, "nvidia-smi: Not Supported")
    assert said(node)[0] == "failing"
    golden(said(node)[1], "GPU 1 is to be set")
    assert serve(node) == [("1", "long")]
    assert said(node)[0] == "failing"
    golden(said(node)[1], "GPU 1 is set")
    assert not node.ill()

    rests = []
    for _ in range(8):
        began, at = node.now, next_due_time(node.snapshot)
        assert at is not None
        node.wait(at - began)
        rests.append(node.now - began)
        assert tried(node) == ("0", "long")
        assert said(node)[0] == "failing"
        answer(node, "nvidia-smi: Not Supported")
    assert rests == [10, 20, 40, 80, 160, 320, 600, 600]

    node.apply(ConfigLoaded(shared(("short", "0"), ("long", "1"))))  # another length: perhaps that one
    assert tried(node) == ("0", "short")
    answer(node, "nvidia-smi: Not Supported")
    node.apply(ConfigLoaded(Settings()))
    assert serve(node) == [("1", "default")]
    assert (node.snapshot.ledger.time_slices, said(node)) == (None, ("", ""))


def test_what_broke_off_may_have_been_done(golden: Golden) -> None:
    """So it is set back where nobody wants it any more, until that succeeds."""
    node = world(("long", "0"))
    answer(node, "nvidia-smi did not end within 30 s", unsure=True)
    node.apply(ConfigLoaded(Settings()))
    assert tried(node) == ("0", "default")
    answer(node, "nvidia-smi: no")
    assert said(node)[0] == "failing"
    golden(said(node)[1])
    node.wait(10.0)
    assert serve(node) == [("0", "default")]
    assert node.snapshot.ledger.time_slices is None


def test_another_wish_waits_for_the_try_that_is_under_way() -> None:
    """What comes of a try is what was tried."""
    node = world(("long", "0"))
    node.apply(ConfigLoaded(shared(("short", "0"))))
    assert tried(node) == ("0", "long")
    answer(node)
    assert known(node) == {"0": "long"}
    assert serve(node) == [("0", "short")]


@pytest.mark.parametrize("code", ["gpu-lost", "reset-required", "gpu-hang"])
def test_a_gpu_that_does_not_answer_is_waited_for(code: str, golden: Golden) -> None:
    """The others are not."""
    node = World(machine(2), Settings())
    node.show("0", code)
    node.apply(ConfigLoaded(shared(("long", "0 1"))))
    assert serve(node) == [("1", "long")]
    assert said(node)[0] == "waiting"
    golden(said(node)[1], "waiting")
    node.show("0")
    assert serve(node) == [("0", "long")]


def test_a_reset_gpu_is_set_again() -> None:
    """It alone."""
    node = world(("long", "0 1 2"))
    serve(node)
    node.wait(60.0)
    node.show("1", "gpu-lost")
    node.wait(60.0)
    assert serve(node) == []
    node.show("1")
    assert serve(node) == [("1", "long")]


def test_what_was_set_before_a_reset_is_not_set_by_a_refusal_after_it(golden: Golden) -> None:
    """It is tried again."""
    node = world(("long", "0"))
    serve(node)
    node.wait(60.0)
    node.show("0", "gpu-lost")
    node.wait(60.0)
    node.show("0")
    assert said(node)[0] == "waiting"
    golden(said(node)[1], "reset")
    answer(node, "nvidia-smi: no")
    assert said(node)[0] == "failing"
    golden(said(node)[1], "refused")
    node.wait(10.0)
    assert serve(node) == [("0", "long")]


def test_a_driver_that_was_loaded_anew_has_forgotten_all() -> None:
    """Whether a look saw it away, or the kernel log alone tells of it."""
    node = world(("long", "0 1"))
    serve(node)
    node.wait(60.0)
    node.fail("driver-not-loaded")
    node.wait(60.0)
    assert serve(node) == []
    node.fail()
    assert serve(node) == [("0", "long"), ("1", "long")]
    node.wait(60.0)
    node.happen(0, "driver-loaded")
    assert serve(node) == [("0", "long"), ("1", "long")]


def test_hands_off_a_driver_that_is_let_go_of() -> None:
    """Then it may have been reset, or be another one: all is set again, and what failed before is tried at once."""
    node = world(("long", "0 1"))
    answer(node, "nvidia-smi: no")
    serve(node)
    node.apply(DriverReleaseRequested(DriverRelease(until=node.now + 1000.0, reason="reset")))
    node.apply(ConfigLoaded(shared(("short", "0 1"))))
    assert tried(node) is None
    node.apply(StatusChanged(DRIVER_PART, DriverStatus(state="waiting", text="released", released=True)))
    node.wait(60.0)
    assert (tried(node), said(node)[0]) == (None, "waiting")
    node.apply(DriverReleaseRequested(None))
    assert tried(node) is None
    node.look()
    assert serve(node) == [("0", "short"), ("1", "short")]


def test_a_try_that_another_agent_began_is_made_again() -> None:
    """It may have been made. What an agent set before is set again too: GPUs may have been reset meanwhile."""
    node = world(("long", "0 1"))
    answer(node)
    ledger = node.snapshot.ledger
    assert (ledger.time_slices or {})["GPU-1"].pending

    again = World(machine(2), settings=None, now=node.now + 5.0)
    again.apply(LedgerLoaded(ledger))
    assert tried(again) is None  # nothing before the configuration is known
    again.apply(ConfigLoaded(Settings()))
    assert serve(again) == [("0", "default"), ("1", "default")]

    again = World(machine(2), settings=None, now=node.now + 5.0)
    again.apply(LedgerLoaded(ledger))
    again.apply(ConfigLoaded(shared(("long", "0 1"))))
    assert serve(again) == [("0", "long"), ("1", "long")]


def test_a_reboot_forgets() -> None:
    """So does the driver."""
    node = world(("long", "0 1"))
    serve(node)
    assert adapt_to_new_boot(node.snapshot.ledger, "another boot", 0.0, 0.0).time_slices is None


def test_a_gpu_in_mig_mode_has_no_length() -> None:
    """That is said, and nothing tried; the whole GPUs of the same entry have theirs."""
    everything = ReplicatedResource(name="nvidia.com/gpu", replicas=2, time_slice="long")
    parts = ReplicatedResource(name="nvidia.com/mig-3g.40gb", replicas=2, time_slice="short")
    settings = Settings(mig_strategy="mixed", sharing=Sharing(replicated_resources=(everything, parts)))
    node = World(machine(2, parts=[1]), settings)
    assert serve(node) == [("0", "long")]
    mig_mode = "GPU 1 (GPU-1): it is in MIG mode; a GPU in MIG mode has no time slice length"
    assert said(node) == ("failing", f"{mig_mode}; long: GPU 0")


def test_what_another_try_came_to_tells_nothing() -> None:
    """An answer counts for the try that is under way, by when that was wished for."""
    node = world(("long", "0"))
    before = node.snapshot
    node.apply(TimeSliceFinished(gpu="GPU-0", length="long", requested_at=node.now - 1.0))
    node.apply(TimeSliceFinished(gpu="GPU-1", length="long", requested_at=node.now))
    assert node.snapshot is before


def test_an_absent_gpu_is_remembered() -> None:
    """Until it is back, and set as is wanted then."""
    node = world(("long", "0 2"))
    serve(node)
    gpus = node.machine.gpus or ()
    node.machine = node.machine.but(gpus=gpus[:2])
    node.wait(1.0)
    node.look()
    node.apply(ConfigLoaded(Settings()))
    assert serve(node) == [("0", "default")]
    node.machine = node.machine.but(gpus=gpus)
    node.wait(1.0)
    node.look()
    assert serve(node) == [("2", "default")]


def test_time_slices_withhold_nothing() -> None:
    """Whatever becomes of them."""
    node = world(("long", "0 1 2"))
    before = offer(node.snapshot)
    answer(node, "nvidia-smi did not end within 30 s", unsure=True)
    assert offer(node.snapshot) is before
    serve(node)
    assert offer(node.snapshot) is before


def test_a_gpu_without_a_uuid_cannot_be_named() -> None:
    """It is left, and no length of it wanted."""
    gpus = (Gpu(index=0, faults=(Fault(code="gpu-lost", message="gone"),)), Gpu(index=1, uuid="GPU-1"))
    node = World(machine(0).but(gpus=gpus), shared(("long", "0 1")))
    assert serve(node) == [("1", "long")]
