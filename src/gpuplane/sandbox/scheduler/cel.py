"""Selectors of devices, evaluated as kube-scheduler does (k8s.io/dynamic-resource-allocation/cel).

The evaluator is Google's CEL (cel-expr-python). It is no dependency of the agent: where it is missing, the first
selector says what to install. `device` is declared by its fields, so that a wrong field or type is found when an
expression is compiled.

An unknown domain reads as an empty map, yet `in` and `exists` do not see it. The library has no map with a default. So
an expression that fails is evaluated again, with an empty map for each domain that its text names. (An expression
that asks `'x' in device.attributes`, and reads `device.attributes['x']` without waiting for the answer, sees x twice.)

Left out: Kubernetes' libraries of lists, sets, addresses, URLs and formats.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gpuplane.sandbox.scheduler.celfunctions import DESCRIPTOR_POOL, QUANTITY_TYPE, declare_functions, quantity, semver
from gpuplane.sandbox.scheduler.semver import parse_version

_STRING_LITERAL_PATTERN = re.compile(r"'([^'\\\n]*)'|\"([^\"\\\n]*)\"")
Json = Mapping[str, Any]


class SelectorError(Exception):
    """An expression that cannot be compiled, or fails for a device."""


class MissingLibrary(SelectorError):
    """There is no CEL library."""


class Variables:
    """What an expression can see of a device that is not shared: its driver, the API's attributes and capacities.

    Names without a domain are in the driver's. Raises ValueError for a version or quantity that is none.
    """

    def __init__(self, driver: str, attributes: Json, capacity: Json) -> None:
        self._fields = {"device.driver": driver, "device.allowMultipleAllocations": False}
        self._attributes = _group_by_domain(
            driver, {name: _attribute_value(value) for name, value in attributes.items()}
        )
        self._capacity = _group_by_domain(driver, {name: quantity(each["value"]) for name, each in capacity.items()})

    def activation(self, domains: tuple[str, ...] = ()) -> dict[str, Any]:
        """The variables by name, with an empty map for each of the domains that is not there."""
        empty: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
        return self._fields | {
            "device.attributes": empty | self._attributes,
            "device.capacity": empty | self._capacity,
        }


def matches(expression: str, variables: Variables) -> bool:
    """Whether a device is selected. Raises SelectorError."""
    program = _compile(expression)
    found = program.eval(data=variables.activation())
    if found.type() == _load_library().Type.ERROR:
        domains = tuple(one or other for one, other in _STRING_LITERAL_PATTERN.findall(expression))
        found = program.eval(data=variables.activation(domains))
    value = found.value()
    if not isinstance(value, bool):
        raise SelectorError(f"CEL runtime error: {value}")
    return value


@lru_cache(maxsize=1024)
def _compile(expression: str) -> Any:
    try:
        return _make_environment().compile(expression)
    except RuntimeError as wrong:
        raise SelectorError(f"compilation failed: {wrong}") from None


@lru_cache(maxsize=1)
def _make_environment() -> Any:
    cel = _load_library()
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings  # type: ignore[import-untyped]

    def by_domain(value: Any) -> Any:
        return cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, value))

    return cel.NewEnv(
        descriptor_pool=DESCRIPTOR_POOL,
        variables={
            "device.driver": cel.Type.STRING,
            "device.allowMultipleAllocations": cel.Type.BOOL,
            "device.attributes": by_domain(cel.Type.DYN),
            "device.capacity": by_domain(cel.Type(QUANTITY_TYPE)),
        },
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=declare_functions(cel),
    )


def check_library() -> None:
    """Raises MissingLibrary."""
    _load_library()


def _load_library() -> Any:
    try:
        from cel_expr_python import cel  # type: ignore[import-untyped]
    except ImportError as missing:
        raise MissingLibrary(
            "selectors of devices are CEL expressions, and there is no library to evaluate them: install it by "
            "pip install 'gpuplane[sandbox]' (cel-expr-python)"
        ) from missing
    return cel


def _group_by_domain(driver: str, values: Json) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        domain, slash, identifier = name.partition("/")
        found.setdefault(domain if slash else driver, {})[identifier if slash else domain] = value
    return found


def _attribute_value(value: Json) -> Any:
    for kind in ("int", "bool", "string"):
        if value.get(kind) is not None:
            return value[kind]
    if value.get("version") is not None:
        return semver(parse_version(value["version"]))
    raise ValueError("unsupported attribute value")
