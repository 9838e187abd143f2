"""The request policy of a capacity: which amounts may be asked for (validateRequestPolicy in validation.go)."""

from itertools import pairwise

from gpuplane.sandbox.apiserver.fielderrors import Errors, check_items, forbidden, invalid, required
from gpuplane.sandbox.apiserver.objects import Json
from gpuplane.sandbox.apiserver.quantities import Quantity, parse_quantity


def check_policy(capacity: Json, field: str) -> Errors:
    """The policy of one capacity. A step of zero panics the real server, and is refused here."""
    policy, most = capacity["requestPolicy"], parse_quantity(capacity["value"])
    values, span = policy.get("validValues"), policy.get("validRange")
    default = parse_quantity(policy["default"]) if policy.get("default") is not None else None
    if values and span is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        yield forbidden(field, text)
    elif values or span is not None:
        name = "validValues" if values else "validRange"
        if default is None:
            yield required(f"{field}.default", f"required when {name} is defined")
        elif values:
            yield from _check_values([parse_quantity(each) for each in values], default, most, f"{field}.validValues")
        else:
            yield from _check_range(span, default, most, f"{field}.validRange")


def _check_values(values: list[Quantity], default: Quantity, most: Quantity, field: str) -> Errors:
    for number, (one, next_one) in enumerate(pairwise(values), 1):
        if one.value > next_one.value:
            yield invalid(f"{field}[{number}]", next_one.text, "values must be sorted in ascending order")

    def check(each: Quantity, at: str) -> Errors:
        if each.value > most.value:
            yield invalid(at, each.text, f"option is larger than capacity value: {most.text}")

    yield from check_items(values, field, 10, check, lambda each: str(_rounded_up(each)))
    if len(values) > 10 or default.value not in [each.value for each in values]:
        yield invalid(field, default.text, "default value is not valid according to the requestPolicy")


def _check_range(span: Json, default: Quantity, most: Quantity, field: str) -> Errors:
    least, highest, step = (
        parse_quantity(span[key]) if span.get(key) is not None else None for key in ("min", "max", "step")
    )
    if least is None:
        yield required(f"{field}.min", "required when validRange is defined")
        return
    if least.value > most.value:
        yield invalid(f"{field}.min", least.text, f"min is larger than capacity value: {most.text}")
    if default.value < least.value:
        yield invalid(f"{field}.min", default.text, f"default is less than min: {least.text}")
    if highest is not None:
        if least.value > highest.value:
            yield invalid(f"{field}.max", least.text, f"min is larger than max: {highest.text}")
        if highest.value > most.value:
            yield invalid(f"{field}.max", highest.text, f"max is larger than capacity value: {most.text}")
        if default.value > highest.value:
            yield invalid(f"{field}.max", default.text, f"default is more than max: {highest.text}")
    if step is not None:
        yield from _check_step(step, least, most, (default, *((highest,) if highest else ())), f"{field}.step")


def _check_step(step: Quantity, least: Quantity, most: Quantity, aligned: tuple[Quantity, ...], field: str) -> Errors:
    first = least.value + step.value
    if first > most.value:
        shown = parse_quantity(str(first)).text
        yield invalid(field, step.text, f"one step {shown} is larger than capacity value: {most.text}")
    if not _rounded_up(step):
        yield invalid(field, step.text, "must not be zero")
        return
    for each in aligned:
        if (_rounded_up(each) - _rounded_up(least)) % _rounded_up(step):
            text = f"value is not a multiple of a given step ({step.text}) from ({least.text})"
            yield invalid(field, each.text, text)


def _rounded_up(quantity: Quantity) -> int:
    """Its value, rounded up (Quantity.Value)."""
    return -(-quantity.value.numerator // quantity.value.denominator)
