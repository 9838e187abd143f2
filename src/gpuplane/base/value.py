"""The base of every value."""

from typing import Any, Self, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _Frozen(msgspec.StructMeta):
    """Tells type checkers that what inherits from `Value` is frozen too."""


class Value(msgspec.Struct, metaclass=_Frozen, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A frozen record: compared by content, encoded without its defaults, decoded strictly."""

    def but(self, **changes: Any) -> Self:
        """The same value with other fields."""
        return msgspec.structs.replace(self, **changes)
