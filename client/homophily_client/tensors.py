"""Arrays as the protos' tensors, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import points_pb2 as pb

DTYPES: dict[int, np.dtype[Any]] = {
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_FLOAT64: np.dtype("<f8"),
    pb.DATA_TYPE_INT32: np.dtype("<i4"),
    pb.DATA_TYPE_INT64: np.dtype("<i8"),
}
DATA_TYPES: dict[np.dtype[Any], pb.DataType.ValueType] = {
    dtype: pb.DataType.ValueType(value) for value, dtype in DTYPES.items()
}


def to_tensor(array: NDArray[Any]) -> pb.Tensor:
    """Return a message with the array's elements."""
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return pb.Tensor(data_type=DATA_TYPES[little.dtype], shape=little.shape, data=little.tobytes())


def from_tensor(tensor: pb.Tensor) -> NDArray[Any]:
    """Return an array that a server sent."""
    return np.frombuffer(tensor.data, dtype=DTYPES[tensor.data_type]).reshape(tuple(tensor.shape))
