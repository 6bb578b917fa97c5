"""Tables as users have them, pandas, polars, Arrow or a mapping: which column is what, and what is sent."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import job_pb2
from homophily_client._pb import points_pb2 as pb
from homophily_client.columns import (
    TableError,
    TableWarning,
    Values,
    entries_of,
    has_integers,
    present,
    texts_of,
    values_of,
)
from homophily_client.labels import is_missing
from homophily_client.results import Dataset
from homophily_client.words import number

#: In shorter tables, columns of different integers may well be measurements.
LEAST_IDS = 20
_ID_NAME = re.compile(r"(^|.*[_\W])(id|ids|uuid|index|key|nr|no)|unnamed: 0|", re.IGNORECASE)
#: 1.234,56 and 1,234 and $12 and 37 %, but neither 1234 nor 12.5.
_FORMATTED = re.compile(
    r"[€$£]\s*[-+]?[\d.,' ]+|[-+]?[\d.,']+\s*[€$£%]|[-+]?\d{1,3}([.,' ]\d{3})+([.,]\d+)?|[-+]?\d+,\d+"
)
#: A column has one of these purposes, and is no feature then.
_EXCLUSIVE = ("label_column", "id_column", "weight_column", "drop")
#: A column of strings of which this share are numbers was meant as numbers.
MOSTLY = 0.8


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which columns of a table are what, and how its rows become points.

    Parameters
    ----------
    label_column : str, optional
        The column of labels; it is no feature.
    id_column : str, optional
        The column that names the rows. If not given, the first column of strings or integers that are all different.
    weight_column : str, optional
        The column with the confidence in each label; it is no feature.
    columns : sequence of str, optional
        The features; all other columns if not given.
    drop : sequence of str, optional
        Columns that are no features.
    categories : sequence of str, optional
        Columns of numbers that are categories, such as zip codes.
    text : sequence of str, optional
        Columns of strings whose words are compared (TF-IDF) instead of being categories.
    scale : {"auto", "none", "standard"}, default="auto"
        Whether numbers are standardised; "auto" does so if the scales of the columns differ.
    missing : {"median", "mean", "refuse"}, default="median"
        What missing numbers are replaced by.
    """

    label_column: str | None = None
    id_column: str | None = None
    weight_column: str | None = None
    columns: Sequence[str] | None = None
    drop: Sequence[str] = ()
    categories: Sequence[str] = ()
    text: Sequence[str] = ()
    scale: str = "auto"
    missing: str = "median"

    @classmethod
    def of(cls, options: Any) -> TableOptions:
        """Options from options or a dictionary of the same names."""
        if options is None:
            return cls()
        if isinstance(options, cls):
            return options
        if not isinstance(options, Mapping):
            raise TypeError(f"table must be options or a dictionary. Got {type(options).__name__} instead.")
        known = [field.name for field in fields(cls)]
        unknown = [name for name in options if name not in known]
        if unknown:
            raise ValueError(f"table has no option {unknown[0]!r}. Known options: {', '.join(known)}.")
        return cls(**{name: value for name, value in options.items() if value is not None})

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The columns that are named, by option."""
        return {
            "label_column": () if self.label_column is None else (self.label_column,),
            "id_column": () if self.id_column is None else (self.id_column,),
            "weight_column": () if self.weight_column is None else (self.weight_column,),
            "columns": tuple(self.columns or ()),
            "drop": tuple(self.drop),
            "categories": tuple(self.categories),
            "text": tuple(self.text),
        }


@dataclass(frozen=True)
class Table:
    """A table that is ready to be sent: features and ids by name, and what was kept out of them."""

    columns: dict[str, Values]
    kinds: dict[str, pb.ColumnKind.ValueType]
    options: TableOptions = TableOptions()
    #: Entries of the label column, as they were.
    labels: list[Any] | None = None
    weights: NDArray[np.float64] | None = None
    #: Of columns that are no features.
    unused: tuple[str, ...] = ()
    #: What people should know about the choice of columns.
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    @property
    def id_column(self) -> str | None:
        """The column that names the rows, if there is one."""
        return next((name for name, kind in self.kinds.items() if kind == pb.COLUMN_KIND_ID), None)

    @property
    def ids(self) -> list[str] | None:
        """The ids of the rows, if there is such a column."""
        return None if self.id_column is None else list(self.columns[self.id_column])

    def numbers(self) -> NDArray[Any]:
        """All numbers, one block."""
        blocks = [values.reshape(len(values), -1) for values in self.columns.values() if values.dtype != object]
        if not blocks:
            return np.empty((self.rows, 0))
        is_small = all(block.dtype == np.float32 for block in blocks)
        return np.hstack(blocks).astype(np.float32 if is_small else np.float64, copy=False)

    def strings(self) -> list[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """The columns of strings: where each row starts, and the bytes of all."""
        found = []
        for values in self.columns.values():
            if values.dtype == object:
                encoded = [value.encode() for value in values]
                starts = np.concatenate([[0], np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))])
                found.append((starts.astype("<i8"), np.frombuffer(b"".join(encoded), dtype=np.uint8)))
        return found

    def schema(self) -> pb.TableSchema:
        """The columns, as they are sent."""
        columns = [
            pb.Column(
                name=name,
                kind=kind,
                width=self.columns[name].shape[1] if kind == pb.COLUMN_KIND_VECTOR else 0,
            )
            for name, kind in self.kinds.items()
        ]
        scale = number(pb.Scale.DESCRIPTOR, self.options.scale, "scale")
        missing = number(pb.MissingValues.DESCRIPTOR, self.options.missing, "missing")
        return pb.TableSchema(
            columns=columns,
            scale=pb.Scale.ValueType(scale),
            missing=pb.MissingValues.ValueType(missing),
            unused_columns=self.unused,
        )


def columns_message(options: TableOptions) -> job_pb2.TableColumns:
    """The options as a worker takes them; words that are defaults are left out."""
    default = TableOptions()
    message = job_pb2.TableColumns(
        id_column=options.id_column or "",
        columns=options.named["columns"],
        drop=[name for role in ("drop", "weight_column") for name in options.named[role]],
        categories=options.named["categories"],
        text=options.named["text"],
        label_column=options.label_column or "",
    )
    if options.scale != default.scale:
        message.scale = pb.Scale.ValueType(number(pb.Scale.DESCRIPTOR, options.scale, "scale"))
    if options.missing != default.missing:
        message.missing = pb.MissingValues.ValueType(number(pb.MissingValues.DESCRIPTOR, options.missing, "missing"))
    return message


def is_table(X: Any) -> bool:
    """Whether something has named columns: a frame, an Arrow table or a mapping, but no array."""
    names = column_names(X)
    return names is not None and len(names) > 0 and all(isinstance(name, str) for name in names)


def column_names(X: Any) -> list[Any] | None:
    """The columns' names; None for what has none."""
    if isinstance(X, Mapping):
        return list(X)
    if hasattr(X, "column_names"):
        return list(X.column_names)
    if hasattr(X, "columns") and hasattr(X, "dtypes"):
        return list(X.columns)
    return None


def read_table(X: Any, options: TableOptions, *, keep_labels: bool = False) -> Table:
    """A table with its features and ids told apart; what is not said by the options is concluded, and noted.

    With ``keep_labels`` the labels are among the columns, to be stored with them; there need be no features then.

    >>> table = read_table({"id": ["a", "b"], "x": [1, 2], "y": ["u", ""]}, TableOptions(label_column="y"))
    >>> table.ids, table.labels, list(table.columns)
    (['a', 'b'], ['u', ''], ['id', 'x'])
    """
    columns = _checked_names(X, options)
    kept_out = {name for role in ("label_column", "weight_column", "drop") for name in options.named[role]}
    chosen = options.named["columns"] or [name for name in columns if name not in kept_out]
    wanted = [name for name in columns if name in chosen or name == options.id_column]
    values = {
        name: texts_of(columns[name]) if name in options.categories else values_of(name, columns[name])
        for name in wanted
    }
    for name in wanted:
        if name not in (options.id_column, *options.categories, *options.text):
            _refuse_unclear(name, values[name], is_feature=name in options.named["columns"])
    id_column, left_out, notes = _ids(values, columns, options)
    table: dict[str, Values] = {}
    kinds: dict[str, pb.ColumnKind.ValueType] = {}
    for name in wanted:
        if name == id_column:
            table[name], kinds[name] = texts_of(columns[name]), pb.COLUMN_KIND_ID
        elif name not in left_out:
            table[name], kinds[name] = values[name], _kind(name, values[name], options)
    label = options.label_column
    labels = None if label is None else [present(entry) for entry in entries_of(columns[label])]
    if keep_labels and label is not None and labels is not None:
        table[label], kinds[label] = label_texts(columns[label]), pb.COLUMN_KIND_LABEL
    if all(kind == pb.COLUMN_KIND_ID for kind in kinds.values()):
        raise TableError("The table has no column left that is a feature: name some with `columns`.")
    unused = tuple(n for n in columns if n not in table)
    return Table(table, kinds, options, labels, _weights(columns, options), unused, notes)


def like_dataset(X: Any, dataset: Dataset) -> Any:
    """X itself, or a table with a dataset's columns in their order; without labels if it has no such column."""
    if isinstance(X, Table) or not is_table(X):
        return X
    if dataset.schema is None:
        raise TableError(f"{dataset.name} has no named columns: append an array to it.")
    kinds = {column.name: column.kind for column in dataset.schema.columns}
    named = {kind: [name for name, one in kinds.items() if one == kind] for kind in ("id", "label", "category", "text")}
    given = column_names(X) or []
    missing = [name for name, kind in kinds.items() if name not in given and kind != "label"]
    if missing:
        raise TableError(f"The table lacks the column {missing[0]!r} of {dataset.name}.")
    rows = len(X[given[0]]) if given else 0
    columns = {name: X[name] if name in given else [""] * rows for name in kinds}
    options = TableOptions(
        id_column=next(iter(named["id"]), None),
        label_column=next(iter(named["label"]), None),
        columns=[name for name, kind in kinds.items() if kind not in ("id", "label")],
        categories=named["category"],
        text=named["text"],
        scale=dataset.schema.scale,
        missing=dataset.schema.missing,
    )
    return read_table(columns, options, keep_labels=True)


def label_texts(column: Any) -> Values:
    """A column of labels as strings; "" for those that mean unlabelled."""
    entries = map(present, entries_of(column))
    return np.array(["" if is_missing(entry) else str(_whole(entry)) for entry in entries], dtype=object)


def as_points(X: Any, options: TableOptions | dict[str, Any] | None = None, *, keep_labels: bool = False) -> Any:
    """X itself, or as a table if it has named columns; with ``keep_labels``, with its labels among the columns."""
    if isinstance(X, Table):
        return X
    if is_table(X):
        table = read_table(X, TableOptions.of(options), keep_labels=keep_labels)
        _warn_of_columns(X, table)
        return table
    if options is not None:
        raise ValueError(f"table must come with named columns. Got {type(X).__name__} instead.")
    return X


def _warn_of_columns(X: Any, table: Table) -> None:
    """Warn of columns that are no features although nobody said so, unless one is plainly an id."""
    found = table.id_column
    chosen = found is not None and table.options.id_column is None
    is_plain = chosen and (_ID_NAME.fullmatch(str(found)) is not None or not has_integers(X[found]))
    for note in table.notes[is_plain:]:
        warnings.warn(note, TableWarning, stacklevel=4)


def new_rows(X: Any) -> Any:
    """What a model is asked about: of a table all columns, as the service matches them by name; else X itself."""
    if isinstance(X, Table) or not is_table(X):
        return X
    columns = _checked_names(X, TableOptions())
    values = {name: values_of(name, column) for name, column in columns.items()}
    return Table(values, {name: _kind(name, one, TableOptions()) for name, one in values.items()})


def _checked_names(X: Any, options: TableOptions) -> dict[str, Any]:
    names = column_names(X) or []
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TableError(f"The table has several columns {twice!r}: give each a name of its own.")
    for option, named in options.named.items():
        for name in named:
            if name not in names:
                known = ", ".join(map(repr, names[:20]))
                raise TableError(f"{option}: the table has no column {name!r}, only {known}.")
    roles = [name for role in _EXCLUSIVE for name in options.named[role]]
    for name in names:
        if roles.count(name) > 1 or (name in roles and name in options.named["columns"]):
            raise TableError(f"Column {name!r} is named for two purposes: choose one.")
    return {name: X[name] for name in names}


def _ids(
    values: Mapping[str, Values], columns: Mapping[str, Any], options: TableOptions
) -> tuple[str | None, set[str], tuple[str, ...]]:
    """The id column, columns like it that are left out, and what to say about both."""
    stay = {*options.named["columns"], *options.named["categories"], *options.named["text"]}
    others = [name for name in values if name not in stay and name != options.id_column]
    like = [name for name in others if _is_like_an_id(name, values[name], columns[name])]
    found, notes = options.id_column, []
    if found is None and like:
        found = like.pop(0)
        notes.append(f"Column {found!r} is taken as the id, as all its values differ; `columns` makes it a feature.")
    if like:
        listed = ", ".join(map(repr, like))
        notes.append(f"Left out, as all values differ: {listed}; `columns` makes them features.")
    return found, set(like), tuple(notes)


def _is_like_an_id(name: str, one: Values, column: Any) -> bool:
    if one.ndim != 1 or len(one) < 2:
        return False
    is_short = len(one) < LEAST_IDS and not _ID_NAME.fullmatch(name)
    if one.dtype != object and (is_short or not has_integers(column)):
        return False
    # Not the floats, in which long integers may be alike.
    entries = one.tolist() if one.dtype == object else entries_of(column)
    return len(set(entries)) == len(entries)


def _kind(name: str, values: Values, options: TableOptions) -> pb.ColumnKind.ValueType:
    if values.dtype != object:
        if name in options.text:
            raise TableError(f"text: column {name!r} holds numbers, no words.")
        return pb.COLUMN_KIND_NUMBER if values.ndim == 1 else pb.COLUMN_KIND_VECTOR
    return pb.COLUMN_KIND_TEXT if name in options.text else pb.COLUMN_KIND_CATEGORY


def _refuse_unclear(name: str, values: Values, *, is_feature: bool) -> None:
    """Refuse strings that were meant as numbers or texts: as categories or ids they would be of no use."""
    if values.dtype != object:
        return
    entries = [value for value in values if value]
    wrong = [value for value in entries if not _is_number(value)]
    differ = len(set(entries)) == len(values)
    # An id may well be an integer in most rows.
    may_be_id = not is_feature and differ and not any("." in value for value in entries)
    if wrong and len(wrong) < (1 - MOSTLY) * len(entries) and not may_be_id:
        row, others = values.tolist().index(wrong[0]) + 1, len(wrong) - 1
        more = f" and {others} more entries" if others else ""
        raise TableError(
            f"Column {name!r} holds numbers, but {wrong[0]!r} in row {row}{more}: correct or empty them, or drop the "
            "column."
        )
    formatted = [value for value in entries if _FORMATTED.fullmatch(value.strip())]
    if formatted and len(formatted) > MOSTLY * len(entries):
        raise TableError(
            f"Column {name!r} holds numbers with separators or units, such as {formatted[0]!r}: write plain numbers, "
            "such as 1234.5, or drop the column."
        )
    if entries and differ and np.mean([value.count(" ") >= 2 for value in entries]) > MOSTLY:
        raise TableError(f"Column {name!r} holds texts, each another: name it in `text`, or drop it.")


def _whole(entry: Any) -> Any:
    """Integers that became floats, as one is missing, and booleans as integers."""
    is_whole = isinstance(entry, bool | np.bool_) or (isinstance(entry, float) and entry.is_integer())
    return int(entry) if is_whole else entry


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _weights(columns: Mapping[str, Any], options: TableOptions) -> NDArray[np.float64] | None:
    if options.weight_column is None:
        return None
    values = values_of(options.weight_column, columns[options.weight_column])
    if values.dtype == object or values.ndim != 1:
        raise TableError(f"weight_column: {options.weight_column!r} must hold numbers.")
    return np.where(np.isnan(values), 1.0, values)
