"""The Open Inference Protocol's tensors: from a request to points, and from an answer to outputs.

A model of a matrix takes one input, ``points``. A model of a table takes an input for each column, or ``points`` if all
columns are numbers. Calls are in :mod:`homophily_service.api.inference`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import model_pb2, points_pb2
from homophily_client.labels import class_array
from homophily_client.tensors import from_tensor, to_tensor
from homophily_service.contract import open_inference_pb2 as pb
from homophily_service.contract.arrays import LONGEST
from homophily_service.contract.errors import InvalidRequest, LimitExceeded
from homophily_service.contract.tables import NUMBERS, STARTS

#: The input that holds all columns.
MATRIX = "points"
LABEL, SCORE, PROBABILITIES = "label", "score", "probabilities"
#: A model never changes, so it has one version.
VERSION = "1"
TEXT = "BYTES"
#: By the protocol's name of a type of numbers: its elements when they are raw, and the field that holds them otherwise.
TYPES: Mapping[str, tuple[np.dtype[Any], str]] = {
    "BOOL": (np.dtype("?"), "bool_contents"),
    "INT8": (np.dtype("i1"), "int_contents"),
    "INT16": (np.dtype("<i2"), "int_contents"),
    "INT32": (np.dtype("<i4"), "int_contents"),
    "INT64": (np.dtype("<i8"), "int64_contents"),
    "UINT8": (np.dtype("u1"), "uint_contents"),
    "UINT16": (np.dtype("<u2"), "uint_contents"),
    "UINT32": (np.dtype("<u4"), "uint_contents"),
    "UINT64": (np.dtype("<u8"), "uint64_contents"),
    "FP32": (np.dtype("<f4"), "fp32_contents"),
    "FP64": (np.dtype("<f8"), "fp64_contents"),
}
#: What each type becomes, except that these are exact in 32 bits.
EXACT_IN_FLOAT32 = ("BOOL", "INT8", "INT16", "UINT8", "UINT16", "FP32")
LARGEST_EXACT = 1 << 53
#: Strings are taken apart one by one, by the process that answers everybody.
MOST_STRINGS = 200_000
#: Parameters that ask for what this service does not do. Others are hints, and ignored.
REFUSED = (
    *("sequence_id", "sequence_start", "sequence_end", "classification"),
    *("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"),
)

Metadata = pb.ModelMetadataResponse.TensorMetadata
Inputs = dict[str, tuple[int, pb.ModelInferRequest.InferInputTensor]]


def metadata(name: str, model: model_pb2.Model) -> pb.ModelMetadataResponse:
    """What a model takes, and what it answers."""
    inputs = [Metadata(name=column.name, datatype=_type(column), shape=_shape(column)) for column in _columns(model)]
    if not inputs:
        inputs = [Metadata(name=MATRIX, datatype="FP64", shape=[-1, model.dimension_count])]
    count = len(class_array(model.classes))
    label = "INT64" if model.classes.WhichOneof("kind") == "integers" else TEXT
    outputs = [
        Metadata(name=LABEL, datatype=label, shape=[-1]),
        Metadata(name=SCORE, datatype="FP64", shape=[-1, 1 if count == 2 else count]),
    ]
    if model.calibrated:
        outputs.append(Metadata(name=PROBABILITIES, datatype="FP64", shape=[-1, count]))
    return pb.ModelMetadataResponse(name=name, versions=[VERSION], platform="homophily", inputs=inputs, outputs=outputs)


def wanted_outputs(request: pb.ModelInferRequest, model: model_pb2.Model) -> list[str]:
    """The outputs that a request asks for; all if it names none. Parameters that ask for more are refused."""
    _check_parameters(request.parameters, "parameters")
    for place, output in enumerate(request.outputs):
        _check_parameters(output.parameters, f"outputs[{place}].parameters")
    names = [LABEL, SCORE, PROBABILITIES]
    wanted = [output.name for output in request.outputs]
    for place, name in enumerate(wanted):
        if name not in names or name in wanted[:place]:
            raise InvalidRequest(
                f"outputs[{place}].name", f"must be one of {', '.join(names)}, once; got {name[:80]!r}"
            )
    return wanted or names[: 3 if model.calibrated else 2]


def points_of(request: pb.ModelInferRequest, model: model_pb2.Model) -> points_pb2.Points:
    """The points in a request's inputs."""
    if request.raw_input_contents and len(request.raw_input_contents) != len(request.inputs):
        count = len(request.raw_input_contents)
        raise InvalidRequest(
            "raw_input_contents", f"must have an entry for each of {len(request.inputs)} inputs; got {count}"
        )
    inputs: Inputs = {}
    for place, given in enumerate(request.inputs):
        _check_parameters(given.parameters, f"inputs[{place}].parameters")
        if given.name in inputs:
            raise InvalidRequest(f"inputs[{place}].name", f"must be unique; {given.name[:80]!r} is there twice")
        inputs[given.name] = place, given
    columns = {column.name: column for column in _columns(model)}
    if not inputs:
        raise InvalidRequest("inputs", f"must hold {'the columns' if columns else MATRIX}; got none")
    if set(inputs) == {MATRIX} and MATRIX not in columns:
        return points_pb2.Points(dense=to_tensor(_numbers(request, *inputs[MATRIX], width=None)))
    ignored = {*model.schema.unused_columns, *(column.name for column in model.schema.columns)} - columns.keys()
    for name, (place, _) in inputs.items():
        if name not in columns and name not in ignored:
            known = [*list(columns)[:10], "…" if len(columns) > 10 else MATRIX]
            raise InvalidRequest(f"inputs[{place}].name", f"must be one of {', '.join(known)}; got {name[:80]!r}")
    missing = [name for name in columns if name not in inputs]
    if missing:
        raise InvalidRequest("inputs", f"must have all columns of the model; {missing[0]!r} is missing")
    return _rows(request, inputs, list(columns.values()))


def response(
    request: pb.ModelInferRequest, answer: model_pb2.PredictResponse, wanted: Sequence[str]
) -> pb.ModelInferResponse:
    """The outputs; raw ones if the request's inputs were."""
    found = pb.ModelInferResponse(model_name=request.model_name, model_version=VERSION, id=request.id)
    if answer.warnings:
        found.parameters["warnings"].string_param = "\n".join(answer.warnings)
    is_raw = bool(request.raw_input_contents)
    for name in wanted:
        if name == LABEL:
            values = class_array(answer.classes)[np.array(answer.class_indices, dtype=np.intp)]
        else:
            values = from_tensor(answer.scores if name == SCORE else answer.probabilities)
        output = found.outputs.add(name=name, shape=values.shape)
        if values.dtype.kind == "U":
            output.datatype, encoded = TEXT, [text.encode() for text in values.tolist()]
            if is_raw:
                found.raw_output_contents.append(b"".join(len(one).to_bytes(4, "little") + one for one in encoded))
            else:
                output.contents.bytes_contents.extend(encoded)
            continue
        output.datatype = "INT64" if values.dtype.kind == "i" else "FP64"
        if is_raw:
            found.raw_output_contents.append(values.tobytes())
        else:
            getattr(output.contents, TYPES[output.datatype][1]).extend(values.ravel().tolist())
    return found


def _columns(model: model_pb2.Model) -> list[points_pb2.Column]:
    """The columns of a model's table, without the ids."""
    return [column for column in model.schema.columns if column.kind != points_pb2.COLUMN_KIND_ID]


def _type(column: points_pb2.Column) -> str:
    return "FP64" if column.kind in NUMBERS else TEXT


def _shape(column: points_pb2.Column) -> list[int]:
    return [-1, column.width] if column.kind == points_pb2.COLUMN_KIND_VECTOR else [-1]


def _check_parameters(parameters: Iterable[str], field: str) -> None:
    for name in REFUSED:
        if name in parameters:
            raise InvalidRequest(f"{field}[{name}]", "is not supported: leave it out")


def _rows(request: pb.ModelInferRequest, inputs: Inputs, columns: Sequence[points_pb2.Column]) -> points_pb2.Points:
    """The rows of a table, from a tensor for each column."""
    numbers: list[NDArray[Any]] = []
    strings: list[points_pb2.StringColumn] = []
    rows, left = None, MOST_STRINGS
    for column in columns:
        place, given = inputs[column.name]
        if rows is None:
            rows = next(iter(given.shape), 0)
        if next(iter(given.shape), 0) != rows:
            raise InvalidRequest(
                f"inputs[{place}].shape", f"must begin with {rows}, as the inputs before; got {list(given.shape)[:4]}"
            )
        if column.kind in NUMBERS:
            width = max(1, column.width)
            numbers.append(_numbers(request, place, given, width))
        else:
            strings.append(_strings(request, place, given, left))
            left -= rows
    dense = _joined(numbers) if numbers else np.empty((rows or 0, 0), dtype=np.float64)
    # Numbers come first in the points, so in the schema too.
    order = sorted(columns, key=lambda column: column.kind not in NUMBERS)
    schema = points_pb2.TableSchema(columns=order)
    return points_pb2.Points(dense=to_tensor(dense), schema=schema, strings=strings)


def _joined(numbers: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns side by side, in 32 bits if all are."""
    return np.concatenate(numbers, axis=1) if len(numbers) > 1 else numbers[0]


def _numbers(
    request: pb.ModelInferRequest, place: int, given: pb.ModelInferRequest.InferInputTensor, width: int | None
) -> NDArray[Any]:
    """Numbers as floats with a column for each number of a row; ``width`` None for a matrix."""
    field = f"inputs[{place}]"
    if given.datatype not in TYPES:
        raise InvalidRequest(f"{field}.datatype", f"must be one of {', '.join(TYPES)}; got {given.datatype[:80]!r}")
    dtype, contents = TYPES[given.datatype]
    shape = _checked_shape(given, field, width)
    count = math.prod(shape)
    if request.raw_input_contents:
        raw = request.raw_input_contents[place]
        if len(raw) != count * dtype.itemsize:
            raise InvalidRequest(
                f"raw_input_contents[{place}]",
                f"must be {count * dtype.itemsize} bytes for shape {list(shape)} of {given.datatype}; got {len(raw)}",
            )
        values = np.frombuffer(raw, dtype=dtype)
    else:
        typed = getattr(given.contents, contents)
        if len(typed) != count:
            raise InvalidRequest(f"{field}.contents.{contents}", f"must have {count} elements; got {len(typed)}")
        wide = np.array(typed)
        values = wide.astype(dtype)
        if dtype.kind in "iu" and np.any(values != wide):
            raise InvalidRequest(f"{field}.contents.{contents}", f"must fit {given.datatype}")
    if (
        dtype.itemsize == 8
        and dtype.kind in "iu"
        and values.size
        and np.any((values > LARGEST_EXACT) | (values < -LARGEST_EXACT))
    ):
        raise InvalidRequest(field, "must be at most 2^53 in size, to be exact as FP64")
    return values.astype(np.float32 if given.datatype in EXACT_IN_FLOAT32 else np.float64, copy=False).reshape(shape)


def _strings(
    request: pb.ModelInferRequest, place: int, given: pb.ModelInferRequest.InferInputTensor, most: int
) -> points_pb2.StringColumn:
    """A column of strings."""
    field = f"inputs[{place}]"
    if given.datatype != TEXT:
        raise InvalidRequest(
            f"{field}.datatype", f"must be {TEXT}, as {given.name!r} holds strings; got {given.datatype[:80]!r}"
        )
    count = _checked_shape(given, field, 1)[0]
    if count > most:
        raise LimitExceeded(f"{field}: more than {MOST_STRINGS:,} strings in one request; send fewer rows at a time")
    if request.raw_input_contents:
        values = _split(request.raw_input_contents[place], count, f"raw_input_contents[{place}]")
    else:
        values = list(given.contents.bytes_contents)
        if len(values) != count:
            raise InvalidRequest(f"{field}.contents.bytes_contents", f"must have {count} elements; got {len(values)}")
    starts = np.zeros(count + 1, dtype=STARTS)
    np.cumsum(np.fromiter(map(len, values), dtype=STARTS, count=count), out=starts[1:])
    return points_pb2.StringColumn(row_starts=to_tensor(starts), data=b"".join(values))


def _split(raw: bytes, count: int, field: str) -> list[bytes]:
    """Strings, each with four bytes before it that say how long it is."""
    values, start = [], 0
    for _ in range(count):
        stop = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        values.append(raw[start + 4 : stop])
        start = stop
    if start != len(raw) or len(raw) < 4 * count:
        raise InvalidRequest(field, f"must be {count} strings, each with its length in four bytes before it")
    return values


def _checked_shape(given: pb.ModelInferRequest.InferInputTensor, field: str, width: int | None) -> tuple[int, int]:
    """The shape as rows and columns: one number per row may come without its axis."""
    shape = tuple(given.shape)
    if any(not 0 <= length < LONGEST for length in shape):
        raise InvalidRequest(f"{field}.shape", f"must be lengths from 0 to 2^48; got {list(shape)[:4]}")
    if width is None and len(shape) != 2:
        raise InvalidRequest(f"{field}.shape", f"must be [points, features]; got {list(shape)[:4]}")
    if width is None or shape == (shape[0] if shape else 0, width):
        return shape[0], shape[1]
    if width == 1 and len(shape) == 1:
        return shape[0], 1
    raise InvalidRequest(
        f"{field}.shape", f"must be [points{'' if width == 1 else f', {width}'}]; got {list(shape)[:4]}"
    )
