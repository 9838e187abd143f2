"""The condition gpuplane.io/GPUReady as a function of the snapshot."""

import pytest

from gpuplane.node.core.reports.readycondition import GRACE, condition_reason, ready_condition
from gpuplane.node.core.step import step
from gpuplane.node.model.config import NodeObjectRequests, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    Fact,
    FaultOccurred,
    MachineObserved,
    NodeRequestsChanged,
    StatusChanged,
)
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.reasons import REASON_CODES
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import (
    CDI_FILES_PART,
    KUBELET_LOCK_PART,
    CdiFilesStatus,
    Status,
    TurnStatus,
    plugin_part,
)

PLUGIN = plugin_part("nvidia.com/gpu")
WELL = Machine(gpus=(Gpu(index=0, uuid="GPU-0"), Gpu(index=1, uuid="GPU-1")))
ENVIRONMENT, CDI = Settings(device_list_strategy=("envvar",)), Settings(device_list_strategy=("cdi-cri",))
REGISTERED = StatusChanged(PLUGIN, Status("ok"))
SERVING: tuple[Fact, ...] = (ConfigLoaded(ENVIRONMENT), MachineObserved(WELL), AllocationsListed((), 0.0), REGISTERED)
RELEASE = NodeRequestsChanged(NodeObjectRequests(driver_release_reason="an upgrade"))
MISSING = MachineObserved(Machine(faults=(Fault("driver-missing", "no libnvidia-ml.so.1"),)))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (SERVING, "True Serving 0"),
        ((), f"False MachineNotObserved {GRACE:g}"),
        (SERVING[:3], f"False PluginNotRegistered {GRACE:g}"),
        ((*SERVING, StatusChanged(PLUGIN, Status("waiting", "?"))), f"False PluginNotRegistered {GRACE:g}"),
        ((*SERVING, StatusChanged(PLUGIN, Status("failing", "refused"))), "False PluginNotRegistered 0"),
        ((*SERVING, FaultOccurred(code="xid-79", gpu="GPU-0", message="?", at=1.0)), "True Serving 0"),
        ((*SERVING, MISSING), "False DriverMissing 0"),
        ((RELEASE, SERVING[0], SERVING[2]), "False DriverReleased 0"),
        ((*SERVING, MachineObserved(Machine(gpus=()))), "False NoGpu 0"),
        ((*SERVING, RELEASE), "False DriverReleased 0"),
        (
            (
                ConfigLoaded(CDI),
                *SERVING[1:],
                StatusChanged(CDI_FILES_PART, CdiFilesStatus("waiting", "to be written")),
            ),
            f"False CdiNotWritten {GRACE:g}",
        ),
        (
            (ConfigLoaded(CDI), *SERVING[1:], StatusChanged(CDI_FILES_PART, CdiFilesStatus("failing", "disk full"))),
            "False CdiWriteFailed 0",
        ),
        ((*SERVING, StatusChanged(KUBELET_LOCK_PART, TurnStatus("waiting", "another", turn="standby"))), "None"),
    ],
)
def test_what_it_says(facts: tuple[Fact, ...], expected: str) -> None:
    snapshot = Snapshot()
    for at, fact in enumerate(facts):
        snapshot = step(snapshot, fact, float(at))
    said = ready_condition(snapshot)
    assert (f"{said.status} {said.reason} {said.grace:g}" if said else "None") == expected
    assert said is None or said.message


@pytest.mark.parametrize("code", [*REASON_CODES, "xid-79", "driver-hang", ""])
def test_each_code_makes_a_reason_that_kubernetes_takes(code: str) -> None:
    """metav1.Condition: letters and digits, a letter first."""
    reason = condition_reason(code)
    assert reason.isalnum()
    assert reason[0].isupper()
