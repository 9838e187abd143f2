"""What is measured of health, as a Prometheus server reads it."""

from prometheus_client.parser import text_string_to_metric_families

from gpuplane.node.agent.statuspages import StatusPages
from gpuplane.node.core.step import step
from gpuplane.node.core.telemetry.agentmetrics import HELP_AND_SAMPLES_BY_METRIC, metrics
from gpuplane.node.model.config import Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    DrainRequested,
    Fact,
    FaultOccurred,
    MachineObserved,
    StatusChanged,
)
from gpuplane.node.model.health import Drain
from gpuplane.node.model.machine import Fault, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.status import Status, plugin_part
from tests.texts import as_shown

GPUS = tuple(Gpu(index=i, uuid=f"GPU-{i}") for i in range(3))
LABELS = ("device", "index", "code", "severity", "state")
READ = StatusChanged(plugin_part("nvidia.com/gpu"), Status("ok"))
SEEN = (ConfigLoaded(Settings()), MachineObserved(Machine(gpus=GPUS)), AllocationsListed((), 0.0), READ)


def after(*facts: Fact) -> Snapshot:
    """The node after these facts, ten seconds apart."""
    snapshot = Snapshot()
    for number, fact in enumerate((*SEEN, *facts)):
        snapshot = step(snapshot, fact, 10.0 * number)
    return snapshot


def series(snapshot: Snapshot, name: str) -> dict[tuple[str, ...], float]:
    """The labels in the order of LABELS, and the value, of each series of a metric on the page."""
    status = StatusPages()
    status.show(snapshot)
    families = {family.name: family for family in text_string_to_metric_families(status.page("/metrics").body.decode())}
    family = families[name.removesuffix("_total")]
    assert family.type == ("counter" if name.endswith("_total") else "gauge")
    samples = [sample for sample in family.samples if sample.name == name]
    return {tuple(each.labels[label] for label in LABELS if label in each.labels): each.value for each in samples}


def test_each_device_has_one_state() -> None:
    """The node itself only where something is wrong with it."""
    lost = Gpu(index=1, uuid="GPU-1", faults=(Fault("gpu-lost", "gone"),))
    snapshot = after(
        MachineObserved(Machine(gpus=(GPUS[0], lost, GPUS[2]))), DrainRequested("GPU-2", Drain(reason="fan"))
    )

    assert series(snapshot, "gpuplane_device_health") == {
        ("GPU-0", "0", "healthy"): 1,
        ("GPU-1", "1", "unhealthy"): 1,
        ("GPU-2", "2", "drained"): 1,
    }
    denied = after(MachineObserved(Machine(gpus=None, faults=(Fault("driver-missing", "none"),))))
    assert series(denied, "gpuplane_device_health")["node", "", "unhealthy"] == 1
    assert series(denied, "gpuplane_device_health")["GPU-0", "0", "unhealthy"] == 1


def test_each_fault_that_stands_is_one_series_of_its_own_device() -> None:
    """With how it is judged here. A fault that looks have not shown for long enough does not stand."""
    hot = Gpu(index=1, uuid="GPU-1", faults=(Fault("remap-pending", "a row"), Fault("thermal-slowdown", "hot")))
    snapshot = after(
        FaultOccurred(code="xid-79", gpu="GPU-0", message="", at=20.0),
        FaultOccurred(code="xid-13", gpu="GPU-0", message="", at=30.0),
        MachineObserved(Machine(gpus=(GPUS[0], hot, GPUS[2]))),
    )

    assert series(snapshot, "gpuplane_fault") == {
        ("GPU-0", "xid-13", "note"): 1,
        ("GPU-0", "xid-79", "unhealthy"): 1,
        ("GPU-1", "remap-pending", "degraded"): 1,
    }


def test_what_happens_is_counted() -> None:
    """A counter, by code and device: a thousand of one kind are one series."""
    snapshot = after(
        *(FaultOccurred(code="xid-13", gpu="GPU-0", message=f"no {n}", at=10.0 * n) for n in range(2, 1002)),
        FaultOccurred(code="xid-79", gpu="GPU-1", message="", at=10_020.0),
    )

    assert series(snapshot, "gpuplane_fault_events_total") == {("GPU-0", "xid-13"): 1000, ("GPU-1", "xid-79"): 1}


def test_every_metric_has_a_name_and_a_help_as_prometheus_wants_them() -> None:
    """What `promtool check metrics` checks: a prefix, counters alone end with _total, a text without an end."""
    for metric in metrics(after()):
        assert metric.name.startswith("gpuplane_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help
        assert not as_shown(metric.help).endswith(".")
    assert len(metrics(after())) == len(HELP_AND_SAMPLES_BY_METRIC)
