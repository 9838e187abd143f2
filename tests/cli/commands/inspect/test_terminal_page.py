"""`gpuplane inspect` on a terminal of any width."""

import pytest

from gpuplane.cli.commands.inspect.lines import node_lines as tab_separated
from gpuplane.cli.commands.inspect.page import health_page
from gpuplane.kubernetes.podref import PodRef
from gpuplane.node.model.config import (
    DraSettings,
    MemorySharedResource,
    NodeObjectRequests,
    PartitionSettings,
    ReplicatedResource,
    Settings,
    Sharing,
)
from gpuplane.node.model.control import AgentInfo, NodeState
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    DriverReleaseRequested,
    LayoutRequested,
    MachineObserved,
    NodeRequestsChanged,
    StatusChanged,
)
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.partitions import LayoutRequest
from gpuplane.node.model.sharelayout import TIME_SLICES
from gpuplane.node.model.snapshot import Allocation, DriverRelease
from gpuplane.node.model.status import (
    DRIVER_PART,
    KUBELET_LOCK_PART,
    MPS_SUPERVISOR_PART,
    SLICES_PART,
    DriverStatus,
    Part,
    SlicesStatus,
    Status,
    TurnStatus,
    plugin_part,
)
from tests.cli.commands.inspect.pictures import (
    ABOUT,
    GPU,
    MARKED,
    MISSING,
    drawn,
    inspected,
    picture,
    profile,
    shares,
    ward,
)
from tests.golden import Golden

WIDTHS = [60, 80, 120, 300]
SLICES = Settings(
    sharing=Sharing(replicated_resources=(ReplicatedResource("nvidia.com/gpu", 48, rename="nvidia.com/gpu.shared"),))
)
MEMORY = Settings(
    sharing=Sharing(memory_resources=(MemorySharedResource("nvidia.com/gpu", "nvidia.com/gpu.mem", 1024),))
)
WHOLE = "nvidia.com/gpu"
LONG = "pods and ids, and a reason " * 9


def settled(name: str, settings: Settings, *held: Allocation) -> NodeState:
    """A server that ships, under a configuration."""
    return picture(
        ConfigLoaded(settings),
        AllocationsListed(held, 0.0),
        MachineObserved(profile(name)),
        StatusChanged(Part("other", "x"), Status("failing", LONG)),
    )


NODES = {
    "whole GPUs": settled(
        "dgx-a100", Settings(), Allocation("nvidia.com/gpu", ("GPU-a1",), PodRef.parse("ml/train/main"))
    ),
    "MIG": settled("a100-mig", Settings(mig_strategy="mixed")),
    "MIG left": settled("a100-mig", Settings()),
    "48 time slices": settled("l40s", SLICES),
    "memory": settled("big-16", MEMORY),
    "a workstation": settled("workstation", Settings()),
    "no GPUs": picture(ConfigLoaded(Settings()), AllocationsListed((), 0.0), MachineObserved(Machine(gpus=()))),
    "no driver": picture(
        ConfigLoaded(Settings()), AllocationsListed((), 0.0), MachineObserved(profile("l40s")), MachineObserved(MISSING)
    ),
    "no driver ever": picture(ConfigLoaded(Settings()), AllocationsListed((), 0.0), MachineObserved(MISSING)),
    "nothing yet": picture(),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("node", NODES)
def test_no_line_is_longer_than_the_terminal_and_no_id_is_cut(node: str, width: int) -> None:
    """Whatever the server; each device is there by its index, and each id is whole, in one line."""
    whole = inspected(NODES[node])
    for shown in (drawn(whole, width), drawn(whole, width, health_page)):
        assert all(len(line) <= width for line in shown), shown
        words = {word.partition("::")[0] for line in shown for word in line.split()}
        assert {device.uuid for device in whole.devices} <= words
        rows = [line.split()[0] for line in shown if line[:1].isdigit()]
        assert {device.index for device in whole.devices} <= {*rows, ""}


@pytest.mark.parametrize("width", [20, *WIDTHS])
def test_ids_are_whole_on_every_terminal(width: int) -> None:
    """They differ at their ends, and are copied. On one that is narrower than they are their lines are wider."""
    words = [word for line in drawn(inspected(shares()), width) for word in line.split()]
    for id in (f"{GPU}0::0", f"{GPU}0::1", f"{GPU}1"):
        assert words.count(id) == 1, words


def test_a_device_is_one_line_where_there_is_room_and_two_where_there_is_little() -> None:
    """By its index, as `gpuplane health drain` takes it; with model, memory, resource and state."""
    whole = inspected(NODES["whole GPUs"])
    for width, lines in ((120, 1), (80, 2), (60, 2)):
        shown = drawn(whole, width)
        first = next(n for n, line in enumerate(shown) if line.startswith("0 "))
        assert shown[first].split()[:5] == ["0", "A100-SXM4-80GB", "80", "GiB", "nvidia.com/gpu"]
        assert shown[first + lines].startswith("1 ")


def test_shares_that_stand_alike_are_one_row() -> None:
    """Of one device, one after the other: there may be thousands."""
    gpu = (profile("l40s").gpus or ())[7].uuid
    held = Allocation(
        "nvidia.com/gpu.shared",
        (f"{gpu}::3", f"{gpu}::4"),
        PodRef.parse("ml/train/main"),
        share_layout=TIME_SLICES.encoded,
    )
    whole = inspected(settled("l40s", SLICES, held))

    rows = [line.split() for line in drawn(whole, 300) if gpu in line]
    assert [row[:1] + row[-2:] for row in rows] == [
        ["7", "healthy", f"{gpu}::0…2"], ["7", f"{gpu}::3…4", "ml/train"], ["7", "healthy", f"{gpu}::5…47"],
    ]  # fmt: skip


def test_reasons_are_below_the_table_and_as_they_are(golden: Golden) -> None:
    """What looks like markup in them is none."""
    shown = drawn(inspected(shares()), 300)

    part = next(line for line in shown if line.startswith("clock"))
    assert part.endswith(f"  {MARKED}")
    golden(line.rstrip() for line in shown)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_cause_is_said_once_of_all_its_devices(width: int, golden: Golden) -> None:
    """Not eight times for eight GPUs; what the node ails is said of the node."""
    shown = " ".join(" ".join(drawn(inspected(NODES["no driver"]), width)).split())

    assert shown.count("libnvidia-ml.so.1") == 1
    golden((line.rstrip() for line in drawn(inspected(NODES["no driver"]), width)), f"{width} columns")


def test_each_reason_is_said_once_of_all_its_devices(golden: Golden) -> None:
    """Whatever else is the matter with some of them; beside the part that it is of."""
    ids = [gpu.uuid for gpu in profile("l40s").gpus or ()]
    held = [Allocation(WHOLE, (id,), PodRef.parse(f"ml/train-{n}/main")) for n, id in enumerate(ids[:4])]
    mps = Sharing(replicated_resources=(ReplicatedResource(WHOLE, 4),), strategy="mps")
    of = picture(
        ConfigLoaded(Settings(sharing=mps)),
        AllocationsListed(tuple(held), 0.0),
        MachineObserved(profile("l40s")),
        StatusChanged(plugin_part(WHOLE), Status("ok")),
        StatusChanged(MPS_SUPERVISOR_PART, Status("failing", MARKED)),
    )
    shown = drawn(inspected(of), 300)
    assert sum(MARKED in line for line in shown) == 2
    assert sum(MARKED in line for line in drawn(inspected(of), 300, health_page)) == 1
    golden(line.rstrip() for line in shown)


def test_who_holds_what_is_no_longer_offered_is_shown() -> None:
    """By the id and the name that the container was given: as many as the resource's count says are held."""
    gpu = (profile("l40s").gpus or ())[7].uuid
    held = Allocation(WHOLE, (gpu,), PodRef.parse("ml/train/main"))
    shares = Settings(sharing=Sharing(replicated_resources=(ReplicatedResource(WHOLE, 4),)))
    whole = inspected(settled("l40s", shares, held))

    [row] = [line.split() for line in drawn(whole, 300) if line.split()[-1:] == ["ml/train"]]
    assert row == ["7", WHOLE, "held", gpu, "ml/train"]
    [cells] = [line.split("\t") for line in tab_separated(whole) if "ml/train" in line.split("\t")]
    assert cells[:6] == ["device", gpu, WHOLE, "held", "", "ml/train"]


def test_an_agent_that_is_ready_says_how_much_is_not_given_out(golden: Golden) -> None:
    """Of a node whose driver is gone nothing is; the agent does its job all the same."""
    served = StatusChanged(plugin_part(WHOLE), Status("ok"))
    looked = (ConfigLoaded(Settings()), AllocationsListed((), 0.0), MachineObserved(profile("l40s")), served)
    golden(drawn(inspected(picture(*looked)), 300)[0], "all are given out")
    golden(drawn(inspected(picture(*looked, MachineObserved(MISSING))), 300)[0], "none is")


def test_each_standing_request_is_shown_with_what_ends_it(golden: Golden) -> None:
    """A release of the driver, a drain, and a layout; by a command that reaches this agent, or on the Node object."""
    by_hand = shares(
        "fan",
        DriverReleaseRequested(DriverRelease(until=350.0, reason="reset")),
        LayoutRequested(LayoutRequest(name="seven", layouts={})),
    )
    node = NodeObjectRequests(driver_release_reason="upgrade", drain_reasons={"0": "move"}, mig_config="seven")
    follows = Settings(partitions=PartitionSettings(follow_label=True))
    on_node = shares("fan", ConfigLoaded(follows), DrainRequested(f"{GPU}0", None), NodeRequestsChanged(node))
    for name, of in {"by command": by_hand, "on the Node object": on_node}.items():
        shown = drawn(inspected(of.but(snapshot=of.snapshot.but(state_dir="/srv/two words"))), 300)
        golden((line for line in shown if "To end this: " in line or "It ends " in line), name)


def test_gpus_that_are_offered_twice_are_named(golden: Golden) -> None:
    """Those of the device plugin that are in slices: a GPU in MIG mode is in none."""
    known = (AllocationsListed((), 0.0), MachineObserved(profile("a100-mig")))
    both = Settings(mig_strategy="mixed", dra=DraSettings(enabled=True))
    published = StatusChanged(SLICES_PART, SlicesStatus("ok", published=("slice",)))
    whole = inspected(picture(ConfigLoaded(both), *known, published))
    assert whole.offered_twice == tuple(gpu.uuid for gpu in profile("a100-mig").gpus or () if not gpu.mig_enabled)
    assert [line.split("\t")[1] for line in tab_separated(whole) if line.startswith("twice")] == [
        ",".join(whole.offered_twice)
    ]
    golden(line for line in drawn(whole, 300) if "ResourceSlices" in line)
    for settings in (both, both.but(dra=DraSettings())):
        facts = (published,) if not settings.dra.enabled else ()
        assert inspected(picture(ConfigLoaded(settings), *known, *facts)).offered_twice == ()


def test_parts_that_fail_come_first() -> None:
    """Then those that wait; by their names."""
    stands = {"a": "ok", "b": "waiting", "c": "failing", "d": "failing"}
    of = picture(*(StatusChanged(Part("other", part), Status(standing)) for part, standing in stands.items()))  # type: ignore[arg-type]

    assert [line.split()[0] for line in drawn(inspected(of), 80)[-4:]] == ["c", "d", "b", "a"]


def test_devices_of_one_cause_are_named_by_ranges(golden: Golden) -> None:
    """Those of which there is more than one."""
    golden(line.rstrip() for line in drawn(inspected(NODES["MIG left"]), 80))


def test_the_head_says_which_node_agent_and_driver(golden: Golden) -> None:
    """And whether it is ready, or why not; since when it runs."""
    golden(drawn(inspected(NODES["whole GPUs"]), 300)[:3], "not ready")
    golden(drawn(inspected(NODES["no GPUs"], AgentInfo("1.0")), 300)[:2], "ready, without GPUs")


def test_stand_ins_are_told_in_the_head(golden: Golden) -> None:
    """Below how containers get devices."""
    golden(drawn(inspected(settled("t4", Settings(stand_ins=True))), 120)[:4])


def test_what_is_waited_for_and_a_release_are_said_first(golden: Golden) -> None:
    """On both pages."""
    waiting = inspected(picture(StatusChanged(DRIVER_PART, DriverStatus("waiting", MARKED))))
    [told] = drawn(waiting, 300, health_page)
    assert drawn(waiting, 300)[1] == told
    assert told.endswith(MARKED)
    golden(told, "waiting")
    released = inspected(shares(MARKED, DriverReleaseRequested(DriverRelease(until=350.0, reason=MARKED))))
    told = drawn(released, 300, health_page)[0]
    assert told in drawn(released, 300)[:4]
    golden(told, "released")


def test_a_standby_says_for_whom_it_waits(golden: Golden) -> None:
    """So nobody takes it for the agent that serves."""
    lock = TurnStatus("waiting", "process 7 serves the kubelet of /k", turn="standby")
    shown = drawn(inspected(picture(StatusChanged(KUBELET_LOCK_PART, lock))), 300)

    golden(shown[:2])


def test_health_says_until_when_and_what_to_do(golden: Golden) -> None:
    """Below its table, once for each cause."""
    shown = drawn(inspected(ward(MachineObserved(MISSING))), 300, health_page)

    assert [line.split()[:2] for line in shown[1:6]] == [[str(n), "unhealthy"] for n in range(5)]
    golden(shown[shown.index("") + 1 :])


def test_what_a_text_from_outside_has_in_it_cannot_steer_the_terminal() -> None:
    """A model, a pod, a version: whoever wrote them."""
    machine = profile("t4")
    evil = tuple(gpu.but(model="\x1b[2JT4") for gpu in machine.gpus or ())
    of = picture(
        ConfigLoaded(Settings()),
        AllocationsListed((Allocation("nvidia.com/gpu", (evil[0].uuid,), PodRef("ml", "\x1b]0;x\x07")),), 0.0),
        MachineObserved(machine.but(gpus=evil)),
        StatusChanged(Part("other", "\x1b[1m"), Status("failing", "\x1b[31m")),
    )
    for width in WIDTHS:
        shown = "\n".join(drawn(inspected(of, ABOUT.but(version="\x1b[5m")), width))
        assert "\x1b" not in shown
        assert "\\x1b[2JT4" in shown
