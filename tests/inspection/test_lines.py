"""`gpuplane inspect` for programs that read lines: a word, then cells apart by tabs."""

from gpuplane.cli.inspect.lines import health_lines, lines
from gpuplane.model.config import Settings
from gpuplane.model.control import NodeState
from gpuplane.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    MachineObserved,
    StatusChanged,
)
from gpuplane.model.pod import PodRef
from gpuplane.model.snapshot import LET_GO, Allocation, Condition, DriverRelease
from tests.inspection.pictures import GPU, MARKED, MISSING, NAME, inspected, picture, profile, shares, ward


def cells(of: NodeState, word: str) -> list[list[str]]:
    """The cells of the lines that begin with a word."""
    split = (line.split("\t") for line in lines(inspected(of)))
    return [line[1:] for line in split if line[0] == word]


def told(of: NodeState) -> list[list[str]]:
    """The cells of the lines about health."""
    return [line.split("\t") for line in health_lines(inspected(of))]


def test_each_thing_is_a_line_of_cells_apart_by_tabs() -> None:
    """Each id that kubelet is told is one; what is in a text cannot end a line or a cell."""
    assert list(lines(inspected(shares("two\nlines\tof \x1bit")))) == [
        f"agent\t1.2.3\tserving\tgpu-17\t1 min\tnot ready\t{NAME}: not registered yet",
        "strategy\tenvvar\tthis agent keeps no CDI specifications",
        f"device\t{GPU}0::0\t{NAME}\tdrained\ttwo lines of \\x1bit\tml/train\t0\tA",
        f"device\t{GPU}0::1\t{NAME}\tdrained\ttwo lines of \\x1bit\t\t0\tA",
        f"device\t{GPU}1\t-\tnot offered\tit is in MIG mode, and migStrategy is none\t\t1",
        "part\tnode object\tfailing\t1 min 28 s\ttwo lines of \\x1bit",
    ]


def test_a_device_has_index_model_and_memory() -> None:
    """At the end of its line, behind who holds it."""
    gpu = (profile("t4").gpus or ())[0].uuid
    held = Allocation("nvidia.com/gpu", (gpu,), PodRef.parse("ml/train/main"))
    of = picture(ConfigLoaded(Settings()), AllocationsListed((held,), 0.0), MachineObserved(profile("t4")))

    assert cells(of, "device")[0] == [gpu, "nvidia.com/gpu", "healthy", "", "ml/train", "0", "Tesla T4", "15 GiB"]
    assert cells(of, "driver") == [["570.172.08", "12.8"]]


def test_what_a_pod_holds_that_is_not_there_is_a_line() -> None:
    """It keeps others from the GPU that it may be on."""
    held = Allocation("nvidia.com/mig-1g.5gb", ("MIG-gone",), PodRef.parse("ml/train/main"))
    of = picture(ConfigLoaded(Settings()), AllocationsListed((held,), 0.0), MachineObserved(profile("l40s")))

    assert cells(of, "device")[-1] == [
        "MIG-gone", "-", "absent", "a container holds it, and the driver does not count it", "ml/train",
    ]  # fmt: skip


def test_nothing_is_said_to_be_gone_before_anybody_has_looked() -> None:
    """Kubelet often answers before the driver."""
    held = Allocation("nvidia.com/gpu", ("GPU-0",), PodRef.parse("ml/train/main"))

    assert cells(picture(AllocationsListed((held,), 0.0)), "device") == [
        ["GPU-0", "-", "absent", "a container holds it, and the GPUs have not been counted yet", "ml/train"],
    ]  # fmt: skip


def test_how_containers_are_given_devices_is_shown_with_the_reason() -> None:
    """Once the machine and its configuration are known."""
    assert cells(ward(), "strategy") == [["envvar", "this agent keeps no CDI specifications"]]
    configured = ward(ConfigLoaded(Settings(device_list_strategy=("volume-mounts", "cdi-cri"))))
    assert cells(configured, "strategy") == [["volume-mounts,cdi-cri"]]


def test_a_release_is_shown_with_its_end() -> None:
    of = shares("x", DriverReleaseRequested(DriverRelease(until=350.0, reason="reset")))

    assert cells(of, "release") == [["for another 4 min 10 s", "reset"]]


def test_what_is_waited_for_is_shown() -> None:
    """Once; of health where there is nothing else to tell."""
    assert cells(picture(), "waiting") == [["the machine has not been looked at yet"]]
    assert told(picture()) == [["waiting", "the machine has not been looked at yet"]]


def test_inspect_says_in_healths_words_what_kubelet_is_told() -> None:
    """A drain not twice; what is served all the same with its reason; probing from when only a probe is missing."""
    settings, gone = Settings(probe_period=5.0), DrainRequested(f"{GPU}1", None)
    shown = cells(ward(ConfigLoaded(settings), gone), "device")

    assert {line[0][-1]: line[2:4] for line in shown} == {
        "0": ["healthy", ""],
        "1": ["probing", f"xid-79: {MARKED}"],
        "2": ["suspect", f"fabric-pending: {MARKED}"],
        "3": ["degraded", "remap-pending: a row waits"],
        "4": ["drained", "fan"],
    }


def test_health_is_a_line_a_device() -> None:
    """Index, UUID, state, since, reason, what ends it and what to do, apart by tabs."""
    reset = "a reset of the GPU, or gpuplane health restore"
    shown = told(ward())

    assert [line[:6] for line in shown] == [
        ["0", f"{GPU}0", "healthy"],
        ["1", f"{GPU}1", "unhealthy", "1 min 28 s", f"xid-79: {MARKED}", reset],
        ["2", f"{GPU}2", "suspect", "1 min 29 s", f"fabric-pending: {MARKED}", "it is over once it is no longer seen"],
        ["3", f"{GPU}3", "degraded", "1 min 29 s", "remap-pending: a row waits", reset],
        ["4", f"{GPU}4", "drained", "1 min 30 s", "fan", "gpuplane health restore, or its time, in 2 h"],
    ]
    assert all(line[6] for line in shown[1:])


def test_the_node_comes_first_where_something_is_wrong_with_it() -> None:
    """And its GPUs, which it takes with it, say so."""
    of = ward(MachineObserved(MISSING))
    shown = told(of)

    assert cells(of, "node") == [["unhealthy", "driver-missing: no libnvidia-ml.so.1"]]
    assert shown[0][:5] == ["node", "-", "unhealthy", "1 min 26 s", "driver-missing: no libnvidia-ml.so.1"]
    assert shown[1][:5] == ["0", f"{GPU}0", "unhealthy", "1 min 26 s", "as the node: driver-missing"]
    assert shown[2][4].startswith("xid-79")


def test_only_the_node_says_what_ends_a_release() -> None:
    """With the time that is left; its GPUs refer to it."""
    release = DriverReleaseRequested(DriverRelease(until=350.0, reason="firmware"))
    shown = told(ward(release, StatusChanged("driver", Condition("waiting", LET_GO))))

    assert shown[0][4:] == [
        "not-looked: the driver is let go of: firmware", "gpuplane driver take, or its time, in 4 min 10 s",
    ]  # fmt: skip
    assert shown[1][4:] == ["as the node: not-looked"]
