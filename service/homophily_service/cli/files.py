"""Data from files: arrays (.npy, .npz, .svmlight) and tables (.csv, .parquet and others). Nothing is ever unpickled."""

from __future__ import annotations

import csv
import hashlib
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from homophily_client import Dataset, Edges, TableSchema
from homophily_client.columns import TableError, entries_of
from homophily_client.edges import matrix_of
from homophily_client.tables import Table, TableOptions, like_dataset, new_rows, read_table
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.tables import HARMLESS, MOST_GROWTH, READERS, read_table_file, table_suffix

# The errors that readers raise for damaged files.
DAMAGED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    csv.Error,
)
# scipy.sparse.save_npz adds a format to these.
_CSR_ARRAYS = {"data", "indices", "indptr", "shape"}
# Options that name a column, and that name several.
_SINGLE = ("label_column", "id_column", "weight_column")
_SEVERAL = ("columns", "drop", "categories", "text")


class Data(NamedTuple):
    """What a file holds."""

    #: A dense array (perhaps a memory map), a sparse matrix, or a client's Table.
    points: Any
    #: The column of labels, an entry for each point; None if none was asked for.
    labels: list[Any] | None = None
    #: The table as it was read, for its columns to be written beside the answers; None for arrays.
    original: Any = None

    @property
    def table(self) -> Table | None:
        """The points as a table, if they are one."""
        return self.points if isinstance(self.points, Table) else None


def is_file(text: str) -> bool:
    """True for a file rather than a dataset, whose name has no dot; refuses an ending that nothing is known of."""
    if "." not in text:
        return False
    if "://" in text:
        raise WrongInput(f"{text}: homophily upload makes a dataset of an address, which can be named here then.")
    check_suffix(Path(text))
    return True


def check_suffix(path: Path) -> None:
    """Refuse a file whose ending is not known."""
    if path.suffix.lower() not in ARRAYS and table_suffix(path) not in READERS:
        known = ", ".join([*READERS, ".csv.gz", *ARRAYS])
        raise WrongInput(f"{path}: its ending says nothing about what it holds; it must be one of {known}")


def read_data(
    path: Path, options: TableOptions | None = None, *, n_features: int | None = None, keep_labels: bool = False
) -> Data:
    """The points in a file, with what its columns are by the options.

    A column is named, or numbered from 0 (−1 is the last); in .npz the label column is an array's name. ``n_features``
    says how many features points have where the file itself does not (.svmlight). With ``keep_labels`` those of a table
    are sent with it.
    """
    options = options or TableOptions()

    def read(table: Any, options: TableOptions) -> Data:
        points = read_table(table, options, keep_labels=keep_labels)
        return Data(points, points.labels, table)

    return _read(path, options, n_features, read)


def read_new_rows(
    path: Path, options: TableOptions, schema: TableSchema | None, *, n_features: int | None = None
) -> Data:
    """The points in a file that a model is asked about. The service matches the columns of a table by name.

    Columns that are strings in the model's schema are read as such, although this file may have only numbers in them.
    """
    strings = [column.name for column in schema.columns if column.kind in ("category", "text", "id")] if schema else []

    def rows(table: Any, options: TableOptions) -> Data:
        drop = {name for role in (*_SINGLE, "drop") for name in options.named[role]}
        chosen = options.named["columns"] or [name for name in table.column_names if name not in drop]
        return Data(new_rows(table.select(list(chosen))), original=table)

    return _read(path, options, n_features, rows, strings)


def read_edges(path: Path, nodes: int | None = None) -> Edges:
    """The edges in a file: two columns of node numbers, and perhaps one of weights."""

    def edges(table: Any, _: TableOptions) -> Data:
        return Data(table)

    table = _read(path, TableOptions(), None, edges).points
    is_array = isinstance(table, np.ndarray)
    columns = list(table.T) if is_array else [np.asarray(table[name]) for name in table.column_names]
    if len(columns) not in (2, 3) or any(column.dtype.kind not in "iuf" for column in columns):
        raise WrongInput(f"{path}: must have two columns of node numbers, from 0, and maybe one of weights")
    pairs = np.column_stack(columns[:2])
    if not np.isfinite(pairs).all() or (pairs != np.floor(pairs)).any():
        raise WrongInput(f"{path}: nodes must be whole numbers, from 0")
    made = Edges(pairs.astype(np.int64), columns[2] if len(columns) == 3 else None, nodes)
    try:
        matrix_of(made)
    except ValueError as error:
        raise WrongInput(f"{path}: {error}") from error
    return made


def read_rows_like(path: Path, dataset: Dataset) -> Any:
    """The points in a file that come after those of a dataset: a table for a table, an array for an array."""
    schema = dataset.schema
    if schema is None or path.suffix.lower() in ARRAYS:
        return read_data(path).points
    strings = [column.name for column in schema.columns if column.kind in ("category", "text", "id", "label")]

    def rows(table: Any, _: TableOptions) -> Data:
        return Data(like_dataset(table, dataset))

    return _read(path, TableOptions(), None, rows, strings).points


def _read(
    path: Path,
    options: TableOptions,
    n_features: int | None,
    read: Callable[[Any, TableOptions], Data],
    strings: Collection[str] = (),
) -> Data:
    check_suffix(path)
    if not path.is_file():
        raise WrongInput(f"{path}: {'is a folder' if path.is_dir() else 'there is no such file'}")
    try:
        if path.suffix.lower() in ARRAYS:
            data = _read_array(path, options, n_features)
        else:
            data = _read_columns(path, options, read, strings)
    except WrongInput:
        raise
    except TableError as error:
        raise WrongInput(f"{path}: {as_options(str(error))}") from error
    except DAMAGED as error:
        raise WrongInput(f"{path}: cannot be read: {error}") from error
    if data.table is None and not hasattr(data.points, "column_names"):
        if len(data.points.shape) != 2:
            raise WrongInput(
                f"{path}: must have two dimensions, points and features. Got {len(data.points.shape)} instead."
            )
        if data.points.dtype.kind not in "fiub":
            raise WrongInput(f"{path}: must hold real numbers. Got {data.points.dtype} instead.")
    return data


def as_options(sentence: str) -> str:
    """A sentence of the client about its options, as one about those of the command line."""
    names = "|".join(field.name for field in fields(TableOptions))
    flag = re.compile(rf"`({names})`|^({names})(?=:)")
    return flag.sub(lambda found: f"--{(found[1] or found[2]).replace('_', '-')}", sentence)


def fingerprint(path: Path, options: TableOptions) -> str:
    """A short name of what a file holds and how it is read."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
    found.update(repr(options).encode())
    return found.hexdigest()[:16]


# -- tables ------------------------------------------------------------------------------------------------------------


def _read_columns(
    path: Path, options: TableOptions, read: Callable[[Any, TableOptions], Data], strings: Collection[str]
) -> Data:
    named = [name for columns in options.named.values() for name in columns]
    table, has_names = read_table_file(path, expected=named)
    options = _by_name(options, table.column_names, path)
    # As they are written: 1.0 and 007 are names there.
    texts = {*strings, *options.named["label_column"], *options.named["id_column"], *options.named["categories"]}
    texts &= set(table.column_names)
    if any(str(table.schema.field(name).type) != "string" for name in texts):
        table = read_table_file(path, texts, named).table
    if has_names or not _is_all_numbers(table, options):
        return read(table, options)
    # Numbers without names are an array.
    labels = None if options.label_column is None else entries_of(table[options.label_column])
    chosen = [name for name in table.column_names if name != options.label_column]
    columns = [table[name].to_numpy() for name in chosen]
    return Data(np.column_stack(columns).astype(np.float64, copy=False), labels)


def _is_all_numbers(table: Any, options: TableOptions) -> bool:
    """Whether a file without names holds numbers only, and nothing is said of its columns but which has the labels."""
    if options != TableOptions(label_column=options.label_column):
        return False
    columns = [table[name] for name in table.column_names if name != options.label_column]
    return all(str(column.type) in ("int64", "double") and not column.null_count for column in columns)


def _by_name(options: TableOptions, names: list[str], path: Path) -> TableOptions:
    """The same options, with names in place of the columns' numbers."""

    def name(wanted: str) -> str:
        return wanted if wanted in names else names[find_column(wanted, names, len(names), path)]

    named: dict[str, Any] = {one: name(value) for one in _SINGLE if (value := getattr(options, one)) is not None}
    named |= {one: tuple(map(name, value)) for one in _SEVERAL if (value := getattr(options, one))}
    return replace(options, **named)


# -- NumPy -------------------------------------------------------------------------------------------------------------


def load_array(path: Path, *, lazy: bool = False) -> NDArray[Any]:
    """The array in a .npy file; ``lazy`` leaves it on the disk."""
    try:
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
        return np.asarray(np.load(path, mmap_mode="r" if lazy else None, allow_pickle=False))
    except ValueError as error:
        raise WrongInput(_without_pickle(path, error)) from error


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in a .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            _check_growth(path, sum(member.file_size for member in archive.infolist()))
            for member in archive.infolist():
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise WrongInput(f"{path}: {member.filename} is compressed in a way that NumPy does not support")
                with archive.open(member) as file:
                    _check_header(file, member.file_size)
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except ValueError as error:
        raise WrongInput(_without_pickle(path, error)) from error


def _check_growth(path: Path, unpacked: int) -> None:
    """Refuse a file that takes far more memory than its size."""
    size = path.stat().st_size
    if unpacked > max(HARMLESS, MOST_GROWTH * size):
        raise WrongInput(
            f"{path}: holds {unpacked} bytes in {size}, which looks like a file made to fill the memory: save it "
            "without compression, as CSR if it is sparse"
        )


def _check_header(file: IO[bytes], size: int) -> None:
    """Refuse an array with fewer bytes than its header claims, before memory is allocated for it."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("Python objects")
    # Entries of zero bytes could be any number.
    if math.prod(shape) * max(1, dtype.itemsize) > size - file.tell():
        raise ValueError(f"its header says {shape} of {dtype}, which {size} bytes do not hold")


def _without_pickle(path: Path, error: ValueError) -> str:
    if any(words in str(error) for words in ("pickle", "Python objects", "magic string")):
        return (
            f"{path}: contains Python objects, or is not a NumPy file. Objects are not read, as they could run "
            "malicious code: save an array of numbers."
        )
    return f"{path}: cannot be read: {error}"


def _read_array(path: Path, options: TableOptions, n_features: int | None) -> Data:
    if options != TableOptions(label_column=options.label_column):
        raise WrongInput(f"{path}: is an array, which has no named columns: only --label-column can be chosen in it")
    return ARRAYS[path.suffix.lower()](path, options.label_column, n_features)


def _read_npy(path: Path, label_column: str | None, _: int | None) -> Data:
    if label_column is not None:
        array = load_array(path)
        if array.ndim != 2:
            raise WrongInput(f"{path}: must have two dimensions to have a column for labels")
        place = find_column(label_column, None, array.shape[1], path)
        return Data(np.delete(array, place, axis=1), array[:, place].tolist())
    return Data(load_array(path, lazy=True), None)


def _read_npz(path: Path, label_column: str | None, _: int | None) -> Data:
    from scipy import sparse

    arrays = load_arrays(path)
    labels = None
    if label_column is not None:
        labels = one_of(arrays, label_column, path).tolist()
        arrays.pop(label_column)
    if "format" in arrays and arrays["format"].ndim == 0:
        matrix = sparse.load_npz(path)
        # Unlike CSR, other formats may claim any number of rows.
        _check_growth(path, 8 * matrix.shape[0])
        return Data(_checked(matrix), labels)
    if arrays.keys() >= _CSR_ARRAYS:
        matrix = sparse.csr_array(
            (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"].tolist())
        )
        return Data(_checked(matrix), labels)
    if "X" in arrays:
        return Data(arrays["X"], labels)
    tables = [name for name, array in arrays.items() if array.ndim == 2]
    if len(tables) != 1:
        raise WrongInput(
            f"{path}: must hold one array of two dimensions, an array X, or a CSR matrix as data, indices, indptr and "
            f"shape. Got {', '.join(arrays) or 'nothing'} instead."
        )
    return Data(arrays[tables[0]], labels)


def _checked(matrix: Any) -> Any:
    # Constructors check only lengths; invalid indices may crash compiled code.
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    return matrix


def one_of(arrays: dict[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    """An array of a .npz file with one entry per point."""
    if name not in arrays:
        raise WrongInput(f"{path}: has no array {name!r}, only {', '.join(arrays)}")
    return arrays[name].reshape(-1)


# -- SVMlight ----------------------------------------------------------------------------------------------------------


def load_svmlight(path: Path, n_features: int | None = None) -> tuple[Any, NDArray[np.float64]]:
    """Points as CSR, and the labels in front of them."""
    from sklearn.datasets import load_svmlight_file

    points, labels = load_svmlight_file(str(path), n_features=n_features)
    return points, labels


def _read_svmlight(path: Path, label_column: str | None, n_features: int | None) -> Data:
    if label_column is not None:
        raise WrongInput(f"{path}: has no columns; its labels are used by --labels {path}")
    return Data(load_svmlight(path, n_features)[0], None)


ARRAYS: dict[str, Callable[[Path, str | None, int | None], Data]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".svmlight": _read_svmlight,
    ".libsvm": _read_svmlight,
}


def find_column(wanted: str, names: list[str] | None, count: int, path: Path) -> int:
    """The position of a column, by its name or number."""
    if names is not None and wanted in names:
        if names.count(wanted) > 1:
            raise WrongInput(f"{path}: has {names.count(wanted)} columns {wanted!r}; give its number")
        return names.index(wanted)
    try:
        number = int(wanted)
    except ValueError:
        known = "columns have numbers only" if names is None else f"only {', '.join(names[:20])}"
        raise WrongInput(f"{path}: has no column {wanted!r}, {known}") from None
    if not -count <= number < count:
        raise WrongInput(f"{path}: has {count} columns, and no number {wanted}")
    return number % count
