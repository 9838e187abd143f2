"""Whatever happens in between, the GPUs come to have the lengths that are wanted, and no other GPU is touched.

A driver, an agent and its disk, by hand: nvidia-smi may refuse, crash or hang at any GPU, before or after it has set a
length; GPUs are reset, the driver is loaded anew or let go of, and the agent is killed at any point.
"""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuplane.node.core import timeslices
from gpuplane.node.model.config import ReplicatedResource, Settings, Sharing, TimeSlice
from gpuplane.node.model.facts import (
    ConfigLoaded,
    DriverReleaseRequested,
    LedgerLoaded,
    SetTimeSlice,
    StatusChanged,
    TimeSliceFinished,
)
from gpuplane.node.model.snapshot import DriverRelease, Ledger
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from tests.lengths import length
from tests.node.core.health.world import World, machine

COUNT = 3
GPUS = [f"GPU-{n}" for n in range(COUNT)]
ADMINS: dict[str, TimeSlice] = {"GPU-0": "default", "GPU-1": "medium", "GPU-2": "default"}
"""The lengths that a person has set."""

Wish = tuple[TimeSlice | None, ...]
"""The length of each GPU's entry."""


def configured(wish: Wish) -> Settings:
    """An entry for each GPU."""
    resources = (
        ReplicatedResource(name="nvidia.com/gpu", replicas=2, devices=(str(n),), time_slice=length)
        for n, length in enumerate(wish)
    )
    return Settings(sharing=Sharing(replicated_resources=tuple(resources)))


class Life:
    """A node whose GPUs have lengths, which only its driver knows."""

    def __init__(self) -> None:
        self.lengths, self.foreign = dict(ADMINS), dict(ADMINS)
        self.does = dict.fromkeys(GPUS, "")
        self.touched, self.perhaps = set[str](), set[str]()  # whom we gave a length, and whom perhaps
        self.wish: Wish = (None,) * COUNT
        self.disk, self.running, self.begun = Ledger(boot_id="boot"), False, None
        self.run: SetTimeSlice | None = None
        self.world = World(machine(COUNT), configured(self.wish))

    def configure(self, wish: Wish) -> None:
        self.wish = wish
        self.world.apply(ConfigLoaded(configured(wish)))

    def store(self) -> None:
        """The disk has the ledger."""
        self.disk = self.world.snapshot.ledger

    def begin(self) -> None:
        """The reconciler does what is wished for once the disk knows, each wish once."""
        wish = timeslices.current_try(self.world.snapshot)
        if wish is None or wish == self.begun or self.run or self.disk != self.world.snapshot.ledger:
            return
        self.begun = self.run = wish  # type: ignore[assignment]
        does = self.does[wish.gpu]
        if does in ("", "late"):
            self.lengths[wish.gpu] = wish.length
            self.touched.add(wish.gpu)
        elif does == "hang":
            self.perhaps.add(wish.gpu)

    def end(self) -> None:
        """nvidia-smi ends, or is ended."""
        if (run := self.run) is not None:
            self.run = None
            does = self.does[run.gpu]
            told = TimeSliceFinished(gpu=run.gpu, length=run.length, requested_at=run.requested_at)
            unsure = does in ("late", "hang")
            self.world.apply(told.but(problem=does, outcome_unknown=unsure))

    def attempt(self) -> None:
        """As it mostly begins."""
        self.store()
        self.begin()

    def finish(self) -> None:
        """As it mostly goes, for each GPU."""
        for _ in range(COUNT):
            self.attempt()
            self.end()

    def let(self, gpu: str, does: str) -> None:
        """What nvidia-smi does at this GPU; one that runs goes on as it began."""
        if self.run is None:
            self.does[gpu] = does

    def reset(self, gpu: str) -> None:
        """The driver forgets what was set, as looks show."""
        index = gpu.removeprefix("GPU-")
        self.world.show(index, "gpu-lost")
        self.wait(1.0)
        self._forget(gpu)
        self.world.show(index)

    def reload(self, looks: bool) -> None:
        """The driver is loaded anew: a look sees it away, or we have let go of it meanwhile."""
        if looks:
            self.world.fail("driver-not-loaded")
        else:
            self.world.apply(DriverReleaseRequested(DriverRelease(until=self.world.now + 1e6, reason="upgrade")))
            if self.run is not None and self.does[self.run.gpu] in ("", "refuse"):
                self.does[self.run.gpu] = "late"  # it is ended before it can say what it did
            self.end()
            self.world.apply(StatusChanged(DRIVER_PART, DriverStatus(state="waiting", text="released", released=True)))
        self.wait(1.0)
        self._forget(*GPUS)
        if looks:
            self.world.fail()
        else:
            self.world.apply(DriverReleaseRequested(None))
            self.world.look()

    def _forget(self, *gpus: str) -> None:
        for gpu in gpus:
            self.lengths[gpu] = self.foreign[gpu] = "default"
            self.touched.discard(gpu)

    def kill(self, wish: Wish) -> None:
        """The agent, and nvidia-smi with it. The next one has what the disk has, and perhaps another configuration."""
        self.wish = wish
        if self.run is not None:
            self.perhaps.add(self.run.gpu)
        self.run = self.begun = None
        before = self.world
        self.world = World(before.machine, settings=None, now=before.now + 1.0)
        self.world.apply(LedgerLoaded(self.disk))
        self.world.apply(ConfigLoaded(configured(self.wish)))

    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    def settle(self) -> None:
        """All is well, and has time."""
        self.does = dict.fromkeys(GPUS, self.does[self.run.gpu] if self.run else "")
        for _ in range(4 * COUNT):
            self.end()
            self.does = dict.fromkeys(GPUS, "")
            self.wait(1000.0)
            self.store()
            self.begin()


NONE, LONG, SHORT = ((None, None, None), ("long", None, None), ("short", None, None))
LENGTHS = st.sampled_from([None, "default", "short", "long"])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["configure", "configure", "kill"]), st.tuples(*[LENGTHS] * COUNT)),
    st.tuples(st.sampled_from(["store", "begin", "end"])),
    st.tuples(st.sampled_from(["attempt", "finish"])),
    st.tuples(st.sampled_from(["attempt", "finish"])),
    st.tuples(st.just("let"), st.sampled_from(GPUS), st.sampled_from(["", "refuse", "hang", "late"])),
    st.tuples(st.just("reset"), st.sampled_from(GPUS)),
    st.tuples(st.just("reload"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 15.0, 700.0])),
)


@settings(max_examples=length(80, 4000))
@given(st.lists(STEPS, max_size=10))
@example([("configure", LONG), ("attempt",), ("kill", NONE)])  # it was set, and nobody had said so
@example([("configure", LONG), ("begin",), ("kill", NONE)])  # the disk did not know of the wish
@example([("let", "GPU-0", "late"), ("configure", LONG), ("attempt",), ("end",), ("configure", NONE)])
@example([("configure", LONG), ("finish",), ("reset", "GPU-0"), ("let", "GPU-0", "refuse"), ("attempt",)])
@example([("configure", LONG), ("finish",), ("configure", SHORT), ("attempt",), ("kill", LONG)])
@example([("configure", LONG), ("attempt",), ("reload", False)])
def test_lengths_come_to_be_as_wanted(steps: list[tuple[object, ...]]) -> None:
    """Those of GPUs that we have left are "default" again where we changed them, and as they were where we did not."""
    life = Life()
    for name, *arguments in steps:
        getattr(life, str(name))(*arguments)
    life.settle()

    for gpu, wish in zip(GPUS, life.wish, strict=True):
        left = {"default"} if gpu in life.touched else {life.foreign[gpu]}
        left |= {"default"} if gpu in life.perhaps else set()
        assert life.lengths[gpu] in ({wish} if wish else left)
    known = life.world.snapshot.ledger.time_slices or {}
    assert {gpu: each.last_set_length for gpu, each in known.items()} == {
        gpu: wish for gpu, wish in zip(GPUS, life.wish, strict=True) if wish
    }
    said = timeslices.time_slice_status(life.world.snapshot)
    assert (said.state if said else "") == ("ok" if any(life.wish) else "")
