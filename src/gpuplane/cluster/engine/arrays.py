"""The types of arrays in this room."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Scalar = TypeVar("Scalar", bound=np.generic)


def with_rows(array: npt.NDArray[Scalar], rows: int) -> npt.NDArray[Scalar]:
    """The same array with so many rows: new ones are 0."""
    if len(array) >= rows:
        return array[:rows]
    return np.pad(array, [(0, rows - len(array))] + [(0, 0)] * (array.ndim - 1))
