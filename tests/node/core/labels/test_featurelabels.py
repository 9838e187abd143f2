"""What holds of feature labels beside the tables: versions, legal values, what is not told, faults, several models."""

import re
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.node.core.labels.featurelabels import feature_labels
from gpuplane.node.core.labels.syntax import key_part, label_value
from gpuplane.node.core.observation import merge_observation
from gpuplane.node.model.config import Config, Settings
from gpuplane.node.model.machine import Driver, FabricClique, Fault, Gpu, Machine, MachineFile, Mig, Vgpu
from gpuplane.node.model.snapshot import Snapshot
from tests.node.core.labels.differences import shows
from tests.node.core.labels.labelled import NVIDIA, labels, profile
from tests.node.core.labels.machines import H100, L40S, T4, cut, gpu, machine
from tests.node.hardware.nvidia.driver.machines import machines

VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")  # apimachinery: validation.IsValidLabelValue
NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")  # IsQualifiedName
LOST = (Fault(code="gpu-lost", message="it is lost"),)
SINGLE, MIXED = "flags: {migStrategy: single}", "flags: {migStrategy: mixed}"


def of(found: dict[str, str], *names: str) -> list[str | None]:
    """The values of NVIDIA's labels of these names."""
    return [found.get(NVIDIA + name) for name in names]


def assert_legal(found: dict[str, str]) -> None:
    for key, value in found.items():
        prefix, _, name = key.partition("/")
        assert prefix in ("nvidia.com", "gpuplane.io")
        assert len(name) <= 63 and NAME.fullmatch(name), key
        assert len(value) <= 63 and VALUE.fullmatch(value), f"{key}={value}"


def test_nothing_is_known_before_the_first_look_and_a_configuration() -> None:
    """No label is written then, and none taken away."""
    for snapshot in (
        Snapshot(),
        Snapshot(machine=machine(gpu(0))),
        Snapshot(config=Config(settings=Settings())),
        Snapshot(machine=Machine(faults=LOST), config=Config(settings=Settings())),  # a look without a driver
    ):
        assert feature_labels(snapshot) is None


def test_a_machine_without_gpus_has_no_labels() -> None:
    """That is known, so that labels of GPUs that were taken out go; of its functions it says what it knows."""
    assert labels(machine()) == {}
    assert labels(machine(vgpu=Vgpu(present=False))) == {"nvidia.com/vgpu.present": "false"}


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("1.3", "tesla"),
        ("2.0", "fermi"),
        ("3.7", "kepler"),
        ("5.2", "maxwell"),
        ("6.0", "pascal"),
        ("7.0", "volta"),
        ("7.2", "volta"),
        ("7.5", "turing"),
        ("8.0", "ampere"),
        ("8.6", "ampere"),
        ("8.9", "ada-lovelace"),
        ("9.0", "hopper"),
        ("10.0", "blackwell"),
        ("12.1", "blackwell"),
        ("13.0", "rubin"),
        ("4.0", "undefined"),
        ("11.0", "undefined"),
        ("99.9", "undefined"),
    ],
)
def test_a_family_follows_from_the_compute_capability(capability: str, family: str) -> None:
    """As the guide's table of families says."""
    major, minor = capability.split(".")
    found = labels(machine(gpu(0, compute_capability=capability)))

    assert of(found, "gpu.family", "gpu.compute.major", "gpu.compute.minor") == [family, major, minor]


@shows("not-told")
@pytest.mark.parametrize("capability", ["", "0.0", "-1.-1"])
def test_a_compute_capability_that_is_not_told_is_no_label(capability: str) -> None:
    """NVIDIA's writes -1 for some GPUs, which is no legal value."""
    found = labels(machine(gpu(0, compute_capability=capability)))

    assert of(found, "gpu.family", "gpu.compute.major", "gpu.compute.minor") == [None] * 3
    assert of(found, "gpu.count") == ["1"]


@pytest.mark.parametrize(
    ("version", "parts"),
    [
        ("570.172.08", ["570", "172", "08", "570.172.08"]),
        ("410.72", ["410", "72", "", "410.72"]),
    ],
)
def test_a_driver_version_has_two_parts_or_three(version: str, parts: list[str]) -> None:
    """Each is written by two names."""
    found = labels(machine(gpu(0)).but(driver=Driver(version=version, cuda="12.8")))

    old, new = "cuda.driver.", "cuda.driver-version."
    assert of(found, f"{old}major", f"{old}minor", f"{old}rev") == parts[:3]
    assert of(found, f"{new}major", f"{new}minor", f"{new}revision", f"{new}full") == parts


@shows("not-told")
def test_what_the_driver_does_not_tell_is_left_out_and_nothing_else() -> None:
    """NVIDIA's ends there, and the labels of the start before stay for ever."""
    for version, parts in (("", [None] * 4), ("570", ["570", "", "", "570"]), ("1.2.3.4", ["1", "2", "3", "1.2.3.4"])):
        found = labels(machine(gpu(0)).but(driver=Driver(version=version)))
        name = "cuda.driver-version."
        assert of(found, f"{name}major", f"{name}minor", f"{name}revision", f"{name}full") == parts
        assert of(found, "cuda.runtime.major", "gpu.count") == [None, "1"]
    found = labels(machine(cut(0, "3g.40gb").but(mig=None)).but(driver=None, product=""))
    assert of(found, "gpu.machine", "gpu.product") == ["unknown", "NVIDIA-A100-SXM4-80GB"]


@shows("not-told")
def test_a_mig_device_that_is_not_described_is_not_counted() -> None:
    """Its engines are not labelled where the driver does not tell them."""
    whole = cut(0, "3g.40gb", "3g.40gb")
    first, second = whole.mig_devices
    some = whole.but(mig=Mig(enabled=True, devices=(first.but(attributes=None), second.but(profile="", faults=LOST))))
    for config, key in ((SINGLE, "gpu"), (MIXED, "mig-3g.40gb")):
        found = labels(machine(some), config)
        assert of(found, f"{key}.count", f"{key}.memory", f"{key}.multiprocessors") == ["1", "40192", None]


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        (["0x030200", "0x030200"], "compute"),
        (["0x030000", "0x030000"], "graphics"),
        (["0x030200", "0x030000"], "unknown"),
        (["0x030200", ""], "compute"),  # of one it is not known
        (["", ""], "unknown"),
        (["0x038000"], "unknown"),
    ],
)
def test_a_mode_is_that_of_all_gpus(classes: list[str], mode: str) -> None:
    """By the class of their PCI functions, whatever their models."""
    models = (L40S, T4)
    gpus = [gpu(n, model, pci_class=each) for n, (model, each) in enumerate(zip(models, classes, strict=False))]

    assert of(labels(machine(*gpus)), "gpu.mode") == [mode]


@pytest.mark.parametrize(
    ("fabrics", "clique"),
    [
        ([FabricClique("a-b", 7), FabricClique("a-b", 7)], "a-b.7"),
        ([FabricClique("a-b", 0), None], "a-b.0"),  # one is in no fabric
        ([FabricClique("a-b", 7), FabricClique("a-b", 8)], None),
        ([FabricClique("a-b", 7), FabricClique("a-c", 7)], None),
        ([None, None], None),
    ],
)
def test_a_clique_is_that_of_all_gpus_of_the_fabric(fabrics: list[FabricClique | None], clique: str | None) -> None:
    """Where they do not agree there is none."""
    found = labels(machine(*(gpu(n, H100, fabric=each) for n, each in enumerate(fabrics))))

    assert of(found, "gpu.clique") == [clique]


@shows("vgpu")
@pytest.mark.parametrize(
    ("vgpu", "values"),
    [
        (None, [None, None, None]),
        (Vgpu(present=False), ["false", None, None]),
        (Vgpu(present=True), ["true", None, None]),
        (Vgpu(True, "460.16", "r460_00"), ["true", "460.16", "r460_00"]),
    ],
)
def test_virtual_gpus_are_labelled_where_they_are_told(vgpu: Vgpu | None, values: list[str | None]) -> None:
    """It takes a right that the agent does not ask for."""
    found = labels(machine(gpu(0), vgpu=vgpu))

    assert of(found, "vgpu.present", "vgpu.host-driver-version", "vgpu.host-driver-branch") == values


@pytest.mark.parametrize(
    ("text", "value"),
    [  # the first ones as NVIDIA's sanitise() has it
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA  TITAN\tX (Pascal)", "NVIDIA-TITANX-Pascal"),
        ("AS -4125GS-TNRT", "AS--4125GS-TNRT"),
        ("1g.10gb+me", "1g.10gbme"),
        ("Ünïcode®", "ncode"),
        ("", ""),
    ],
)
def test_a_value_drops_what_none_may_contain(text: str, value: str) -> None:
    """And words are joined by a hyphen."""
    assert label_value(text) == value


@shows("legal")
def test_a_value_is_cut_and_its_ends_are_trimmed() -> None:
    """What consumers look for at its end stays. NVIDIA's writes it as it is, and the API server refuses it."""
    assert label_value("- NVIDIA -") == "NVIDIA"
    assert label_value("x" * 70) == "x" * 63
    assert label_value(f"{'x' * 62}. y") == "x" * 62
    pro = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    assert label_value(pro, ("MIG", "1g.24gb+me.all", "SHARED")) == (
        "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Wo-MIG-1g.24gbme.all-SHARED"
    )


def test_parts_of_keys_that_are_cut_stay_different() -> None:
    """By a hash at their end; what is short enough is as it is."""
    parts = [key_part(f"{'x' * 50} {n}", 45) for n in range(100)] + [key_part("y" * 45, 45)]

    assert len(set(parts)) == 101
    assert {len(part) for part in parts} == {45}
    assert parts[-1] == "y" * 45


texts = st.text(max_size=80) | st.sampled_from(
    ("NVIDIA H100", "-", "..", "NVIDIA RTX PRO 6000 Blackwell Server Edition")
)


@given(data=st.data())
@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_every_key_and_every_value_is_legal(strategy: str, data: st.DataObject) -> None:
    """Whatever a driver, a fabric's manager and a firmware say."""
    file: MachineFile = data.draw(machines())
    gpus = []
    for each in file.gpus or ():
        devices = tuple(device.but(profile=data.draw(st.just(device.profile) | texts)) for device in each.mig_devices)
        fabric = data.draw(st.none() | st.builds(FabricClique, cluster=texts, clique=st.integers(0, 1 << 32)))
        mig = each.mig and each.mig.but(devices=devices)
        capability = data.draw(st.just(each.compute_capability) | texts)
        gpus.append(
            each.but(
                model=data.draw(st.just(each.model) | texts), fabric=fabric, mig=mig, compute_capability=capability
            )
        )
    described = Machine(
        driver=Driver(version=data.draw(texts), cuda=data.draw(texts)),
        gpus=tuple(gpus),
        product=data.draw(texts),
        vgpu=data.draw(st.none() | st.builds(Vgpu, st.booleans(), texts, texts)),
    )
    sharing = data.draw(st.sampled_from(("", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 3}]}}")))

    found = labels(described, f"flags: {{migStrategy: {strategy}}}\n{sharing}")

    assert_legal(found)
    count = data.draw(st.permutations(gpus))
    assert labels(described.but(gpus=tuple(count)), f"flags: {{migStrategy: {strategy}}}\n{sharing}") == found


def test_the_order_of_gpus_does_not_matter() -> None:
    """On a node with several models, all of them in equal numbers."""
    gpus = [gpu(0, L40S), gpu(1, T4), cut(2, "1g.10gb"), gpu(3, H100), gpu(4, "NVIDIA GeForce RTX 4090")]
    for config in ("", SINGLE, MIXED):
        assert len({tuple(labels(machine(*order), config).items()) for order in permutations(gpus)}) == 1
    assert of(labels(machine(*gpus)), "gpu.product") == ["NVIDIA-A100-SXM4-80GB"]  # of most memory


@shows("failing-gpus")
@pytest.mark.parametrize("name", ["a100-mig", "hgx-h100", "gb200-nvl", "workstation", "t4"])
@pytest.mark.parametrize("config", ["", SINGLE, MIXED])
def test_a_gpu_that_gets_a_fault_changes_no_label(name: str, config: str) -> None:
    """Not in the looks that follow, in which the driver tells nothing of it but that it is there."""
    before = profile(name)
    for n, lost in enumerate(before.gpus or ()):
        rest = [
            Gpu(index=lost.index, pci=lost.pci, faults=LOST) if each is lost else each for each in before.gpus or ()
        ]
        seen = merge_observation(before, before.but(gpus=tuple(rest)))
        assert labels(seen, config) == labels(before, config), n


@shows("failing-gpus")
def test_a_gpu_that_was_lost_before_the_agents_start_decides_nothing() -> None:
    """It does not tell whether it is in MIG mode, nor its model where the kernel's driver does not either."""
    lost = gpu(2, mig=None, compute_capability="", memory_mib=0, faults=LOST)
    found = labels(machine(cut(0, "3g.40gb"), cut(1, "3g.40gb"), lost), SINGLE)
    assert of(found, "gpu.product", "gpu.count") == ["NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", "2"]

    found = labels(machine(gpu(0), Gpu(index=1, uuid="GPU-1", faults=LOST)))
    assert of(found, "gpu.product", "gpu.count", "mig.capable") == ["NVIDIA-A100-SXM4-80GB", "1", "true"]

    found = labels(machine(Gpu(index=0, uuid="GPU-0", faults=LOST)))
    assert of(found, "gpu.product", "gpu.count", "mig.capable") == [None, "1", None]


@shows("silent-driver")
def test_labels_stay_while_the_driver_cannot_be_used() -> None:
    """The last look stays in force. NVIDIA's drops them, or keeps them as they were, whatever comes."""
    before = machine(gpu(0), gpu(1))
    silent = Machine(faults=LOST, product=before.product)  # what the driver's process tells without the library

    assert labels(merge_observation(before, silent)) == labels(before)


def test_a_repaired_layout_is_labelled_at_once() -> None:
    """What was said of the GPUs before does not stay."""
    invalid, valid = machine(cut(0, "3g.40gb"), gpu(1)), machine(cut(0, "3g.40gb"), cut(1, "3g.40gb"))
    assert of(labels(invalid, SINGLE), "gpu.product", "gpu.count") == ["NVIDIA-A100-SXM4-80GB-MIG-INVALID", "0"]
    assert of(labels(valid, SINGLE), "gpu.product", "gpu.count") == ["NVIDIA-A100-SXM4-80GB-MIG-3g.40gb", "2"]


@shows("machine-type-file")
@shows("timestamp")
def test_options_of_nvidias_that_are_not_followed() -> None:
    """A file for the name of the server, and a timestamp: see docs/labels.md."""
    found = labels(machine(gpu(0)), "flags: {gfd: {machineTypeFile: /etc/machine-type, noTimestamp: false}}")

    assert of(found, "gpu.machine", "gfd.timestamp") == ["DGXA100", None]


@shows("platforms")
def test_gpus_that_nvml_does_not_see_have_no_labels() -> None:
    """Those of Tegra and of vfio; NVIDIA's writes "unknown", 0.0 and -1."""
    assert labels(Machine(gpus=())) == {}


def test_a_label_says_where_it_is_known_from() -> None:
    """Each of them, in a few words."""
    snapshot = Snapshot(machine=profile("a100-mig"), config=Config(settings=Settings(mig_strategy="mixed")))
    found = feature_labels(snapshot)

    assert found and all(0 < len(label.source) <= 80 for label in found.values())
    assert list(found) == sorted(found)


def test_equal_snapshots_have_the_same_labels() -> None:
    """And a change of what is no part of them makes none: whoever writes them has nothing to do."""
    snapshot = Snapshot(machine=profile("hgx-h100"), config=Config(settings=Settings()))
    found = feature_labels(snapshot)

    assert feature_labels(snapshot.but(generation=7, allocations=())) is found
    hot = [each.but(faults=LOST, uncorrected_errors=3) for each in snapshot.gpus]
    assert snapshot.machine is not None
    assert feature_labels(snapshot.but(machine=snapshot.machine.but(gpus=tuple(hot)))) is found
