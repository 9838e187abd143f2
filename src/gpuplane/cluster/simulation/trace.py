"""Nodes and pods of a trace: the CSV files of openb, as Alibaba publishes them with cluster-trace-gpu-v2023.

    nodes   sn,cpu_milli,memory_mib,gpu,model
    pods    name,cpu_milli,memory_mib,num_gpu,gpu_milli
            [,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time]

`gpu_spec`: models that the pod accepts, as "V100M16|V100M32"; empty: any. Times are seconds from the trace's beginning.
Columns may stand in any order. Errors name the file and the line; all are found in one pass.
"""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from gpuplane.base.strict import MAX_ERRORS, InvalidInput, closest_match
from gpuplane.base.text import format_count
from gpuplane.cluster.model.nodes import Gpu, Node
from gpuplane.cluster.model.requests import MILLI_PER_GPU, GpuRequest, Request
from gpuplane.cluster.simulation.pods import TracePod

BYTES_PER_MIB = 1 << 20
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
OPTIONAL_POD_COLUMNS = ("gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
"""Those that a file need not have."""

MAX_BYTES = 256 << 20
MAX_GPUS = 256
"""Of one node, or of one pod."""
MAX_NUMBER = 10**12
"""Of every other number."""

RowT = TypeVar("RowT", Node, TracePod)


def read_nodes(data: bytes, file: str) -> tuple[Node, ...]:
    """The nodes of a CSV file. Raises InvalidInput."""
    return _read(data, file, NODE_COLUMNS, (), _node)


def read_pods(data: bytes, file: str, nodes: Sequence[Node]) -> tuple[TracePod, ...]:
    """The pods of a CSV file, none of which wants what none of the nodes has. Raises InvalidInput."""
    most = dict[str, int]()  # model → GPUs of one node
    for node in nodes:
        for model, count in Counter(each.model for each in node.gpus).items():
            most[model] = max(count, most.get(model, 0))

    def pod(row: Mapping[str, str]) -> TracePod:
        found = _pod(row)
        for wanted in found.request.gpus:
            _check_nodes_have(wanted, most)
        return found

    return _read(data, file, POD_COLUMNS, OPTIONAL_POD_COLUMNS, pod)


def _check_nodes_have(wanted: GpuRequest, most: Mapping[str, int]) -> None:
    """Raises _Wrong."""
    for model in sorted(wanted.models - most.keys()):
        close = closest_match(model, most)
        meant = f": did you mean {close!r}?" if close else f"; they have {', '.join(sorted(most)) or 'no GPU'}"
        raise _Wrong(f"gpu_spec names {model[:100]!r}, a model that no node has{meant}")
    largest = max((count for model, count in most.items() if model in wanted.models or not wanted.models), default=0)
    if wanted.count > largest:
        of = f" of {' or '.join(sorted(wanted.models))}" if wanted.models else ""
        raise _Wrong(f"num_gpu is {wanted.count}, and no node has more than {format_count(largest, 'GPU')}{of}")


class _Wrong(Exception):
    """What is wrong with a line."""


def _node(row: Mapping[str, str]) -> Node:
    count, model = _number(row, "gpu", MAX_GPUS), row["model"]
    if count and not model:
        raise _Wrong("model is empty, but the node has GPUs")
    gpus = tuple(Gpu(f"{row['sn']}/{index}", model) for index in range(count))
    return Node(_name(row, "sn"), _number(row, "cpu_milli"), _number(row, "memory_mib") * BYTES_PER_MIB, gpus)


def _pod(row: Mapping[str, str]) -> TracePod:
    count, milli = _number(row, "num_gpu", MAX_GPUS), _number(row, "gpu_milli", MILLI_PER_GPU)
    if bool(count) != bool(milli):
        raise _Wrong(
            f"num_gpu is {count}, but gpu_milli is {milli}: of no GPU a pod asks for 0, of each GPU for 1 to 1000"
        )
    models = frozenset(filter(None, (each.strip() for each in row.get("gpu_spec", "").split("|"))))
    gpus = (GpuRequest(count=count, milli=milli, models=models),) if count else ()
    request = Request(_number(row, "cpu_milli"), _number(row, "memory_mib") * BYTES_PER_MIB, gpus)
    return TracePod(_name(row, "name"), request, count * milli, _lifetime(row))


def _lifetime(row: Mapping[str, str]) -> float | None:
    if not row.get("creation_time") or not row.get("deletion_time"):
        return None
    created, deleted = _number(row, "creation_time"), _number(row, "deletion_time")
    if deleted < created:
        raise _Wrong(f"deletion_time {deleted} is before creation_time {created}")
    return float(deleted - created)


def _name(row: Mapping[str, str], column: str) -> str:
    if not row[column]:
        raise _Wrong(f"{column} is empty")
    return row[column]


def _number(row: Mapping[str, str], column: str, most: int = MAX_NUMBER) -> int:
    text = row[column]
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_NUMBER)) and int(text) <= most):
        raise _Wrong(f"{column} is {text!r}, and must be a whole number from 0 to {most}")
    return int(text)


def _read(
    data: bytes, file: str, needed: Sequence[str], too: Sequence[str], make: Callable[[Mapping[str, str]], RowT]
) -> tuple[RowT, ...]:
    """What the lines of a file say, each name once. Raises InvalidInput."""
    found, lines, errors = list[RowT](), dict[str, int](), list[str]()
    try:
        for line, row in _rows(data, needed, too):
            try:
                each = make(row())
                if each.name in lines:
                    raise _Wrong(f"{each.name!r} is already in line {lines[each.name]}")
            except _Wrong as error:
                errors.append(f"{file}:{line}: {error}")
                if len(errors) == MAX_ERRORS:
                    break
                continue
            lines[each.name] = line
            found.append(each)
    except _Wrong as error:
        errors.append(f"{file}: {error}")
    if not found and not errors:
        errors.append(f"{file}: it has no line below the names of its columns")
    if errors:
        raise InvalidInput(errors)
    return tuple(found)


def _rows(
    data: bytes, needed: Sequence[str], too: Sequence[str]
) -> Iterator[tuple[int, Callable[[], Mapping[str, str]]]]:
    """Each line with its number, and as what it says by column. Raises _Wrong where the file is none of these."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _Wrong("it is not UTF-8 text") from None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = [each.strip() for each in next(reader, [])]
        _check(columns, needed, too)
        for cells in reader:
            if cells:
                yield reader.line_num, lambda cells=cells: _row(columns, cells)  # type: ignore[misc]
    except csv.Error as error:
        raise _Wrong(f"line {reader.line_num} is not CSV: {error}") from None


def _row(columns: Sequence[str], cells: Sequence[str]) -> Mapping[str, str]:
    if len(cells) != len(columns):
        raise _Wrong(f"it has {format_count(len(cells), 'cell')}, and the file {format_count(len(columns), 'column')}")
    return {column: cell.strip() for column, cell in zip(columns, cells, strict=True)}


def _check(columns: Sequence[str], needed: Sequence[str], too: Sequence[str]) -> None:
    """Raises _Wrong where a column is missing, unknown, or there twice."""
    known = (*needed, *too)
    if missing := [each for each in needed if each not in columns]:
        raise _Wrong(f"line 1 has no column {', '.join(missing)}; it must have {','.join(needed)}")
    if unknown := [each for each in columns if each not in known]:
        close = closest_match(unknown[0], known)
        meant = f": did you mean {close!r}?" if close else f"; known are {','.join(known)}"
        raise _Wrong(f"line 1 has the column {unknown[0][:100]!r}, which is unknown{meant}")
    if twice := [each for each in known if columns.count(each) > 1]:
        raise _Wrong(f"line 1 has the column {twice[0]} twice")
