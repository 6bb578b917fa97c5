"""Reads points from files: .npy, .npz (dense or CSR), .csv, .parquet, .svmlight. Nothing is ever unpickled."""

from __future__ import annotations

import csv
import hashlib
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from homophily_service.cli.failures import WrongInput

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
# How many times its size a compressed file may have when unpacked: real measurements do not compress that well, so the
# file was made to fill the memory. Up to HARMLESS bytes are fine in any case.
MOST_GROWTH = 200
HARMLESS = 64 << 20


class Table(NamedTuple):
    """What a file holds."""

    #: A dense array (perhaps a memory map), or a sparse matrix.
    points: Any
    #: The label column, one entry per point; None if none was asked for.
    labels: list[Any] | None


def is_file(text: str) -> bool:
    """Whether a text is the name of a file; names of datasets have no dot."""
    return Path(text).suffix.lower() in READERS


def read_points(path: Path, label_column: str | None = None, *, n_features: int | None = None) -> Table:
    """Read the points in a file.

    ``label_column`` is a column's name or number (from 0; −1 is the last), or an array's name in .npz; it is kept out
    of the points. ``n_features`` says how many features points have where the file itself does not (.svmlight).
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise WrongInput(f"{path}: must end in one of {', '.join(READERS)}")
    if not path.is_file():
        raise WrongInput(f"{path}: there is no such file")
    try:
        table = reader(path, label_column, n_features)
    except WrongInput:
        raise
    except DAMAGED as error:
        raise WrongInput(f"{path}: cannot be read: {error}") from error
    if len(table.points.shape) != 2:
        raise WrongInput(
            f"{path}: must have two dimensions, points and features. Got {len(table.points.shape)} instead."
        )
    if table.points.dtype.kind not in "fiub":
        raise WrongInput(f"{path}: must hold real numbers. Got {table.points.dtype} instead.")
    return table


def fingerprint(path: Path, label_column: str | None) -> str:
    """A short digest of a file's content and of how it is read."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
    found.update(repr(label_column).encode())
    return found.hexdigest()[:16]


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


def _read_npy(path: Path, label_column: str | None, _: int | None) -> Table:
    if label_column is not None:
        array = load_array(path)
        if array.ndim != 2:
            raise WrongInput(f"{path}: must have two dimensions to have a column for labels")
        place = find_column(label_column, None, array.shape[1], path)
        return Table(np.delete(array, place, axis=1), array[:, place].tolist())
    return Table(load_array(path, lazy=True), None)


def _read_npz(path: Path, label_column: str | None, _: int | None) -> Table:
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
        return Table(_checked(matrix), labels)
    if arrays.keys() >= _CSR_ARRAYS:
        matrix = sparse.csr_array(
            (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"].tolist())
        )
        return Table(_checked(matrix), labels)
    if "X" in arrays:
        return Table(arrays["X"], labels)
    tables = [name for name, array in arrays.items() if array.ndim == 2]
    if len(tables) != 1:
        raise WrongInput(
            f"{path}: must hold one array of two dimensions, an array X, or a CSR matrix as data, indices, indptr and "
            f"shape. Got {', '.join(arrays) or 'nothing'} instead."
        )
    return Table(arrays[tables[0]], labels)


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


# -- CSV ---------------------------------------------------------------------------------------------------------------


def csv_rows(path: Path) -> Iterator[list[str]]:
    """The rows, cell by cell; an empty line is a row without cells."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.reader(file):
            yield [cell.strip() for cell in row]


def is_number(text: str) -> bool:
    """Whether float() accepts a text."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_csv(path: Path, label_column: str | None, _: int | None) -> Table:
    rows = filter(None, csv_rows(path))
    first, second = next(rows, None), next(rows, None)
    if first is None:
        raise WrongInput(f"{path}: is empty")
    place = None if label_column is None else find_csv_column(label_column, first, path)
    columns = [number for number in range(len(first)) if number != place]
    has_header = _is_header(first, second, columns, place)
    if has_header and second is None:
        raise WrongInput(f"{path}: holds no points")
    names = first if has_header else [str(number) for number in range(len(first))]
    with path.open(newline="", encoding="utf-8-sig") as file:
        if has_header:
            # Skip the header with the csv module, as a quoted name may contain a line break.
            next(filter(None, csv.reader(file)))
        try:
            # Without a choice of columns, NumPy also notices rows of different lengths.
            chosen = None if place is None else columns
            points = np.loadtxt(file, delimiter=",", quotechar='"', comments=None, usecols=chosen, ndmin=2)
        except ValueError as error:
            raise WrongInput(f"{path}: {_find_wrong_entry(path, names, columns, has_header) or error}") from error
    if place is None:
        return Table(points, None)
    rows = filter(None, csv_rows(path))
    if any(len(row) != len(first) for row in rows):
        raise WrongInput(f"{path}: {_find_wrong_entry(path, names, columns, has_header)}")
    return Table(points, [row[place] for row in filter(None, csv_rows(path))][has_header:])


def find_csv_column(wanted: str, first: list[str], path: Path) -> int:
    """The position of a column; a number is always a position, as "4" in the first row may be a value."""
    return find_column(wanted, None if is_number(wanted) else first, len(first), path)


def _is_header(first: list[str], second: list[str] | None, columns: list[int], place: int | None) -> bool:
    """Whether the first row is a header: not all numbers. The label column is ignored, as labels may be words."""
    if not all(is_number(first[number]) for number in columns):
        return True
    if place is None or second is None or is_number(first[place]):
        return False
    # Columns numbered 0, 1, 2 … by other programs, or a word above numbers.
    is_counted = [first[number] for number in columns] == [str(number) for number in range(len(columns))]
    return is_counted or (place < len(second) and is_number(second[place]))


def _find_wrong_entry(path: Path, names: list[str], columns: list[int], has_header: bool) -> str | None:
    """Find the entry that is not a number; the fast reader does not report it."""
    for number, row in enumerate(filter(None, csv_rows(path))):
        if has_header and not number:
            continue
        place = f"row {number + 1 - has_header}"
        if len(row) != len(names):
            return f"{place} must have {len(names)} columns. Got {len(row)} instead."
        for column in columns:
            if not is_number(row[column]):
                found = repr(row[column]) if row[column] else "nothing"
                return f"column {names[column]!r} must hold numbers, but {place} has {found}"
    return None


# -- Parquet -----------------------------------------------------------------------------------------------------------


def arrow(path: Path) -> Any:
    """Import pyarrow with Parquet, which this file needs."""
    from homophily_service.plots.tables import need_pyarrow

    try:
        return need_pyarrow()
    except ImportError as error:
        raise WrongInput(f"{path}: {error}") from None


def open_parquet(path: Path) -> Any:
    """A Parquet file."""
    pyarrow = arrow(path)
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise WrongInput(f"{path}: cannot be read: {error}") from error


def _read_parquet(path: Path, label_column: str | None, _: int | None) -> Table:
    types = arrow(path).types
    file = open_parquet(path)
    schema = file.schema_arrow
    place = None if label_column is None else find_column(label_column, schema.names, len(schema.names), path)
    columns = [number for number in range(len(schema.names)) if number != place]
    is_small = True
    for number in columns:
        field = schema.field(number)
        if not (types.is_integer(field.type) or types.is_floating(field.type) or types.is_boolean(field.type)):
            raise WrongInput(f"{path}: column {field.name!r} must hold numbers, but holds {field.type}")
        # A boolean takes one bit.
        is_small &= field.type.bit_width <= (32 if types.is_floating(field.type) else 16)
    points = np.empty((file.metadata.num_rows, len(columns)), dtype=np.float32 if is_small else np.float64)
    labels: list[Any] = []
    begins = 0
    for batch in file.iter_batches():
        for target, number in enumerate(columns):
            column = batch.column(number)
            if column.null_count:
                row = begins + column.is_null().to_pylist().index(True)
                raise WrongInput(
                    f"{path}: column {schema.names[number]!r} must hold numbers, but row {row + 1} is empty"
                )
            points[begins : begins + len(batch), target] = column.to_numpy(zero_copy_only=False)
        if place is not None:
            labels += batch.column(place).to_pylist()
        begins += len(batch)
    return Table(points, None if place is None else labels)


# -- SVMlight ----------------------------------------------------------------------------------------------------------


def load_svmlight(path: Path, n_features: int | None = None) -> tuple[Any, NDArray[np.float64]]:
    """Points as CSR, and the labels in front of them."""
    from sklearn.datasets import load_svmlight_file

    points, labels = load_svmlight_file(str(path), n_features=n_features)
    return points, labels


def _read_svmlight(path: Path, label_column: str | None, n_features: int | None) -> Table:
    if label_column is not None:
        raise WrongInput(f"{path}: has no columns; its labels are used by --labels {path}")
    return Table(load_svmlight(path, n_features)[0], None)


READERS: dict[str, Callable[[Path, str | None, int | None], Table]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
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
