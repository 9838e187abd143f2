"""Which strategy `auto` stands for: what is known decides, nothing is guessed, and it is said once."""

import itertools

import pytest

from gpuplane.node.core.advertising import offer
from gpuplane.node.core.allocate.response import allocate
from gpuplane.node.core.config.resolve import resolve_with_sources
from gpuplane.node.core.containers.cdi import specstatus as condition
from gpuplane.node.core.containers.cdi.desiredspecs import desired_specs
from gpuplane.node.core.containers.strategy import (
    StrategyDecision,
    decide_strategy,
    decision_if_inputs_known,
    effective_list_strategies,
    kubelet_passes_on_cdi_devices,
    runtime_supports_cdi,
)
from gpuplane.node.core.explanation import explain_node
from gpuplane.node.core.ledger import adapt_to_new_boot
from gpuplane.node.core.reports.news import news
from gpuplane.node.core.step import step
from gpuplane.node.core.telemetry.agentmetrics import metrics
from gpuplane.node.model.config import ListStrategy, NodeObjectRequests, Settings
from gpuplane.node.model.facts import (
    AllocationsListed,
    ConfigLoaded,
    Fact,
    LedgerLoaded,
    MachineObserved,
    NodeRequestsChanged,
    StatusChanged,
    Tick,
)
from gpuplane.node.model.machine import Driver, DriverFiles, DriverLibrary, Gpu, Machine
from gpuplane.node.model.snapshot import Ledger, Snapshot
from gpuplane.node.model.status import CDI_FILES_PART, CdiFilesStatus
from tests.golden import Golden
from tests.texts import as_shown

LIBCUDA = DriverLibrary(path="/usr/lib/libcuda.so.580.95.05", soname="libcuda.so.1", symlinks=("libcuda.so.1",))
MACHINE = Machine(
    driver=Driver(version="580.95.05", cuda="13.0", files=DriverFiles(libraries=(LIBCUDA,))),
    gpus=(Gpu(index=0, uuid="GPU-a", model="T4", device_nodes=("/dev/nvidia0",)),),
    shared_nodes=("/dev/nvidiactl", "/dev/nvidia-uvm"),
)
KEPT = StatusChanged(CDI_FILES_PART, CdiFilesStatus(state="ok"))
CONTAINERD = NodeObjectRequests(container_runtime="containerd://2.1.4")
READY: tuple[Fact, ...] = (ConfigLoaded(Settings()), AllocationsListed((), 0.0), MachineObserved(MACHINE))


def after(*facts: Fact, start: Snapshot | None = None) -> Snapshot:
    snapshot = start or Snapshot()
    for fact in facts:
        snapshot = step(snapshot, fact, 0.0)
    return snapshot


CDI = decide_strategy(after(KEPT, NodeRequestsChanged(CONTAINERD), *READY))
UNTOLD = decide_strategy(after(KEPT, *READY))


@pytest.mark.parametrize(
    ("runtime", "takes"),
    [
        ("containerd://2.0.0", True),
        ("containerd://2.0.0-rc.2", True),
        ("containerd://2.1.4-k3s1", True),
        ("containerd://v2.2.0", True),
        ("containerd://10.0.1", True),
        ("containerd://1.7.27", False),
        ("containerd://1.7.27~ds1", False),
        ("containerd://1.10.0", False),
        ("cri-o://1.30.0", True),
        ("cri-o://1.29.6", False),  # it takes the names, and cannot read files of version 0.7.0
        ("cri-o://1.36.1", True),
        ("cri-o://1.27.9", False),
        ("docker://28.3.3", False),
        ("rkt://2.0.0", False),
        ("containerd://Unknown", False),
        ("containerd://2", False),
        ("containerd://", False),
        ("2.1.4", False),
        ("xcontainerd://2.1.4", False),
        ("containerd://٢.١", False),
        ("", False),
    ],
)
def test_runtimes_that_take_cdi_devices_as_they_are(runtime: str, takes: bool) -> None:
    """By name and version as kubelet writes them; what cannot be read is not known to."""
    assert runtime_supports_cdi(runtime) == takes


@pytest.mark.parametrize(
    ("kubelet", "passes"),
    [
        ("v1.28.15", False),
        ("v1.28.15+k3s1", False),
        ("v1.9.0", False),
        ("v1.29.0", True),
        ("v1.30.4-gke.1348000", True),
        ("1.36.2", True),
        ("v2.0.0", True),
        ("", True),
        ("Unknown", True),
    ],
)
def test_kubelets_that_pass_cdi_devices_on(kubelet: str, passes: bool) -> None:
    """From 1.29 on; an older one drops them in silence, and the container would start without its GPU."""
    assert kubelet_passes_on_cdi_devices(kubelet) == passes
    expected = CDI.strategies if passes else ("envvar",)
    assert (
        effective_list_strategies(after(KEPT, NodeRequestsChanged(CONTAINERD.but(kubelet_version=kubelet)), *READY))
        == expected
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ((KEPT, NodeRequestsChanged(CONTAINERD)), "cdi-cri"),
        ((KEPT, NodeRequestsChanged(CONTAINERD.but(kubelet_version="v1.28.15"))), "envvar"),
        ((KEPT,), "envvar"),
        ((KEPT, NodeRequestsChanged(NodeObjectRequests(config_name="x"))), "envvar"),
        ((NodeRequestsChanged(CONTAINERD),), "envvar"),
        ((KEPT, NodeRequestsChanged(NodeObjectRequests(container_runtime="containerd://1.7.27"))), "envvar"),
        (
            (
                StatusChanged(CDI_FILES_PART, CdiFilesStatus(state="failing", text="read-only")),
                NodeRequestsChanged(CONTAINERD),
            ),
            "cdi-cri",
        ),
    ],
    ids=[
        "a runtime that takes CDI", "an old kubelet", "a runtime unknown", "a Node that tells no runtime",
        "no specifications", "an old runtime", "specifications that fail",
    ],
)  # fmt: skip
def test_what_auto_stands_for(facts: tuple[Fact, ...], expected: str, golden: Golden) -> None:
    """In whatever order it becomes known. A directory that fails is no reason for another strategy: devices that are
    not on disk are unhealthy, with that reason, and no container starts without its GPU."""
    for order in itertools.permutations(facts):
        for ready in (after(*READY, *order), after(*order, *READY)):
            assert decide_strategy(ready) == decision_if_inputs_known(ready)
            assert effective_list_strategies(ready) == (expected,)
            golden(str(decide_strategy(ready)))


@pytest.mark.parametrize("said", [("envvar",), ("cdi-annotations", "cdi-cri")])
def test_what_the_configuration_says_is_so(said: tuple[ListStrategy, ...]) -> None:
    """Whatever the runtime is, and whoever keeps specifications."""
    settings = Settings(device_list_strategy=said)
    for facts in ((), (KEPT,), (KEPT, NodeRequestsChanged(CONTAINERD))):
        assert decide_strategy(after(*facts, ConfigLoaded(settings))) == StrategyDecision(said)


def test_allocate_answers_by_the_decision() -> None:
    """The same request, before and after a runtime is known that takes CDI devices and the disk has them."""
    before = after(KEPT, *READY)
    assert allocate(before, "nvidia.com/gpu", ("GPU-a",)).env == {"NVIDIA_VISIBLE_DEVICES": "GPU-a"}
    known = after(NodeRequestsChanged(CONTAINERD), start=before)
    on_disk = condition.spec_fingerprints(each.spec for each in desired_specs(known).values() if each.spec is not None)
    written = StatusChanged(CDI_FILES_PART, CdiFilesStatus(state="ok", fingerprints=on_disk))
    got = allocate(after(written, start=known), "nvidia.com/gpu", ("GPU-a",))
    assert (got.cdi_devices, got.env) == (("k8s.device-plugin.nvidia.com/gpu=GPU-a",), {})


def test_a_gpu_that_no_cuda_program_could_use_is_withheld_where_we_give_the_nodes() -> None:
    """It is given out by itself once the node is there. Where NVIDIA's runtime makes the node, nobody waits for it."""
    without = MachineObserved(MACHINE.but(shared_nodes=("/dev/nvidiactl",)))
    known = after(KEPT, NodeRequestsChanged(CONTAINERD), *READY, without)
    [resource] = offer(known).resources
    [reason] = resource.devices[0].reasons
    assert (reason.kind, reason.code) == ("problem", "cdi-no-device")
    assert "/dev/nvidia-uvm" in as_shown(reason.text)

    back = after(MachineObserved(MACHINE), start=known)
    on_disk = condition.spec_fingerprints(each.spec for each in desired_specs(back).values() if each.spec is not None)
    written = StatusChanged(CDI_FILES_PART, CdiFilesStatus(state="ok", fingerprints=on_disk))
    assert offer(after(written, start=back)).resources[0].devices[0].reasons == ()

    envvar = after(KEPT, *READY, ConfigLoaded(Settings(device_list_strategy=("envvar",))), without)
    assert offer(envvar).resources[0].devices[0].reasons == ()


def test_a_remembered_runtime_is_in_force_from_the_first_moment() -> None:
    """After a restart, and a reboot, while the API server is silent; its next word is believed, whatever it is."""
    old = after(NodeRequestsChanged(CONTAINERD.but(kubelet_version="v1.28.15"))).ledger
    for ledger in (old, adapt_to_new_boot(old, "another boot", 0.0, 0.0)):
        assert effective_list_strategies(after(LedgerLoaded(ledger), KEPT, *READY)) == ("envvar",)
    known = after(NodeRequestsChanged(CONTAINERD)).ledger
    for ledger in (known, adapt_to_new_boot(known, "another boot", 0.0, 0.0)):
        started = after(LedgerLoaded(ledger), KEPT, *READY)
        assert decide_strategy(started) == CDI
        assert not started.config.is_node_object_read

        told = after(NodeRequestsChanged(NodeObjectRequests(container_runtime="containerd://1.7.27")), start=started)
        assert effective_list_strategies(told) == ("envvar",)
        assert effective_list_strategies(after(LedgerLoaded(told.ledger), KEPT, *READY)) == ("envvar",)


def said(*facts: Fact, start: Snapshot | None = None) -> list[str]:
    """The news of the strategy, fact by fact."""
    snapshot, texts = start or Snapshot(), []
    for fact in facts:
        following = step(snapshot, fact, 0.0)
        texts += [as_shown(each.text) for each in news(snapshot, following) if each.about == "device list strategy"]
        snapshot = following
    return texts


def test_the_decision_is_said_once_and_when_it_changes(golden: Golden) -> None:
    """Not before something can be allocated by it, and not again for whatever else happens."""
    start = (NodeRequestsChanged(CONTAINERD), KEPT, *READY)
    assert said(*start) == [str(CDI)]
    same: tuple[Fact, ...] = (
        Tick(),
        NodeRequestsChanged(CONTAINERD.but(drain_reasons={"0": "x"})),
        StatusChanged(CDI_FILES_PART, CdiFilesStatus(state="failing", text="full")),
        MachineObserved(MACHINE.but(gpus=None)),
        MachineObserved(MACHINE),
        AllocationsListed((), 1.0),
    )
    assert said(*same, start=after(*start)) == []
    changes: tuple[Fact, ...] = (
        NodeRequestsChanged(NodeObjectRequests(container_runtime="containerd://2.2.0")),
        NodeRequestsChanged(NodeObjectRequests(container_runtime="docker://28.3.3")),
        ConfigLoaded(Settings(device_list_strategy=("envvar", "cdi-cri"))),
        NodeRequestsChanged(CONTAINERD),
        ConfigLoaded(Settings()),
        StatusChanged(CDI_FILES_PART, None),
    )
    found = said(*changes, start=after(*start))
    assert [each.partition(":")[0] for each in found] == ["cdi-cri", "envvar", "envvar, cdi-cri", "cdi-cri", "envvar"]
    golden(found)


def test_what_is_configured_from_the_start_is_no_decision() -> None:
    """Whoever said it knows."""
    settings = Settings(device_list_strategy=("envvar",))
    assert (
        said(
            ConfigLoaded(settings),
            NodeRequestsChanged(CONTAINERD),
            KEPT,
            AllocationsListed((), 0.0),
            MachineObserved(MACHINE),
            Tick(),
        )
        == []
    )


def test_the_metric_says_each_strategy_and_why() -> None:
    """Once there may be something to allocate."""

    def series(snapshot: Snapshot) -> list[tuple[str, str]]:
        (found,) = (each for each in metrics(snapshot) if each.name == "gpuplane_device_list_strategy")
        return [(labels["strategy"], labels["reason"]) for labels, value in found.series if value == 1]

    assert series(after(NodeRequestsChanged(CONTAINERD), KEPT)) == []
    assert series(after(NodeRequestsChanged(CONTAINERD), KEPT, *READY)) == [("cdi-cri", CDI.reason)]
    two = ConfigLoaded(Settings(device_list_strategy=("envvar", "cdi-cri")))
    assert series(after(*READY, two)) == [("envvar", ""), ("cdi-cri", "")]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("", "auto: "),
        ("flags: {plugin: {deviceListStrategy: auto}}", "auto: "),
        ("flags:\n  plugin: {deviceListStrategy: [envvar, cdi-cri]}", "envvar, cdi-cri: c.yaml:2"),
    ],
)
def test_config_explain_names_the_strategy(file: str, expected: str, golden: Golden) -> None:
    """Of `auto` the rule, for no node has been asked; else where it was said."""
    found = str(explain_node(MACHINE, resolve_with_sources(file.encode(), "c.yaml")).strategy)
    assert found.startswith(expected)
    golden(found, file)


def test_an_old_ledger_knows_no_runtime() -> None:
    """What an agent wrote before there was one to remember."""
    assert (
        decide_strategy(after(LedgerLoaded(Ledger(node_requests=NodeObjectRequests(config_name="x"))), KEPT, *READY))
        == UNTOLD
    )
