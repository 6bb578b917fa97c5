"""Tables on their way to points: schemas, columns of strings, and how large the points will be.

Light to import: the recipe that turns rows into points is the core's (:mod:`homophily_service.storage.recipes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import job_pb2
from homophily_client._pb import points_pb2 as pb
from homophily_client.tables import TableOptions
from homophily_client.words import word
from homophily_service.contract.errors import InvalidRequest, LimitExceeded

NUMBERS = (pb.COLUMN_KIND_NUMBER, pb.COLUMN_KIND_VECTOR)
STRINGS = (pb.COLUMN_KIND_CATEGORY, pb.COLUMN_KIND_TEXT, pb.COLUMN_KIND_ID, pb.COLUMN_KIND_LABEL)
#: Columns that are no features.
NOT_FEATURES = (pb.COLUMN_KIND_ID, pb.COLUMN_KIND_LABEL)
# As stored names are part of every model's description.
LONGEST_NAME, MOST_NAME_BYTES = 256, 256 << 10
MOST_STRING_COLUMNS = 1000
# The words of a text are counted within a turn of a predictor, which other projects wait for.
MOST_TEXTS, LONGEST_STRING = 10, 64 << 10
# The most one-hot columns of a category, as in the core's Preprocessing.
MOST_CATEGORIES = 100
# Bytes of a text per term that counts, at least: a letter and a space would be two.
BYTES_PER_TERM = 4
# Ids are sent with every answer, and read in pieces of this many bytes per row.
LONGEST_ID = 256
STARTS = np.dtype("<i8")
DATA = np.dtype("u1")


class Strings(NamedTuple):
    """A column of strings: where each row starts, and the bytes of all."""

    row_starts: NDArray[np.int64]
    data: NDArray[np.uint8]

    def decode(self) -> NDArray[Any]:
        """The strings as objects."""
        data, starts = self.data.tobytes(), self.row_starts.tolist()
        rows = (data[start:stop].decode() for start, stop in pairwise(starts))
        return np.array(list(rows), dtype=object)


@dataclass(frozen=True)
class Rows:
    """Rows of a table."""

    schema: pb.TableSchema
    numbers: NDArray[Any]
    strings: tuple[Strings, ...]

    def __getitem__(self, rows: slice) -> Rows:
        """Some of the rows."""
        strings = []
        for starts, data in self.strings:
            places = starts[rows.start : rows.stop + 1]
            strings.append(Strings(places - places[0], data[places[0] : places[-1]]))
        return Rows(self.schema, self.numbers[rows], tuple(strings))

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows, and of columns of numbers."""
        return self.numbers.shape[0], self.numbers.shape[1]


class Size(NamedTuple):
    """How large points are; those of a table at most."""

    rows: int
    columns: int
    #: Stored numbers.
    elements: int
    is_sparse: bool


def size_of(shape: pb.PointsShape) -> Size:
    """How large points of a shape are."""
    if shape.WhichOneof("layout") == "csr":
        return Size(shape.csr.rows, shape.csr.columns, 2 * shape.csr.values, True)
    rows, columns = shape.dense.rows, shape.dense.columns
    kinds = [column.kind for column in shape.schema.columns]
    columns += kinds.count(pb.COLUMN_KIND_CATEGORY) * min(rows, MOST_CATEGORIES)
    text = sum(
        size
        for kind, size in zip(string_kinds(shape.schema), shape.string_bytes, strict=False)
        if kind == pb.COLUMN_KIND_TEXT
    )
    return Size(rows, columns, rows * columns + 2 * text // BYTES_PER_TERM, pb.COLUMN_KIND_TEXT in kinds)


def table_options(message: job_pb2.TableColumns) -> TableOptions:
    """Which columns are what, as the client's reader of tables takes it."""
    for enum, value, name in ((pb.Scale, message.scale, "scale"), (pb.MissingValues, message.missing, "missing")):
        if value not in enum.values():
            raise InvalidRequest(f"table.{name}", f"{value} is not known")
    return TableOptions(
        label_column=message.label_column or None,
        id_column=message.id_column or None,
        columns=tuple(message.columns) or None,
        drop=tuple(message.drop),
        categories=tuple(message.categories),
        text=tuple(message.text),
        scale=word(pb.Scale.DESCRIPTOR, message.scale or pb.SCALE_AUTO),
        missing=word(pb.MissingValues.DESCRIPTOR, message.missing or pb.MISSING_VALUES_MEDIAN),
    )


def number_width(column: pb.Column) -> int:
    """How many columns of numbers a column takes."""
    return {pb.COLUMN_KIND_NUMBER: 1, pb.COLUMN_KIND_VECTOR: column.width}.get(column.kind, 0)


def check_schema(schema: pb.TableSchema, n_numbers: int, n_strings: int, field: str) -> None:
    """Refuse a schema that is wrong in itself, or does not have these numbers of columns."""
    names = [column.name for column in schema.columns]
    if not names:
        raise InvalidRequest(f"{field}.columns", "must name the columns; got none")
    if sum(map(len, (*names, *schema.unused_columns))) > MOST_NAME_BYTES:
        raise LimitExceeded(f"{field}.columns: the names have more than {MOST_NAME_BYTES} letters; use a vector column")
    strings = string_kinds(schema)
    for found, most, kind in (
        (len(strings), MOST_STRING_COLUMNS, "strings"),
        (strings.count(pb.COLUMN_KIND_TEXT), MOST_TEXTS, "text"),
    ):
        if found > most:
            raise LimitExceeded(f"{field}.columns: {found} columns of {kind}, the limit is {most}")
    first: dict[str, int] = {}
    for place, column in enumerate(schema.columns):
        here = f"{field}.columns[{place}]"
        if not column.name or len(column.name) > LONGEST_NAME:
            raise InvalidRequest(f"{here}.name", f"must have 1 to {LONGEST_NAME} letters; got {len(column.name)}")
        if first.setdefault(column.name, place) != place:
            raise InvalidRequest(f"{here}.name", f"must be unique; {column.name!r} is column {first[column.name]} too")
        if column.kind not in (*NUMBERS, *STRINGS):
            raise InvalidRequest(
                f"{here}.kind", f"must be number, vector, category, text, id or label; got {column.kind}"
            )
        if column.kind == pb.COLUMN_KIND_VECTOR and column.width < 1:
            raise InvalidRequest(f"{here}.width", f"must be at least 1 for a vector; got {column.width}")
    kinds = [column.kind for column in schema.columns]
    if kinds.count(pb.COLUMN_KIND_ID) > 1:
        raise InvalidRequest(f"{field}.columns", "must have at most one id column")
    if all(kind == pb.COLUMN_KIND_ID for kind in kinds):
        raise InvalidRequest(f"{field}.columns", "must have a column that is a feature or a label; got the id only")
    for enum, value, name in ((pb.Scale, schema.scale, "scale"), (pb.MissingValues, schema.missing, "missing")):
        if value not in enum.values():
            raise InvalidRequest(f"{field}.{name}", f"{value} is not known")
    expected = sum(map(number_width, schema.columns))
    if expected != n_numbers:
        raise InvalidRequest(
            f"{field}.columns", f"must have as many numbers as the points, {n_numbers}; got {expected}"
        )
    expected = sum(kind in STRINGS for kind in kinds)
    if expected != n_strings:
        raise InvalidRequest(
            f"{field}.columns", f"must have as many columns of strings as the points, {n_strings}; got {expected}"
        )


def check_features(shape: pb.PointsShape, field: str) -> None:
    """Refuse points of a table that has no feature."""
    if shape.HasField("schema") and all(column.kind in NOT_FEATURES for column in shape.schema.columns):
        raise InvalidRequest(field, "must have a column that is a feature; the dataset has ids or labels only")


def features_of(schema: pb.TableSchema) -> pb.TableSchema:
    """The schema without columns of labels, which no new row needs: they count as unused."""
    labels = [column.name for column in schema.columns if column.kind == pb.COLUMN_KIND_LABEL]
    left = pb.TableSchema()
    left.CopyFrom(schema)
    del left.columns[:]
    left.columns.extend(column for column in schema.columns if column.kind != pb.COLUMN_KIND_LABEL)
    left.unused_columns.extend(labels)
    return left


def check_no_infinity(values: NDArray[Any], field: str, offset: int = 0) -> None:
    """Refuse infinity; NaN is a missing value in a table."""
    wrong = np.flatnonzero(np.isinf(values))
    if wrong.size:
        value = values.reshape(-1)[wrong[0]]
        raise InvalidRequest(field, f"must be finite or NaN (missing); element {offset + int(wrong[0])} is {value}")


def string_kinds(schema: pb.TableSchema) -> list[pb.ColumnKind.ValueType]:
    """What each column of strings holds."""
    return [column.kind for column in schema.columns if column.kind in STRINGS]


def check_strings(strings: Strings, rows: int, kind: pb.ColumnKind.ValueType, field: str) -> None:
    """Refuse a column of strings whose parts do not fit together."""
    starts, data = strings
    if len(starts) != rows + 1:
        raise InvalidRequest(
            f"{field}.row_starts", f"must be one more than there are rows, {rows + 1}; got {len(starts)}"
        )
    if starts[0] != 0 or starts[-1] != len(data) or np.any(starts[1:] < starts[:-1]):
        raise InvalidRequest(f"{field}.row_starts", f"must rise from 0 to the number of bytes, {len(data)}")
    longest = LONGEST_ID if kind in NOT_FEATURES else LONGEST_STRING
    lengths = np.diff(starts)
    if lengths.max(initial=0) > longest:
        raise InvalidRequest(
            f"{field}.data", f"must have at most {longest} bytes in a row; row {lengths.argmax()} has more"
        )
    try:
        data.tobytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{field}.data", f"must be UTF-8; it is not at byte {error.start}") from None
    # A row must not begin inside a letter.
    inside = np.flatnonzero((data[starts[:-1][starts[:-1] < len(data)]] & 0xC0) == 0x80)
    if inside.size:
        raise InvalidRequest(f"{field}.row_starts", f"must be where letters begin; row {int(inside[0])} is not")
