"""How requested MIG layouts stand on the Node object: the label and the condition, from values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.reports.migstate import condition_of, mig_condition, mig_state, state_label
from gpuplane.node.model.config import Config, NodeObjectRequests, PartitionSettings, Settings
from gpuplane.node.model.machine import Machine
from gpuplane.node.model.partitions import GpuProgress, PartitionsProgress
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import DRIVER_PART, KUBELET_LOCK_PART, DriverStatus, Statuses, TurnStatus
from tests.node.core.partitions.gpus import an_a100
from tests.texts import as_shown

DONE = GpuProgress("GPU-0", "done")
CHANGING = GpuProgress("GPU-1", "changing", "GPU 1: create 1g.10gb at 0")
WAITING = GpuProgress("GPU-2", "waiting", "GPU 2: default/train must end first", "held", holders=("default/train",))
FAILED = GpuProgress("GPU-3", "failed", "GPU 3: it could not create 1g.10gb", "failed", next_try_at=160.0)
UNKNOWN = PartitionsProgress("x", problem="there is no MIG configuration 'x'", code="config-unknown")


def clock(moment: float) -> str:
    return f"at {moment:.0f}"


def progress(*gpus: GpuProgress) -> PartitionsProgress:
    return PartitionsProgress("all-1g.10gb", gpus)


@pytest.mark.parametrize(
    ("found", "state", "status", "reason", "words"),
    [
        (progress(), "success", "True", "Applied", ["all-1g.10gb"]),
        (progress(DONE), "success", "True", "Applied", ["1 GPU has its layout"]),
        (progress(DONE, DONE.but(gpu="GPU-9")), "success", "True", "Applied", ["2 GPUs have their layouts"]),
        (progress(DONE, CHANGING), "pending", "False", "Changing", ["create 1g.10gb at 0"]),
        (progress(DONE, CHANGING, WAITING), "pending", "False", "Held", ["default/train must end", "create"]),
        (progress(WAITING, FAILED), "failed", "False", "Failed", ["could not create", "next try at 160", "train"]),
        (progress(FAILED.but(code="in-use")), "failed", "False", "InUse", ["next try at 160"]),
        (progress(FAILED.but(code="")), "failed", "False", "Failed", []),
        (progress(WAITING.but(code="")), "pending", "False", "Waiting", []),
        (UNKNOWN, "failed", "False", "ConfigUnknown", ["there is no MIG configuration"]),
    ],
)
def test_what_is_shown(found: PartitionsProgress, state: str, status: str, reason: str, words: list[str]) -> None:
    """The worst GPU counts, and is named first; pods, and the next try."""
    assert mig_state(found) == state
    said = condition_of(found, clock)
    assert (said.status, said.reason) == (status, reason)
    assert all(each in as_shown(said.message) for each in words)


def test_what_is_a_new_condition() -> None:
    """Another pod, another code and another try are; another change of the same GPU, of which there are many, not."""
    held = condition_of(progress(WAITING), clock)
    assert not held.same_as(condition_of(progress(WAITING.but(holders=("default/other",))), clock))
    assert held.same_as(condition_of(progress(WAITING.but(reason="other words")), clock))
    failed = condition_of(progress(FAILED), clock)
    assert not failed.same_as(condition_of(progress(FAILED.but(next_try_at=220.0)), clock))
    assert failed.same_as(condition_of(progress(FAILED), lambda _: "a second later, by another clock"))
    first = condition_of(progress(CHANGING), clock)
    assert first.same_as(condition_of(progress(CHANGING.but(reason="GPU 1: destroy 3g.40gb at 4")), clock))
    assert not condition_of(progress(DONE), clock).same_as(condition_of(PartitionsProgress("other", (DONE,)), clock))


@given(st.lists(st.sampled_from([DONE, CHANGING, WAITING, FAILED]), max_size=16))
def test_label_and_condition_agree(gpus: list[GpuProgress]) -> None:
    """ "True" and `success` come together; no order of the GPUs changes anything."""
    found = progress(*gpus)
    assert (condition_of(found, clock).status == "True") == (mig_state(found) == "success")
    assert mig_state(found) == mig_state(progress(*reversed(gpus)))
    assert condition_of(found, clock).reason == condition_of(progress(*reversed(gpus)), clock).reason
    assert len(condition_of(found, clock).message) <= 1000


def node(asked: NodeObjectRequests | None, *, follows: bool = True, known: bool = True, driver: str = "ok") -> Snapshot:
    """A node with a GPU in halves. `known`: the GPU was looked at."""
    gpu = an_a100(0, ("3g.40gb", 0, (3,)), ("3g.40gb", 4, (3,)))
    return Snapshot(
        machine=Machine(gpus=(gpu,)) if known else None,
        config=Config(
            settings=Settings(partitions=PartitionSettings(follow_label=follows)), is_node_object_read=asked is not None
        ),
        allocations=(),
        ledger=Ledger(node_requests=asked),
        statuses=Statuses({DRIVER_PART: DriverStatus(driver, "x")}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("snapshot", "label", "condition"),
    [
        (node(NodeObjectRequests(mig_config="all-3g.40gb")), "success", "Applied"),
        (node(NodeObjectRequests(mig_config="all-1g.10gb")), "pending", "Changing"),
        (node(NodeObjectRequests(mig_config="all-9g")), "failed", "ConfigUnknown"),
        (node(NodeObjectRequests(mig_config="all-3g.40gb"), known=False), None, None),
        (node(NodeObjectRequests(mig_config="all-3g.40gb"), known=False, driver="failing"), "pending", None),
        (node(NodeObjectRequests(mig_config="all-3g.40gb"), follows=False), None, None),
        (node(NodeObjectRequests()), None, "NotRequested"),
        (node(None), None, None),
        (node(NodeObjectRequests(mig_config="all-3g.40gb", has_mig_manager=True)), None, "MigManager"),
        (
            node(NodeObjectRequests(mig_config="all-3g.40gb")).but(
                statuses=Statuses({KUBELET_LOCK_PART: TurnStatus("waiting", "x", turn="standby")})
            ),
            None,
            None,
        ),
    ],
)
def test_when_something_is_said(snapshot: Snapshot, label: str | None, condition: str | None) -> None:
    """Only where the label is followed, and known; not what NVIDIA's MIG manager says; not by who stands by."""
    assert state_label(snapshot) == label
    said = mig_condition(snapshot, clock)
    assert (said.reason if said is not None else None) == condition
