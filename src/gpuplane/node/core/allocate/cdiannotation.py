"""The annotation by which a container runtime learns the CDI devices of a container."""

import uuid
from collections.abc import Sequence

from gpuplane.node.model.config import Settings

CDI_ANNOTATION_NAME = "nvidia-device-plugin_"


def cdi_annotation(qualified_names: Sequence[str], settings: Settings, resource: str) -> dict[str, str]:
    """The annotation. Its key has to differ between the resources of a container, and has no other meaning."""
    devices = ",".join(qualified_names)
    key = uuid.uuid5(uuid.NAMESPACE_OID, f"{resource}={devices}")
    return {f"{settings.cdi_annotation_prefix}{CDI_ANNOTATION_NAME}{key}": devices}
