"""The labels of GPUs and MIG devices: `nvidia.com/gpu.*`, `nvidia.com/mig-PROFILE.*`, and ours by model.

The rules are those of GPU Feature Discovery (k8s-device-plugin 0.20, internal/lm/resource.go, mig-strategy.go). Where
theirs depend on the order of a map, these depend on what is there alone. docs/labels.md has each difference.

- A GPU counts as long as the driver or the kernel lists it, whatever its health. A label says what a node has; whether
  it may be given out now, kubelet's list says.
- Only one model can have `nvidia.com/gpu.*`: that of most GPUs; between equals, of more memory, then by name.
- Where the devices of one label are shared differently: as most of them are; between equals, by fewer replicas.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpuplane.kubernetes.resourcenames import GPU_RESOURCE, MIG_RESOURCE_PREFIX, OWN_PREFIX
from gpuplane.node.core.inventory.resources import assign_units
from gpuplane.node.core.inventory.sharing import sharing_entry_by_name
from gpuplane.node.core.kinds.nvidia.architecture import gpu_family, parse_compute_capability
from gpuplane.node.core.kinds.unitresource import UnitResource
from gpuplane.node.core.labels.syntax import MAX_LENGTH, key_part, label_value
from gpuplane.node.model.config import Settings
from gpuplane.node.model.machine import Gpu, Machine, MigDevice
from gpuplane.node.model.views import FeatureLabel

Labels = dict[str, FeatureLabel]

SHARED_SUFFIX, MIG_WORD, INVALID_WORD = "SHARED", "MIG", "INVALID"

_SHARING_SOURCE = "sharing, in the configuration"

_OWN_GPU_KEY = f"{OWN_PREFIX}gpu"
_LONGEST_MODEL = MAX_LENGTH - len("gpu..compute.major")
_LONGEST_PROFILE = MAX_LENGTH - len("mig-.sharing-strategy")
"""Characters that a model and a profile may have in a key, so that the longest of the keys with it is legal."""


class _Shares(NamedTuple):
    """How a device is shared. The order is that of preference between equals."""

    replicas: int = 1
    strategy: str = "none"
    is_renamed: bool = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (SHARED_SUFFIX,) if self.replicas > 1 and not self.is_renamed else ()


_NOT_SHARED, _NOT_OFFERED = _Shares(), _Shares(replicas=0)


def resource_labels(machine: Machine, settings: Settings) -> Labels:
    """All labels of this machine's GPUs and MIG devices; {} where it has no GPU."""
    gpus = machine.gpus or ()
    if not gpus:
        return {}
    units = assign_units(machine, settings)
    labels = _whole_gpu_labels(gpus, units, settings)
    if settings.mig_strategy == "single":
        labels |= _single_labels(gpus, units, settings)
    if settings.mig_strategy == "mixed":
        labels |= _mixed_labels(gpus, units, settings)
    return labels | _labels_by_model(gpus)


def tells_mig_mode(gpu: Gpu) -> bool:
    """Whether it is known if the GPU is in MIG mode. One that has failed since before the agent's start tells nothing.

    One that was described once, and has no MIG mode, cannot have one, whatever ails it now.
    """
    return gpu.mig is not None or bool(gpu.compute_capability) or not gpu.faults


def _whole_gpu_labels(gpus: Sequence[Gpu], units: Sequence[UnitResource], settings: Settings) -> Labels:
    """The labels of one model. A GPU in MIG mode is no device that is given out: it has 0 replicas."""
    model = _chosen_model(gpus)
    alike = [gpu for gpu in gpus if gpu.model == model]
    whole = {str(gpu.index) for gpu in alike if not gpu.mig_enabled}
    shares = _shares_of((each for each in units if each.unit.index in whole), settings) if whole else _NOT_OFFERED
    source = f"the GPUs of the model {model}" if model else "the GPUs"
    values: dict[str, str | int | None] = {
        "product": label_value(model, shares.suffixes) if model else None,
        "count": len(alike),
        "replicas": shares.replicas,
        "sharing-strategy": shares.strategy,
        **_hardware_values(alike),
    }
    return _labels(GPU_RESOURCE, values, source)


def _single_labels(gpus: Sequence[Gpu], units: Sequence[UnitResource], settings: Settings) -> Labels:
    """What `single` says in place of the labels of whole GPUs; {} without a GPU in MIG mode."""
    told = [gpu for gpu in gpus if tells_mig_mode(gpu)]
    enabled = [gpu for gpu in told if gpu.mig_enabled]
    if not enabled:
        return {}
    by_profile = _mig_devices_by_profile(enabled)
    has_empty = any(not gpu.mig_devices for gpu in enabled)
    if has_empty or len(enabled) < len(told) or len(by_profile) > 1:
        return _invalid_labels(_chosen_model(enabled))
    labels: Labels = {}
    for profile, found in by_profile.items():
        labels |= _mig_labels(GPU_RESOURCE, profile, found, units, settings)
    return labels


def _invalid_labels(model: str) -> Labels:
    """That `single` finds more than one kind of device: NVIDIA's plugin then offers none."""
    values: dict[str, str | int | None] = {
        "product": label_value(model, (MIG_WORD, INVALID_WORD)),
        "count": 0,
        "replicas": 0,
        "sharing-strategy": "",
        "memory": 0,
    }
    return _labels(GPU_RESOURCE, values, "flags.migStrategy single, and GPUs that are not partitioned all alike")


def _mixed_labels(gpus: Sequence[Gpu], units: Sequence[UnitResource], settings: Settings) -> Labels:
    labels: Labels = {}
    for profile, found in sorted(_mig_devices_by_profile(gpus).items()):
        if part := key_part(profile.replace("+", "."), _LONGEST_PROFILE):
            labels |= _mig_labels(MIG_RESOURCE_PREFIX + part, profile, found, units, settings)
    return labels


def _mig_labels(
    key: str,
    profile: str,
    found: Sequence[tuple[Gpu, MigDevice]],
    units: Sequence[UnitResource],
    settings: Settings,
) -> Labels:
    """The labels of all MIG devices of one profile."""
    model = _chosen_model([gpu for gpu, _ in found])
    alike = [device for gpu, device in found if gpu.model == model]
    shares = _shares_of((each for each in units if each.unit.profile == profile), settings)
    memories = [device.memory_mib for device in alike if device.memory_mib]
    values: dict[str, str | int | None] = {
        "product": label_value(model, (MIG_WORD, profile, *shares.suffixes)),
        "count": len(found),
        "replicas": shares.replicas,
        "sharing-strategy": shares.strategy,
        "memory": min(memories, default=None),
        **_attribute_values(alike),
    }
    return _labels(key, values, f"the MIG devices of the profile {profile}")


def _attribute_values(devices: Iterable[MigDevice]) -> Mapping[str, int]:
    """What a MIG device consists of; {} where no driver tells. Of one profile all have the same."""
    told = [device.attributes for device in devices if device.attributes is not None]
    if not told:
        return {}
    least = min(told, key=lambda each: (each.multiprocessors, each.copy_engines, each.decoders))
    return {
        "multiprocessors": least.multiprocessors,
        "slices.gi": least.gpu_slices,
        "slices.ci": least.compute_slices,
        "engines.copy": least.copy_engines,
        "engines.decoder": least.decoders,
        "engines.encoder": least.encoders,
        "engines.jpeg": least.jpeg_engines,
        "engines.ofa": least.optical_flow_engines,
    }


def _labels_by_model(gpus: Sequence[Gpu]) -> Labels:
    """What each model is, and how many GPUs are of it."""
    labels: Labels = {}
    for model in sorted({gpu.model for gpu in gpus} - {""}):
        alike = [gpu for gpu in gpus if gpu.model == model]
        if part := key_part(model, _LONGEST_MODEL):
            values: dict[str, str | int | None] = {"count": len(alike), **_hardware_values(alike)}
            labels |= _labels(f"{_OWN_GPU_KEY}.{part}", values, f"the GPUs of the model {model}")
    return labels


def _hardware_values(gpus: Iterable[Gpu]) -> Mapping[str, str | int | None]:
    """What GPUs of one model are. Those that do not tell are left out; of those that differ, it is the least."""
    alike = list(gpus)
    memory = min((gpu.memory_mib for gpu in alike if gpu.memory_mib), default=None)
    told = [found for gpu in alike if (found := parse_compute_capability(gpu.compute_capability))]
    if not told:
        return {"memory": memory}
    capability = min(told)
    major, minor = capability
    return {"memory": memory, "family": gpu_family(capability), "compute.major": major, "compute.minor": minor}


def _chosen_model(gpus: Sequence[Gpu]) -> str:
    """The model that stands for all of them; "" where none is known."""
    counts = Counter(gpu.model for gpu in gpus if gpu.model)
    memory = {gpu.model: max(each.memory_mib for each in gpus if each.model == gpu.model) for gpu in gpus}
    return min(counts, key=lambda model: (-counts[model], -memory[model], model), default="")


def _mig_devices_by_profile(gpus: Iterable[Gpu]) -> Mapping[str, Sequence[tuple[Gpu, MigDevice]]]:
    """Profile → the MIG devices of it, each with its GPU. One whose profile the driver does not tell is left out."""
    by_profile: dict[str, list[tuple[Gpu, MigDevice]]] = {}
    for gpu in gpus:
        for device in gpu.mig_devices:
            if device.profile:
                by_profile.setdefault(device.profile, []).append((gpu, device))
    return by_profile


def _shares_of(units: Iterable[UnitResource], settings: Settings) -> _Shares:
    """How most of these units are shared."""
    entries = sharing_entry_by_name(settings.sharing)
    counts = Counter(
        _Shares(
            replicas=each.replicas,
            strategy="none" if each.replicas < 2 else "mps" if each.is_shared_by_mps else "time-slicing",
            is_renamed=bool(each.sharing_entry and entries[each.sharing_entry].rename),
        )
        for each in units
    )
    return min(counts, key=lambda shares: (-counts[shares], shares), default=_NOT_SHARED)


def _labels(key: str, values: Mapping[str, str | int | None], source: str) -> Labels:
    """A label for each value that is known."""
    sources = dict.fromkeys(("replicas", "sharing-strategy"), _SHARING_SOURCE)
    return {
        f"{key}.{name}": FeatureLabel(str(value), sources.get(name, source))
        for name, value in values.items()
        if value is not None
    }
