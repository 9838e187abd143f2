"""Kubernetes' own functions in CEL: quantities and semantic versions.

Names and overloads are those of apiserver/pkg/cel/library (quantity.go, semverlib.go) in 1.36. Left out: arithmetic of
quantities. CEL's values of these two types are messages of one text each, in a form that is equal where the values are.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gpuplane.kubernetes.quantities import parse_quantity
from gpuplane.sandbox.scheduler.semver import Version, parse_version

QUANTITY_TYPE, SEMVER_TYPE = "kubernetes.Quantity", "kubernetes.Semver"
LARGEST_INTEGER = (1 << 63) - 1


def _make_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="kubernetes.proto", package="kubernetes", syntax="proto3")
    for name in (QUANTITY_TYPE, SEMVER_TYPE):
        message = file.message_type.add(name=name.removeprefix("kubernetes."))
        message.field.add(name="text", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


DESCRIPTOR_POOL = _make_pool()
_QUANTITY_MESSAGE, _SEMVER_MESSAGE = (
    message_factory.GetMessageClass(DESCRIPTOR_POOL.FindMessageTypeByName(name))
    for name in (QUANTITY_TYPE, SEMVER_TYPE)
)


def quantity(text: str) -> Any:
    """A quantity as CEL's value. Raises ValueError."""
    found = parse_quantity(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity")
    return _QUANTITY_MESSAGE(text=f"{found.normalize():f}")


def semver(version: Version) -> Any:
    """A version as CEL's value."""
    return _SEMVER_MESSAGE(text=str(version))


def declare_functions(cel: Any) -> list[Any]:
    """The functions as declarations for an environment of the CEL library."""
    quantity_type, semver_type = cel.Type(QUANTITY_TYPE), cel.Type(SEMVER_TYPE)
    text, boolean, whole = cel.Type.STRING, cel.Type.BOOL, cel.Type.INT
    found: dict[str, list[Any]] = {}

    def add(
        name: str, takes: tuple[Any, ...], gives: Any, body: Callable[..., Any] | None, *, method: bool = True
    ) -> None:
        overload = cel.Overload(
            id=f"{name}_{'_'.join(each.name().rpartition('.')[2] for each in takes)}",
            return_type=gives,
            parameters=takes,
            is_member=method,
            impl=body,
        )
        found.setdefault(name, []).append(overload)

    def compare(name: str, gives: Any, verdict: Callable[[int], Any]) -> None:
        # One body serves both overloads: see _text_of_value.
        add(name, (quantity_type, quantity_type), gives, lambda a, b: verdict(_compare_values(a, b)))
        add(name, (semver_type, semver_type), gives, None)

    add("quantity", (text,), quantity_type, quantity, method=False)
    add("isQuantity", (text,), boolean, lambda a: parse_quantity(a) is not None, method=False)
    add("isInteger", (quantity_type,), boolean, lambda a: _integer(a) is not None)
    add("asInteger", (quantity_type,), whole, _as_integer)
    add("semver", (text,), semver_type, lambda a: semver(parse_version(a)), method=False)
    add("semver", (text, boolean), semver_type, lambda a, b: semver(parse_version(a, b)), method=False)
    add("major", (semver_type,), whole, lambda a: _version_of_semver(a).major)
    add("minor", (semver_type,), whole, lambda a: _version_of_semver(a).minor)
    add("patch", (semver_type,), whole, lambda a: _version_of_semver(a).patch)
    compare("compareTo", whole, lambda order: order)
    compare("isGreaterThan", boolean, lambda order: order > 0)
    compare("isLessThan", boolean, lambda order: order < 0)
    return [cel.FunctionDecl(name, overloads) for name, overloads in found.items()]


def _number_of_quantity(value: Any) -> Decimal:
    return Decimal(_text_of_value(value, _QUANTITY_MESSAGE))


def _version_of_semver(value: Any) -> Version:
    return parse_version(_text_of_value(value, _SEMVER_MESSAGE))


def _text_of_value(value: Any, kind: type) -> str:
    """To the library all messages are of one kind when it runs, so a body sees for itself what it is given."""
    if not isinstance(value, kind):
        raise ValueError("no such overload")
    return str(value.text)  # type: ignore[attr-defined]


def _compare_values(one: Any, other: Any) -> int:
    if isinstance(one, _QUANTITY_MESSAGE):
        return _compare(_number_of_quantity(one), _number_of_quantity(other))
    return _compare(_version_of_semver(one).precedence, _version_of_semver(other).precedence)


def _compare(one: Any, other: Any) -> int:
    return int(one > other) - int(one < other)


def _integer(value: Any) -> int | None:
    number = _number_of_quantity(value)
    return int(number) if number == int(number) and abs(number) <= LARGEST_INTEGER else None


def _as_integer(value: Any) -> int:
    number = _integer(value)
    if number is None:
        raise ValueError("cannot convert value to integer")
    return number
