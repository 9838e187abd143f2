"""The labels that NVIDIA's GPU Feature Discovery writes on a Node, as a view (docs/labels.md).

Names and values are NVIDIA's (k8s-device-plugin 0.20, internal/lm). Each difference has its reason in docs/labels.md.

- Before the first look, and before a configuration, nothing is known: whoever writes labels leaves all of them alone.
- While the driver is silent, or after it was released, the last look stays in force, and so do its labels.
- What cannot be told is no label. The others are written all the same.
- No label has a time in it: a label that changes by itself would be written for nothing.
"""

from collections.abc import Mapping

from gpuplane.kubernetes.resourcenames import RESOURCE_PREFIX
from gpuplane.node.core.labels.resourcelabels import resource_labels, tells_mig_mode
from gpuplane.node.core.labels.syntax import label_value
from gpuplane.node.core.view import part_view
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import Driver, Gpu, Machine
from gpuplane.node.model.snapshot import Snapshot
from gpuplane.node.model.views import FeatureLabel

_MODES = {"0x030000": "graphics", "0x030200": "compute"}
"""gpu.mode by the class of the PCI function: VGA compatible controller, 3D controller."""


def feature_labels(snapshot: Snapshot) -> Mapping[str, FeatureLabel] | None:
    """Key → label, sorted by key; None while they are not known."""
    return _derive_labels.of(snapshot, snapshot.machine, snapshot.config.settings)


@part_view
def _derive_labels(machine: Machine | None, settings: Settings | None) -> Mapping[str, FeatureLabel] | None:
    if machine is None or machine.gpus is None or settings is None:
        return None
    labels = _vgpu_labels(machine)
    if machine.gpus:
        labels |= {
            **_driver_labels(machine.driver or Driver()),
            **_machine_labels(machine),
            **_mig_and_mps_labels(machine.gpus, settings),
            **_mode_and_clique_labels(machine.gpus),
            **resource_labels(machine, settings),
        }
    return dict(sorted(labels.items()))


def _driver_labels(driver: Driver) -> dict[str, FeatureLabel]:
    """The versions of the driver, and of the newest CUDA that it speaks; NVIDIA names each part of them twice."""
    labels: dict[str, FeatureLabel] = {}
    if driver.version:
        major, minor, revision, *_ = [*driver.version.split("."), "", ""]
        labels |= _named(
            {
                "cuda.driver.major": major,
                "cuda.driver.minor": minor,
                "cuda.driver.rev": revision,
                "cuda.driver-version.major": major,
                "cuda.driver-version.minor": minor,
                "cuda.driver-version.revision": revision,
                "cuda.driver-version.full": driver.version,
            },
            "the driver's version",
        )
    if driver.cuda:
        major, minor, *_ = [*driver.cuda.split("."), ""]
        labels |= _named(
            {
                "cuda.runtime.major": major,
                "cuda.runtime.minor": minor,
                "cuda.runtime-version.major": major,
                "cuda.runtime-version.minor": minor,
                "cuda.runtime-version.full": driver.cuda,
            },
            "the newest CUDA that the driver supports",
        )
    return labels


def _machine_labels(machine: Machine) -> dict[str, FeatureLabel]:
    return _named({"gpu.machine": label_value(machine.product) or "unknown"}, "the server's firmware (DMI)")


def _mig_and_mps_labels(gpus: tuple[Gpu, ...], settings: Settings) -> dict[str, FeatureLabel]:
    """`mps.capable` says that containers share GPUs by MPS here, as NVIDIA's does, whatever its name."""
    labels: dict[str, FeatureLabel] = {}
    if any(gpu.mig is not None for gpu in gpus):
        labels |= _named({"mig.capable": "true"}, "a GPU that reports a MIG mode")
    elif any(tells_mig_mode(gpu) for gpu in gpus):
        labels |= _named({"mig.capable": "false"}, "no GPU reports a MIG mode")
    if settings.mig_strategy != "none":
        labels |= _named({"mig.strategy": settings.mig_strategy}, "flags.migStrategy, in the configuration")
    return labels | _named(
        {"mps.capable": "true" if _is_mps_configured(settings) else "false"}, "sharing, in the configuration"
    )


def _is_mps_configured(settings: Settings) -> bool:
    sharing = settings.sharing
    by_replicas = sharing.strategy == "mps" and any(each.replicas > 1 for each in sharing.replicated_resources)
    return by_replicas or (sharing.mps_limits_memory and bool(sharing.memory_resources))


def _mode_and_clique_labels(gpus: tuple[Gpu, ...]) -> dict[str, FeatureLabel]:
    """What all GPUs that tell it have in common, whatever their model."""
    classes = {gpu.pci_class for gpu in gpus if gpu.pci_class}
    mode = _MODES.get(next(iter(classes)), "unknown") if len(classes) == 1 else "unknown"
    labels = _named({"gpu.mode": mode}, "the class of the GPUs' PCI functions")
    cliques = {gpu.fabric for gpu in gpus if gpu.fabric is not None}
    if len(cliques) == 1:
        (fabric,) = cliques
        labels |= _named({"gpu.clique": f"{fabric.cluster}.{fabric.clique}"}, "the NVLink fabric's manager")
    return labels


def _vgpu_labels(machine: Machine) -> dict[str, FeatureLabel]:
    vgpu = machine.vgpu
    if vgpu is None:
        return {}
    versions = {
        "vgpu.host-driver-version": vgpu.host_driver_version,
        "vgpu.host-driver-branch": vgpu.host_driver_branch,
    }
    values = {
        "vgpu.present": "true" if vgpu.present else "false",
        **{key: text for key, text in versions.items() if text},
    }
    return _named(values, "the PCI configuration of NVIDIA's functions")


def _named(values: Mapping[str, str], source: str) -> dict[str, FeatureLabel]:
    return {f"{RESOURCE_PREFIX}{name}": FeatureLabel(label_value(value), source) for name, value in values.items()}
