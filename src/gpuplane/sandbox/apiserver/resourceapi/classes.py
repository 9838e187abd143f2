"""DeviceClasses: what the API server checks of them."""

from gpuplane.sandbox.apiserver.fielderrors import Errors, check_items, check_label_key, invalid
from gpuplane.sandbox.apiserver.kinds import Kind, Write, check_metadata
from gpuplane.sandbox.apiserver.resourceapi.rules import check_configuration, check_selectors
from gpuplane.sandbox.apiserver.resourceapi.types import RESOURCE_API_VERSION, SHAPES


def _prepare(_: Write) -> None:
    """A class is kept as it is sent."""


def _validate(write: Write) -> Errors:
    spec = write.new["spec"]
    yield from check_metadata(write.new["metadata"])
    yield from check_selectors(spec.get("selectors"), "spec.selectors")
    yield from check_items(spec.get("config"), "spec.config", 32, check_configuration)
    name = spec.get("extendedResourceName")
    if name is not None and not _is_extended_resource(name):
        yield invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


def _is_extended_resource(name: str) -> bool:
    """Whether it is a resource that a vendor names (IsExtendedResourceName, pkg/apis/core/v1/helper)."""
    domain = name.partition("/")[0]
    own = "/" not in name or domain.endswith("kubernetes.io") or name.startswith("requests.")
    return not own and not any(check_label_key(f"requests.{name}", ""))


DEVICE_CLASS_KIND = Kind(
    "DeviceClass",
    "deviceclasses",
    RESOURCE_API_VERSION,
    namespaced=False,
    shapes=SHAPES,
    prepare=_prepare,
    validate=_validate,
    counts_generation=True,
)
