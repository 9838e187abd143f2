"""What plugins say of their devices' health (cm/dra/healthinfo.go).

An entry counts for as long as the plugin said, 30 s by default. Then the device is Unknown; so it is when the stream of
its driver has ended. A device that a list leaves out keeps its entry until then.
"""

from collections.abc import Collection, Iterable

import msgspec

from gpuplane.node.kubelet.protocols import drahealth_pb2 as pb

MAX_MESSAGE_LENGTH = 1024
STATE_BY_CODE = {pb.HEALTHY: "Healthy", pb.UNHEALTHY: "Unhealthy"}


class DeviceHealth(msgspec.Struct, frozen=True):
    """`state`: Healthy, Unhealthy or Unknown."""

    state: str
    message: str = ""


UNKNOWN_HEALTH = DeviceHealth("Unknown")


class _Entry(msgspec.Struct):
    said: DeviceHealth
    at: float
    lasts: float


class HealthCache(msgspec.Struct):
    """driver → (pool, device) → what was said last, and when. `age`: seconds that it counts by default."""

    age: float
    entries: dict[str, dict[tuple[str, str], _Entry]] = {}

    def update(self, driver: str, devices: Iterable[pb.DeviceHealth], now: float) -> Collection[tuple[str, str]]:
        """A plugin has sent its list; the devices whose health is another now."""
        known = self.entries.setdefault(driver, {})
        told = {(each.device.pool_name, each.device.device_name): _make_entry(each, now, self.age) for each in devices}
        changed = {key for key, entry in told.items() if key not in known or not _is_same(known[key], entry)}
        for key, entry in known.items():
            if key not in told and entry.said.state != "Unknown" and now - entry.at > entry.lasts:
                told[key] = _Entry(UNKNOWN_HEALTH, now, entry.lasts)
                changed.add(key)
        known.update(told)
        return changed

    def forget(self, driver: str) -> None:
        """A stream of this driver has ended. Other instances of it may have one still: kubelet does not look."""
        self.entries.pop(driver, None)

    def find(self, driver: str, pool: str, device: str, now: float) -> DeviceHealth:
        """What a pod's status says of a device."""
        entry = self.entries.get(driver, {}).get((pool, device))
        return UNKNOWN_HEALTH if entry is None or now - entry.at > entry.lasts else entry.said


def _make_entry(told: pb.DeviceHealth, now: float, age: float) -> _Entry:
    message = (
        told.message if len(told.message) <= MAX_MESSAGE_LENGTH else f"{told.message[: MAX_MESSAGE_LENGTH - 3]}..."
    )
    said = DeviceHealth(STATE_BY_CODE.get(told.health, "Unknown"), message)
    return _Entry(said, now, float(told.health_check_timeout_seconds) if told.health_check_timeout_seconds > 0 else age)


def _is_same(one: _Entry, other: _Entry) -> bool:
    return (one.said, one.lasts) == (other.said, other.lasts)
