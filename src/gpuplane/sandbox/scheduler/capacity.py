"""What is in use, and how much of a device a request takes: shared devices by their capacities. Pure.

A capacity is asked for by the name under which it is published. What a request takes of each capacity of the device:
what it asks for, rounded up by the capacity's policy; the policy's default, or all of it, where it asks for nothing.
A device that is not shared is taken whole; what is asked of its capacities has to be there all the same.

Source: dynamic-resource-allocation/structured/internal/incubating/consumable_capacity.go of 1.36.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import msgspec

from gpuplane.sandbox.apiserver.quantities import Quantity, parse_quantity
from gpuplane.sandbox.scheduler.claims import CapacityRequest
from gpuplane.sandbox.scheduler.objects import Json
from gpuplane.sandbox.scheduler.pools import Candidate, DeviceId

Consumed = Mapping[str, Quantity]


class InUse(msgspec.Struct, frozen=True):
    """What allocations hold: whole devices, and of shared devices how much of each capacity."""

    devices: frozenset[DeviceId] = frozenset()
    shared: Mapping[DeviceId, Mapping[str, Fraction]] = {}

    def holds(self, device: DeviceId) -> bool:
        """Whether somebody has it, or a share of it."""
        return device in self.devices or device in self.shared

    def with_share(self, device: DeviceId, consumed: Mapping[str, Fraction]) -> "InUse":
        """The same with one more share of a device."""
        before = self.shared.get(device, {})
        after = {name: before.get(name, Fraction()) + consumed.get(name, Fraction()) for name in {**before, **consumed}}
        return msgspec.structs.replace(self, shared={**self.shared, device: after})


def find_consumed_capacity(candidate: Candidate, asked: CapacityRequest, in_use: InUse) -> Consumed | None:
    """What a request takes of each capacity of a device; None where that is not to be had."""
    capacities = candidate.device.capacity
    if set(asked.requests) - set(capacities):
        return None
    found: dict[str, Quantity] = {}
    for name, capacity in capacities.items():
        policy = capacity.get("requestPolicy") or {}
        taken = _round_up_by_policy(asked.requests.get(name), capacity, policy)
        if _violates_policy(taken.value, policy):
            return None
        before = in_use.shared.get(candidate.id, {}).get(name, Fraction())
        if before + taken.value > parse_quantity(capacity["value"]).value:
            return None
        found[name] = taken
    return found


def _round_up_by_policy(asked: Any, capacity: Json, policy: Json) -> Quantity:
    if asked is None:
        return parse_quantity(policy.get("default") or capacity["value"])
    wanted = parse_quantity(asked)
    match policy:
        case {"validRange": {"min": least, **rest}}:
            minimum = parse_quantity(least)
            step = parse_quantity(rest.get("step") or 0).value
            if wanted.value < minimum.value:
                return minimum
            if not step:
                return wanted
            steps = int((wanted.value - minimum.value) / step)
            rest_of_step = minimum.value + steps * step != wanted.value
            return _format_quantity(minimum.value + (steps + rest_of_step) * step)
        case {"validValues": values}:
            large = [each for each in map(parse_quantity, values) if each.value >= wanted.value]
            return min(large, key=lambda each: each.value, default=wanted)
    return wanted


def _violates_policy(taken: Fraction, policy: Json) -> bool:
    """Whether a policy does not let it be taken. Its default is always let."""
    if "default" in policy and taken == parse_quantity(policy["default"]).value:
        return False
    match policy:
        case {"validRange": {"max": most}}:
            return taken > parse_quantity(most).value
        case {"validValues": [*values]} if values:
            return all(taken != parse_quantity(each).value for each in values)
    return False


def _format_quantity(value: Fraction) -> Quantity:
    """A quantity with a binary suffix, where it has one."""
    return parse_quantity(f"{value / 1024}Ki" if value and value % 1024 == 0 else str(value))
