"""What is said of two snapshots that follow each other: each cause once, with its devices, and not its other words."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from gpuplane.base.logsubject import LogSubject
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.core.advertising import offer
from gpuplane.node.core.reports.news import news
from gpuplane.node.core.step import step
from gpuplane.node.model.claims import AllocatedDevice, ClaimName, PreparedClaim, PreparedDevice
from gpuplane.node.model.config import DraSettings, ReplicatedResource, Settings, Sharing
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    Fact,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Fault, Gpu, Machine, Mig
from gpuplane.node.model.snapshot import Allocation, Snapshot
from gpuplane.node.model.status import (
    DRIVER_PART,
    MPS_SUPERVISOR_PART,
    SLICES_PART,
    DriverStatus,
    SlicesStatus,
    Status,
    plugin_part,
)
from gpuplane.node.model.views import News
from tests.golden import Golden

GPUS = tuple(Gpu(index=n, uuid=f"GPU-{n}") for n in range(8))
ALL = tuple(gpu.uuid for gpu in GPUS)
NAME = "nvidia.com/gpu"
READY = (
    ConfigLoaded(Settings(device_list_strategy=("envvar",))),
    AllocationsListed((), 0.0),
    MachineObserved(Machine(gpus=GPUS)),
)
CALLS = ("nvmlDeviceGetTemperature", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature", "nvmlDeviceGetName")


def after(*facts: Fact, start: Snapshot | None = None) -> Snapshot:
    """The node after these facts, a minute apart."""
    snapshot = start or Snapshot()
    for at, fact in enumerate(facts):
        snapshot = step(snapshot, fact, 60.0 * (at + 10))
    return snapshot


SERVING = after(*READY)


def said(*facts: Fact) -> Iterator[News]:
    """The news of these facts on a node that serves."""
    snapshot = SERVING
    for at, fact in enumerate(facts):
        following = step(snapshot, fact, 1e6 + 60.0 * at)
        yield from news(snapshot, following)
        snapshot = following


def lines(found: Iterable[News]) -> list[str]:
    """As the log shows them."""
    return [f"{each.level} {each.about}: {each.text}" for each in found]


def subjects(found: Iterable[News]) -> list[tuple[str, LogSubject]]:
    """The level of each, and what it is about."""
    return [(each.level, each.subject) for each in found]


def ill(call: str, gpus: Iterable[int] = range(8)) -> MachineObserved:
    """A look at which a call of the driver fails, of some GPUs."""
    fault = Fault("fabric-failed", f"{call}: the driver reports an unknown error")
    return MachineObserved(Machine(gpus=tuple(gpu.but(faults=(fault,)) if gpu.index in gpus else gpu for gpu in GPUS)))


def test_one_cause_of_eight_devices_is_one_line(golden: Golden) -> None:
    """With all of them; and so is the end of it."""
    found = list(said(DrainRequested("", Drain("a move")), DrainRequested("", None)))

    all_of_them = LogSubject(devices=ALL, resources=(NAME,))
    assert subjects(found) == [("info", all_of_them.but(code="drained")), ("info", all_of_them)]
    golden(lines(found))


def test_each_reason_is_one_line_of_all_devices_that_have_it(golden: Golden) -> None:
    """Though some of them have another reason too, which was said before."""
    pods = [Allocation(NAME, (f"GPU-{n}",), PodRef("default", f"train-{n}", container="main")) for n in range(4)]
    held = after(AllocationsListed(tuple(pods), 601.0), start=SERVING)
    mps = Sharing(replicated_resources=(ReplicatedResource(NAME, 4),), strategy="mps")
    shared = after(ConfigLoaded(Settings(device_list_strategy=("envvar",), sharing=mps)), start=held)
    ill = after(StatusChanged(MPS_SUPERVISOR_PART, Status("failing", "there is no supervisor")), start=shared)

    found = [*news(held, shared), *news(shared, ill)]
    assert [each.level for each in found if each.subject.code == "held-as-other-resource"] == ["info"] * 4
    assert [each.subject.devices for each in found if each.subject.code == "mps-not-serving"] == [ALL]
    golden(lines(found))


def test_what_is_offered_and_not_available_is_counted(golden: Golden) -> None:
    """With the number of devices, as after a restart of the agent."""
    drained = [DrainRequested(f"GPU-{n}", Drain("replace fan")) for n in range(6)]
    known = after(MachineObserved(Machine(gpus=GPUS)), *drained)
    unsettled = known.but(machine=None)
    serving = after(*READY, start=unsettled)

    golden(lines(news(unsettled, serving)))


def test_a_claim_that_has_a_device_is_no_news() -> None:
    """Neither when it is prepared, nor when kubelet lists its container, nor when it ends."""
    pod = PodRef("default", "train", container="main")
    device = PreparedDevice(AllocatedDevice("gpu", "n1/gpu-1", "gpu-1"), "GPU-1", "x")
    claim = PreparedClaim(ClaimName("default", "train-gpu", "a"), "gpu.nvidia.com", (device,))
    promised = SERVING.but(ledger=SERVING.ledger.but(claims={"a": claim}))
    listed = Allocation("gpu.nvidia.com", ("GPU-1",), holder=pod, claim="default/train-gpu")
    claimed = [promised, promised.but(allocations=(listed,)), SERVING.but(allocations=(listed,)), SERVING]

    assert offer(claimed[0]) != offer(SERVING)
    for before, following in pairwise((SERVING, *claimed)):
        assert lines(news(before, following)) == []


def test_that_gpus_are_offered_twice_is_said_once_when_it_begins(golden: Golden) -> None:
    """Not of each list, each claim and each slice that follows; and not where no slice is published."""
    dra = Settings(device_list_strategy=("envvar",), dra=DraSettings(enabled=True))
    config, looked = ConfigLoaded(dra), MachineObserved(Machine(gpus=(*GPUS[:7], GPUS[7].but(mig=Mig(enabled=True)))))
    published = StatusChanged(SLICES_PART, SlicesStatus("ok", published=("n1-gpu.nvidia.com-gpu-0",)))
    more = StatusChanged(SLICES_PART, SlicesStatus("failing", "away", published=("n1-gpu.nvidia.com-gpu-1",)))

    assert [each for each in said(config, looked) if each.subject.part == SLICES_PART.name] == []
    found = [each for each in said(config, looked, published, ill("x", (0,)), more) if each.subject.devices == ALL[:7]]
    assert [(each.level, each.subject.part) for each in found] == [("warning", SLICES_PART.name)]
    golden(lines(found))


def test_it_is_not_said_again_when_another_call_of_the_driver_fails(golden: Golden) -> None:
    """Nor does it matter how often: the fault is the same."""
    [line] = said(*(ill(call) for call in CALLS))

    assert subjects([line]) == [("warning", LogSubject(devices=ALL, code="fabric-failed", resources=(NAME,)))]
    golden(lines([line]))


def test_devices_that_join_are_said_and_another_cause_is() -> None:
    """Only they, and only it."""
    drained = DrainRequested("GPU-0", Drain("a fan is loud"))
    assert [each.about for each in said(ill("x", (0, 1)), ill("y", (0, 1, 5)), drained)] == [
        "2 GPUs (0, 1)",
        "GPU-5",
        "GPU-0",
    ]


def test_a_driver_that_fails_in_one_call_after_another_is_one_line(golden: Golden) -> None:
    """The part once, and its devices once, not the node again; another fault is another line."""
    failing = [
        fact
        for call in CALLS
        for fact in (
            MachineObserved(Machine(faults=(Fault("driver-missing", f"{call} is not there"),))),
            StatusChanged(DRIVER_PART, DriverStatus("failing", f"{call} is not there", code="driver-missing")),
        )
    ]
    found = list(said(*failing))
    assert subjects(found) == [
        ("warning", LogSubject(devices=ALL, part="driver", code="driver-missing", resources=(NAME,))),
        ("warning", LogSubject(part="driver", code="driver-missing")),
    ]
    golden(lines(found))
    other = StatusChanged(DRIVER_PART, DriverStatus("failing", "it may not be used", code="driver-denied"))
    *_, last = said(*failing, other)
    assert (last.about, last.subject) == ("driver", LogSubject(part="driver", code="driver-denied"))


def test_a_part_without_a_code_is_said_when_its_words_change() -> None:
    """A plugin is also about its resource."""
    [one, two] = said(
        StatusChanged(plugin_part(NAME), Status("failing", "refused")),
        StatusChanged(plugin_part(NAME), Status("failing", "refused", since=1.0)),
        StatusChanged(plugin_part(NAME), Status("ok")),
    )
    assert one.subject == two.subject == LogSubject(part=f"plugin/{NAME}", resources=(NAME,))


def test_what_is_left_for_one_reason_is_one_line(golden: Golden) -> None:
    """With all that it leaves."""
    cut = tuple(gpu.but(mig=Mig(enabled=True)) if gpu.index > 4 else gpu for gpu in GPUS)
    found = list(said(MachineObserved(Machine(gpus=cut))))

    assert subjects(found) == [("info", LogSubject(resources=(NAME,))), ("info", LogSubject(devices=ALL[5:]))]
    golden(lines(found))


def test_a_driver_that_is_missing_is_said_once(golden: Golden) -> None:
    """By the driver's condition, with the part that the offer waits for; the look comes before it."""
    fault = Fault("driver-missing", "no libnvidia-ml.so.1 in /")
    failing = DriverStatus("failing", fault.message, code=fault.code)
    before = after(*READY[:2])
    looked = step(before, MachineObserved(Machine(gpus=None, faults=(fault,))), 1e6)
    known = step(looked, StatusChanged(DRIVER_PART, failing), 1e6)

    found = [*news(before, looked), *news(looked, known)]
    driver = LogSubject(part="driver", code=fault.code)
    assert [(each.level, each.about, each.subject) for each in found] == [
        ("info", "offer", driver),
        ("warning", "driver", driver),
    ]
    golden(lines(found))
