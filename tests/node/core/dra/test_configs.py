"""A claim's configuration: which entry is in force, and what is refused."""

import pytest

from gpuplane.node.core.kinds.claimconfigs import InvalidConfig
from gpuplane.node.core.kinds.nvidia.claimconfigs import gpu_config, time_slice
from gpuplane.node.model.claims import AllocatedClaim, AllocatedDevice, OpaqueConfig
from tests.node.core.dra.nodes import claim

HEAD = '"apiVersion":"resource.nvidia.com/v1beta1","kind"'


def config(interval: str, *requests: str, is_from_class: bool = False) -> OpaqueConfig:
    """Time slices of some length."""
    sharing = f'{{"strategy":"TimeSlicing","timeSlicingConfig":{{"interval":"{interval}"}}}}'
    return OpaqueConfig(f'{{{HEAD}:"GpuConfig","sharing":{sharing}}}', requests, is_from_class)


def in_force(*configs: OpaqueConfig, request: str = "gpu") -> str | None:
    """The length that a GPU's request gets."""
    device = AllocatedDevice(request, "n1/gpu-0", "gpu-0")
    return time_slice(gpu_config(asked(*configs), device))


def asked(*configs: OpaqueConfig) -> AllocatedClaim:
    """A claim with these entries."""
    return claim("a", 0, configs=configs)


def test_the_last_entry_that_fits_is_in_force() -> None:
    """Those of classes come before those of the claim, wherever they stand."""
    assert in_force() is None
    assert in_force(config("Short"), config("Long")) == "long"
    assert in_force(config("Long"), config("Short", is_from_class=True)) == "long"
    assert in_force(config("Short", is_from_class=True), config("Medium", "other")) == "short"
    assert in_force(config("Default")) == "default"


def test_an_entry_may_name_the_main_request_or_the_subrequest() -> None:
    """As the API server records it: requests ["acc"], result "acc/mig"."""
    assert in_force(config("Long", "acc"), request="acc/mig") == "long"
    assert in_force(config("Long", "acc/mig"), request="acc/mig") == "long"
    assert in_force(config("Long", "acc/gpu"), request="acc/mig") is None


def test_entries_for_other_devices_are_passed_over_unless_they_name_the_gpu() -> None:
    """One for all requests is for those that it fits."""
    other = OpaqueConfig(f'{{{HEAD}:"MigDeviceConfig"}}')
    assert in_force(config("Long"), other) == "long"
    with pytest.raises(InvalidConfig, match="MigDeviceConfig is not for a full GPU"):
        in_force(config("Long"), other.but(requests=("gpu",)))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("", r"config\[0\]"),
        ("[]", r"config\[0\]"),
        ("{", r"config\[0\]"),
        ("{}", "apiVersion"),
        ('{"apiVersion":"example.com/v1","kind":"GpuConfig"}', "apiVersion"),
        (f'{{{HEAD}:"Config"}}', "kind"),
        (f'{{{HEAD}:"GpuConfig","sharig":{{}}}}', "sharig"),
        (f'{{{HEAD}:"GpuConfig","sharing":{{"strategy":"Both"}}}}', "strategy"),
        (f'{{{HEAD}:"GpuConfig","sharing":{{"strategy":"MPS"}}}}', "MPS is not served"),
        (f'{{{HEAD}:"GpuConfig","sharing":{{"strategy":"TimeSlicing","mpsConfig":{{}}}}}}', "mpsConfig needs"),
        (f'{{{HEAD}:"GpuConfig","x":"{"y" * 11000}"}}', "more than 10240 bytes"),
        ("[" * 100_000, r"config\[0\]"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(parameters: str, said: str) -> None:
    """And what is wrong there."""
    with pytest.raises(InvalidConfig, match=said):
        in_force(OpaqueConfig(parameters))
