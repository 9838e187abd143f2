"""`gpuplane inspect` for programs that read lines: a word, then cells apart by tabs."""

from gpuplane.cli.commands.inspect.lines import health_lines, node_lines
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.model.config import Settings
from gpuplane.node.model.control import NodeState
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.snapshot import Allocation, DriverRelease
from gpuplane.node.model.status import DRIVER_PART, DriverStatus
from tests.cli.commands.inspect.pictures import GPU, MISSING, inspected, picture, profile, shares, ward
from tests.golden import Golden


def cells(of: NodeState, word: str) -> list[list[str]]:
    """The cells of the lines that begin with a word."""
    split = (line.split("\t") for line in node_lines(inspected(of)))
    return [line[1:] for line in split if line[0] == word]


def told(of: NodeState) -> list[list[str]]:
    """The cells of the lines about health."""
    return [line.split("\t") for line in health_lines(inspected(of))]


def test_each_thing_is_a_line_of_cells_apart_by_tabs(golden: Golden) -> None:
    """Each id that kubelet is told is one; what is in a text cannot end a line or a cell."""
    found = list(node_lines(inspected(shares("two\nlines\tof \x1bit"))))
    assert [line.split("\t")[0] for line in found] == ["agent", "strategy", "device", "device", "device", "part"]
    assert not any("\n" in line or "\x1b" in line for line in found)
    golden(found)


def test_stand_ins_are_told() -> None:
    """At the end of the line that says how containers get devices."""
    strategies = [
        cells(picture(ConfigLoaded(Settings(stand_ins=each)), MachineObserved(profile("t4"))), "strategy")[0][2:]
        for each in (False, True)
    ]
    assert strategies == [[], ["stand-ins"]]


def test_a_device_has_index_model_and_memory() -> None:
    """At the end of its line, behind who holds it."""
    gpu = (profile("t4").gpus or ())[0].uuid
    held = Allocation("nvidia.com/gpu", (gpu,), PodRef.parse("ml/train/main"))
    of = picture(ConfigLoaded(Settings()), AllocationsListed((held,), 0.0), MachineObserved(profile("t4")))

    assert cells(of, "device")[0] == [gpu, "nvidia.com/gpu", "healthy", "", "ml/train", "0", "Tesla T4", "15 GiB"]
    assert cells(of, "driver") == [["570.172.08", "12.8"]]


def test_what_a_pod_holds_that_is_not_there_is_a_line(golden: Golden) -> None:
    """It keeps others from the GPU that it may be on."""
    held = Allocation("nvidia.com/mig-1g.5gb", ("MIG-gone",), PodRef.parse("ml/train/main"))
    of = picture(ConfigLoaded(Settings()), AllocationsListed((held,), 0.0), MachineObserved(profile("l40s")))

    uuid, resource, state, reason, pod = cells(of, "device")[-1]
    assert (uuid, resource, state, pod) == ("MIG-gone", "-", "absent", "ml/train")
    golden(reason)


def test_nothing_is_said_to_be_gone_before_anybody_has_looked(golden: Golden) -> None:
    """Kubelet often answers before the driver."""
    held = Allocation("nvidia.com/gpu", ("GPU-0",), PodRef.parse("ml/train/main"))

    [[uuid, resource, state, reason, pod]] = cells(picture(AllocationsListed((held,), 0.0)), "device")
    assert (uuid, resource, state, pod) == ("GPU-0", "-", "absent", "ml/train")
    golden(reason)


def test_how_containers_are_given_devices_is_shown_with_the_reason(golden: Golden) -> None:
    """Once the machine and its configuration are known."""
    [[strategy, reason]] = cells(ward(), "strategy")
    assert strategy == "envvar"
    golden(reason)
    configured = ward(ConfigLoaded(Settings(device_list_strategy=("volume-mounts", "cdi-cri"))))
    assert cells(configured, "strategy") == [["volume-mounts,cdi-cri"]]


def test_a_release_is_shown_with_its_end(golden: Golden) -> None:
    of = shares("x", DriverReleaseRequested(DriverRelease(until=350.0, reason="reset")))

    [[left, reason, withdraw]] = cells(of, "release")
    assert (reason, withdraw) == ("reset", "gpuplane driver resume")
    golden(left)


def test_what_is_waited_for_is_shown(golden: Golden) -> None:
    """Once; of health where there is nothing else to tell."""
    [[reason]] = cells(picture(), "waiting")
    assert told(picture()) == [["waiting", reason]]
    golden(reason)


def test_inspect_says_in_healths_words_what_kubelet_is_told(golden: Golden) -> None:
    """A drain not twice; what is served all the same with its reason; probing from when only a probe is missing."""
    settings, gone = Settings(probe_period=5.0), DrainRequested(f"{GPU}1", None)
    shown = cells(ward(ConfigLoaded(settings), gone), "device")

    assert {line[0][-1]: line[2] for line in shown} == {
        "0": "healthy", "1": "probing", "2": "suspect", "3": "degraded", "4": "drained",
    }  # fmt: skip
    golden("\t".join(line) for line in shown)


def test_health_is_a_line_a_device(golden: Golden) -> None:
    """Index, UUID, state, since, reason, what ends it and what to do, apart by tabs."""
    shown = told(ward())

    assert [line[:4] for line in shown] == [
        ["0", f"{GPU}0", "healthy"],
        ["1", f"{GPU}1", "unhealthy", "1 min 28 s"],
        ["2", f"{GPU}2", "suspect", "1 min 29 s"],
        ["3", f"{GPU}3", "degraded", "1 min 29 s"],
        ["4", f"{GPU}4", "drained", "1 min 30 s"],
    ]
    assert all(line[6] for line in shown[1:])
    golden("\t".join(line) for line in shown)


def test_the_node_comes_first_where_something_is_wrong_with_it(golden: Golden) -> None:
    """And its GPUs, which it takes with it, say so."""
    of = ward(MachineObserved(MISSING))
    shown = told(of)

    assert [line[:4] for line in shown[:2]] == [
        ["node", "-", "unhealthy", "1 min 26 s"], ["0", f"{GPU}0", "unhealthy", "1 min 26 s"],
    ]  # fmt: skip
    assert cells(of, "node") == [[shown[0][2], shown[0][4]]]
    golden("\t".join(line) for line in shown)


def test_only_the_node_says_what_ends_a_release(golden: Golden) -> None:
    """With the time that is left; its GPUs refer to it."""
    release = DriverReleaseRequested(DriverRelease(until=350.0, reason="firmware"))
    shown = told(ward(release, StatusChanged(DRIVER_PART, DriverStatus("waiting", "released", released=True))))

    assert [len(line) for line in shown[:2]] == [6, 5]
    golden("\t".join(line[4:]) for line in shown[:2])
