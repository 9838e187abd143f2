"""The feature gates of DRA: since which release each is on. Fields of a gate that is off are dropped without a word.

Source: pkg/features/kube_features.go of each release; of 1.36 what `/metrics` of a real server says.
"""

from collections.abc import Collection

NEWEST_RELEASE = "1.36"
"""The release that the API server is."""
RELEASES = ("1.34", "1.35", "1.36")
"""The releases that it can emulate (kube-apiserver --emulated-version). It checks as the newest one all the same."""
RELEASE_BY_GATE = {
    "DRAAdminAccess": "1.34",
    "DRAPrioritizedList": "1.34",
    "DRAResourceClaimDeviceStatus": "1.34",
    "DRAConsumableCapacity": "1.36",
    "DRADeviceBindingConditions": "1.36",
    "DRADeviceTaints": "1.36",
    "DRAExtendedResource": "1.36",
    "DRAPartitionableDevices": "1.36",
    "DRAListTypeAttributes": "",
    "DRANodeAllocatableResources": "",
}
"""Gate → the first release in which it is on by default; "" where it is off in all of them."""


def gates_off(emulates: str = NEWEST_RELEASE, switched_off: Collection[str] = ()) -> frozenset[str]:
    """The gates that are off. Raises ValueError for what is no release and no gate of these."""
    if emulates not in RELEASES:
        raise ValueError(f"{emulates} cannot be emulated; known are {', '.join(RELEASES)}")
    if unknown := sorted(set(switched_off) - set(RELEASE_BY_GATE)):
        raise ValueError(f"{', '.join(unknown)}: no such feature gate; known are {', '.join(sorted(RELEASE_BY_GATE))}")
    late = {
        gate for gate, since in RELEASE_BY_GATE.items() if not since or RELEASES.index(since) > RELEASES.index(emulates)
    }
    return frozenset(late | set(switched_off))
