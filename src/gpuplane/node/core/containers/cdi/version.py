"""Which version of CDI a specification has to declare.

Runtimes refuse a version that they do not know, and features that are newer than the declared version; old runtimes
stay in use for long. So a specification declares the lowest version with all features that it uses (CNCF
container-device-interface 1.1.0, specs-go/version.go), and at least 0.3.0, the lowest that their library writes.
"""

from collections.abc import Callable, Iterator

from gpuplane.node.model.cdi import ContainerEdits, Spec

CDI_VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""The released versions, in order. 0.8.0 and 1.0.0 changed the library, not the format."""

LOWEST_WRITTEN_VERSION = "0.3.0"


def lowest_version(spec: Spec) -> str:
    """The lowest version with all features that a specification uses, whichever version it declares."""
    return next((version for version, _ in version_features(spec)), LOWEST_WRITTEN_VERSION)


def version_features(spec: Spec) -> Iterator[tuple[str, str]]:
    """(version, feature of it that the specification uses), the newest first; none if 0.3.0 is enough."""
    return ((version, feature) for version, feature, used in FEATURE_VERSIONS if used(spec))


def is_older(version: str, other: str) -> bool:
    """Whether a released version came before another. Raises ValueError if one of them is not a version."""
    return CDI_VERSIONS.index(version) < CDI_VERSIONS.index(other)


def _spec_test_of_any_edits(edits_test: Callable[[ContainerEdits], bool]) -> Callable[[Spec], bool]:
    """A test of a whole specification: whether any of its edits use something."""
    return lambda spec: any(
        edits_test(edits) for edits in (spec.container_edits, *(d.container_edits for d in spec.devices))
    )


def _uses_schemata(edits: ContainerEdits) -> bool:
    rdt = edits.intel_rdt
    return rdt is not None and (bool(rdt.schemata) or rdt.enable_monitoring)


FEATURE_VERSIONS: tuple[tuple[str, str, Callable[[Spec], bool]], ...] = (
    ("1.1.0", "netDevices", _spec_test_of_any_edits(lambda edits: bool(edits.net_devices))),
    ("1.1.0", "schemata or enableMonitoring of intelRdt", _spec_test_of_any_edits(_uses_schemata)),
    ("0.7.0", "additionalGids", _spec_test_of_any_edits(lambda edits: bool(edits.additional_gids))),
    ("0.7.0", "intelRdt", _spec_test_of_any_edits(lambda edits: edits.intel_rdt is not None)),
    ("0.6.0", "annotations", lambda spec: bool(spec.annotations) or any(d.annotations for d in spec.devices)),
    ("0.6.0", "a dot in the class", lambda spec: "." in spec.kind.partition("/")[2]),
    (
        "0.5.0",
        "a name that begins with a digit",
        lambda spec: any(d.name[:1] in set("0123456789") for d in spec.devices),
    ),
    (
        "0.5.0",
        "hostPath of a device node",
        _spec_test_of_any_edits(lambda edits: any(node.host_path for node in edits.device_nodes)),
    ),
    ("0.4.0", "type of a mount", _spec_test_of_any_edits(lambda edits: any(mount.type for mount in edits.mounts))),
)
"""(version, feature that it added, whether a specification uses it). Each row was compared with the source."""
