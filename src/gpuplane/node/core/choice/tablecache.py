"""A cache of tables: one for each link score matrix, built beforehand and never while a request waits.

A table is a function of the matrix alone, so this cache is no part of the node's state. If it has no table, a search
answers instead, and its answer is as good on most machines.
"""

from gpuplane.node.core.choice.gpusetrequest import GpuSetRequest
from gpuplane.node.core.choice.gpusets import MAX_GPUS, GpuSetTable
from gpuplane.node.core.choice.linkscores import LinkScoreMatrix
from gpuplane.node.core.choice.search import find_set_by_local_search

MAX_TABLES = 2
"""Number of cached tables, of up to 7 MB: also of the matrix before, for a GPU that disappears and comes back."""

_tables_by_matrix: dict[LinkScoreMatrix, GpuSetTable] = {}


def build_table(matrix: LinkScoreMatrix) -> None:
    """Build the table of this matrix, unless it is cached or the machine is too large. Takes up to 0.3 s."""
    if len(matrix) > MAX_GPUS:
        return
    table = _tables_by_matrix.pop(matrix, None) or GpuSetTable(matrix)
    _tables_by_matrix[matrix] = table
    while len(_tables_by_matrix) > MAX_TABLES:
        del _tables_by_matrix[next(iter(_tables_by_matrix))]


def cached_table(matrix: LinkScoreMatrix) -> GpuSetTable | None:
    """The table, if it has been built."""
    return _tables_by_matrix.get(matrix)


def choose_gpu_set(matrix: LinkScoreMatrix, request: GpuSetRequest) -> tuple[int, ...]:
    """The best set, by the table; without a table a good set, by a search. Ascending; () if no set is possible."""
    table = _tables_by_matrix.get(matrix)
    return find_set_by_local_search(matrix, request) if table is None else table.best_set(request)
