"""What nvmlDeviceGetFieldValues tells of a GPU and of its NVLinks, in one call for all that is due.

Which fields there are differs by GPU and driver. So a reading may have several sources; the first that is told is asked
alone from then on. A reading that has none is left out of the call for a while.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuplane.node.hardware.nvidia.driver.counterqueries import (
    INVALID_VALUE_ERROR,
    LASTING_ERROR_RETRY_INTERVAL,
    LASTING_ERRORS,
    CounterQueries,
    GpuNotAnswering,
    NoAnswer,
)
from gpuplane.node.hardware.nvidia.driver.counters import (
    FIELD_SOURCES,
    FIELD_VALUES_CALL,
    FieldOfLink,
    FieldSource,
    link_sources,
    read_interval_of_field,
)
from gpuplane.node.hardware.nvidia.driver.errors import ERROR_NAMES, GPU_FAULT_CODES
from gpuplane.node.hardware.nvidia.driver.gpuhealth import BITS_OF_VALUE_TYPE, FIELD_VALUE_STRUCT


@dataclass
class _Item:
    """A reading. `sources`: those that may tell it, the best first. `error`: why none does, until a time."""

    name: str
    link: int | None
    sources: tuple[FieldSource, ...]
    error: str = ""
    useless_until: float = 0.0


class FieldValues:
    """The readings of one GPU. `links`: those of each NVLink."""

    def __init__(
        self, asker: CounterQueries, names: Iterable[str], link_names: Sequence[str], active: Iterable[int]
    ) -> None:
        """`names`: the readings of the GPU. `link_names`: those of each of its NVLinks, which are `active`."""
        self._asker = asker
        own = [_Item(name, None, FIELD_SOURCES[name]) for name in names]
        others = [_Item(name, link, link_sources(name, link)) for link in active for name in link_names]
        self._items = [*own, *(item for item in others if item.sources)]
        self.links: dict[int, dict[str, float]] = {}

    def read(self, now: float, handle: Any, *, slow: bool) -> tuple[dict[str, float], dict[str, str]]:
        """The GPU's readings, and what is missing. `slow`: the slow ones too. Raises GpuNotAnswering."""
        due = [item for item in self._items if slow or read_interval_of_field(item.name) == "fast"]
        asked = [item for item in due if now >= item.useless_until]
        answers = self._ask(now, handle, asked)
        values = {id(item): _choose(item, answers, now) for item in asked}
        told, missing = dict[str, float](), dict[str, str]()
        for item in due:
            value = values.get(id(item))
            if item.link is not None:
                self.links.setdefault(item.link, {}).pop(item.name, None)
            if value is None:
                missing |= {item.name: item.error} if item.link is None else {}
            else:
                (told if item.link is None else self.links[item.link])[item.name] = value
        return told, missing

    def _ask(self, now: float, handle: Any, items: Iterable[_Item]) -> Mapping[FieldOfLink, int | str]:
        """Each field's value, or the error that it has. Raises GpuNotAnswering."""
        fields = list(dict.fromkeys(each for item in items for source in item.sources for each in source.fields))
        if not fields:
            return {}
        try:
            answer = self._asker.ask(now, FIELD_VALUES_CALL, FIELD_VALUES_CALL, handle, fields)
        except NoAnswer as untold:
            return dict.fromkeys(fields, untold.error)
        told: dict[FieldOfLink, int | str] = {}
        for field, (_, _, _, _, kind, error, value) in zip(
            fields, FIELD_VALUE_STRUCT.iter_unpack(bytes(answer)), strict=True
        ):
            told[field] = (
                value & (1 << BITS_OF_VALUE_TYPE[kind]) - 1 if kind in BITS_OF_VALUE_TYPE else INVALID_VALUE_ERROR
            )
            if error:
                told[field] = name = ERROR_NAMES.get(error, str(error))
                if name in GPU_FAULT_CODES:
                    raise GpuNotAnswering(name)
        return told


def _choose(item: _Item, answers: Mapping[FieldOfLink, int | str], now: float) -> float | None:
    """What the best of its sources tells; only that is asked from then on. None, with the error in the item."""
    errors = list[str]()
    for source in item.sources:
        values = [answers[each] for each in source.fields]
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) == len(values):
            item.sources = (source,)
            return sum(numbers) * source.factor
        errors += [value for value in values if isinstance(value, str)]
    item.error = next((error for error in errors if error not in LASTING_ERRORS), errors[0])
    item.useless_until = now + LASTING_ERROR_RETRY_INTERVAL if all(error in LASTING_ERRORS for error in errors) else 0.0
    return None
