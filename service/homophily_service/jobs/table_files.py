"""Files that lie elsewhere as batches of rows: Parquet, Arrow, CSV and NumPy, only a part of which is in memory.

What a file says of itself is not trusted: sizes are compared before memory is taken, and the process that reads has a
limit of memory.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from homophily_service.contract.csv_text import MISSING, THOUSANDS, FirstRows, first_rows, has_decimal_commas, is_header
from homophily_service.contract.errors import InvalidRequest, ServiceError
from homophily_service.storage.blobs.objects import ONE_HEADER_AT_A_TIME
from homophily_service.storage.elsewhere.places import HELD_BYTES, RemoteFile

MOST_ROWS, LEAST_ROWS = 1 << 16, 256
BATCH_BYTES = 32 << 20
BLOCK_BYTES, HEAD_BYTES = 8 << 20, 1 << 20
# A row of CSV that is longer is taken for damage.
LONGEST_ROW = 64 << 20
# Bytes of a column of Parquet that are read at a time: out of what is held, or else of the file itself.
STREAM_BYTES = 1 << 20
LEAST_STREAM_BYTES, MOST_STREAM_BYTES = 1 << 16, 8 << 20


class TableFile(ABC):
    """A file whose columns have names."""

    #: Whether the names are in the file, rather than the columns' numbers.
    has_names = True

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        #: How many rows it says that it has; None if it does not say.
        self.rows: int | None = None

    @property
    def path(self) -> str:
        """Its path, for errors."""
        return self.file.file.path

    @property
    @abstractmethod
    def types(self) -> dict[str, str]:
        """Arrow's name of the type of each column."""

    @abstractmethod
    def head(self, names: Sequence[str]) -> Any:
        """Return some of these columns' first rows, as an Arrow table: LEAST_ROWS at least, unless that is all."""

    @abstractmethod
    def batches(self, names: Sequence[str], texts: Collection[str]) -> Iterator[Any]:
        """Yield all rows of these columns, as Arrow's batches; ``texts`` may be returned as they are written."""


class ParquetTable(TableFile):
    """A Parquet file, read group by group."""

    def __init__(self, file: RemoteFile) -> None:
        from pyarrow import parquet

        super().__init__(file)
        with reading(self.path):
            self._metadata = parquet.read_metadata(file)
            self._schema = self._metadata.schema.to_arrow_schema()
        self.rows = self._metadata.num_rows

    @property
    def types(self) -> dict[str, str]:
        """See TableFile."""
        return _types(self._schema)

    def head(self, names: Sequence[str]) -> Any:
        """See TableFile."""
        return _table(next(self._batches(names), None), self._schema, names)

    def batches(self, names: Sequence[str], texts: Collection[str]) -> Iterator[Any]:  # noqa: ARG002
        """See TableFile."""
        return self._batches(names)

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        from pyarrow import parquet

        metadata = self._metadata
        with reading(self.path):
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                chunks = [group.column(place) for place in range(group.num_columns)]
                chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in _roots(names)]
                unpacked = [chunk.total_uncompressed_size for chunk in chunks]
                size = self._announce([_range(chunk) for chunk in chunks])
                rows = rows_at_a_time(len(names), sum(unpacked) // max(1, group.num_rows))
                opened = parquet.ParquetFile(self.file, metadata=metadata, buffer_size=size, pre_buffer=False)
                yield from opened.iter_batches(rows, row_groups=[number], columns=list(names), use_threads=False)

    def _announce(self, ranges: list[tuple[int, int]]) -> int:
        """Have a group's columns fetched ahead, and return how many bytes to read of each at a time.

        Columns are read in turn. If they do not all fit into what is held, pieces would be fetched again and again.
        """
        if len(ranges) == 1 or sum(stop - start for start, stop in ranges) <= HELD_BYTES:
            self.file.want(ranges)
            return max(LEAST_STREAM_BYTES, min(STREAM_BYTES, HELD_BYTES // len(ranges)))
        self.file.want([])
        return max(LEAST_STREAM_BYTES, min(MOST_STREAM_BYTES, HELD_BYTES // len(ranges)))


def _roots(names: Sequence[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _range(chunk: Any) -> tuple[int, int]:
    """Where a column of a group of rows is in the file."""
    offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
    start = min(offset for offset in offsets if offset is not None and offset > 0)
    return start, start + max(0, chunk.total_compressed_size)


class ArrowTable(TableFile):
    """A file in Arrow's own format (Feather), read batch by batch."""

    def __init__(self, file: RemoteFile) -> None:
        from pyarrow import ipc

        super().__init__(file)
        with reading(self.path):
            file.want([(0, file.file.size)])
            self._schema = ipc.open_file(file).schema

    @property
    def types(self) -> dict[str, str]:
        """See TableFile."""
        return _types(self._schema)

    def head(self, names: Sequence[str]) -> Any:
        """See TableFile."""
        return _table(next(self._batches(names), None), self._schema, names)

    def batches(self, names: Sequence[str], texts: Collection[str]) -> Iterator[Any]:  # noqa: ARG002
        """See TableFile."""
        return self._batches(names)

    def _batches(self, names: Sequence[str]) -> Iterator[Any]:
        from pyarrow import ipc

        with reading(self.path):
            places = [self._schema.get_field_index(name) for name in names]
            options = ipc.IpcReadOptions(included_fields=places, use_threads=False)
            reader = ipc.open_file(self.file, options=options)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number).select(list(names))
                rows = rows_at_a_time(len(names), batch.nbytes // max(1, batch.num_rows))
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)


class CsvTable(TableFile):
    """A CSV file, read block by block. Types follow from its beginning; later rows must be of the same."""

    def __init__(self, file: RemoteFile, expected: Collection[str] = ()) -> None:
        super().__init__(file)
        with reading(self.path):
            file.want([(0, file.file.size)])
            content = file.read(HEAD_BYTES).removeprefix(b"\xef\xbb\xbf")
            self._first: FirstRows = first_rows(content, "\t" if self.path.lower().endswith(".tsv") else "")
            if not self._first.rows:
                raise InvalidRequest("address", f"{self.path} is empty")
            cells = self._first.rows[0]
            self.has_names = is_header(self._first.rows) or any(cell.strip() in expected for cell in cells)
            below = self._first.rows[self.has_names :]
            self._decimal = "," if self._first.delimiter != "," and has_decimal_commas(below) else "."
            self._names = [
                name.strip() or f"Unnamed: {place}" if self.has_names else str(place)
                for place, name in enumerate(cells)
            ]
            _check_names(self._names)
            if len(content) == HEAD_BYTES:
                content = content[: _end_of_rows(content, self.path)]
            self._head = self._parse(content, is_first=True, names=self._names, kinds={})
            written = self._parse(
                content, is_first=True, names=self._names, kinds=dict.fromkeys(self._names, "string"), missing=[""]
            )
            self._refuse_thousands(written)
        self._kinds = {field.name: _kind_of(str(field.type), written[field.name]) for field in self._head.schema}
        # As they are written, where entries are strings: NA may be a country there.
        for place, name in enumerate(self._names):
            if self._kinds[name] == "string":
                self._head = self._head.set_column(place, name, written[name])

    @property
    def types(self) -> dict[str, str]:
        """See TableFile."""
        return dict(self._kinds)

    def head(self, names: Sequence[str]) -> Any:
        """See TableFile."""
        return self._head.select(list(names))

    def batches(self, names: Sequence[str], texts: Collection[str]) -> Iterator[Any]:
        """See TableFile."""
        kinds = {name: "string" if name in texts else self._kinds[name] for name in names}
        with reading(self.path):
            self.file.seek(0)
            rest, is_first, is_last = b"", True, False
            while not is_last:
                block = self.file.read(BLOCK_BYTES)
                is_last = len(block) < BLOCK_BYTES
                content = rest + (block.removeprefix(b"\xef\xbb\xbf") if is_first else block)
                end = len(content) if is_last else _end_of_rows(content, self.path)
                rest = content[end:]
                if content[:end].strip():
                    yield from self._parse(content[:end], is_first=is_first, names=names, kinds=kinds).to_batches(
                        MOST_ROWS
                    )
                    is_first = False

    def _parse(
        self,
        content: bytes,
        *,
        is_first: bool,
        names: Sequence[str],
        kinds: dict[str, str],
        missing: Sequence[str] = (),
    ) -> Any:
        from pyarrow import csv

        return csv.read_csv(
            io.BytesIO(content),
            # Threads that outlive an error abort the program.
            csv.ReadOptions(
                use_threads=False,
                block_size=len(content) + 1,
                column_names=self._names,
                skip_rows=self._first.header_lines if self.has_names and is_first else 0,
            ),
            csv.ParseOptions(delimiter=self._first.delimiter, newlines_in_values=True),
            csv.ConvertOptions(
                decimal_point=self._decimal,
                null_values=list(missing) or MISSING,
                column_types=kinds,
                include_columns=list(names),
            ),
        )

    def _refuse_thousands(self, written: Any) -> None:
        """Refuse 1.523 beside 852 where it may be 1523: in files with semicolons, written with decimal commas."""
        if self._first.delimiter != ";" or self._decimal != ".":
            return
        for field in self._head.schema:
            dotted = {cell for cell in written[field.name].to_pylist() if cell and "." in cell}
            if str(field.type) == "double" and len(dotted) > 2 and all(map(THOUSANDS.fullmatch, dotted)):
                raise InvalidRequest(
                    "address",
                    f"{self.path}: column {field.name!r}: is {min(dotted)} a thousand and more? Write numbers without "
                    "a dot, or with more digits after it",
                )


def _kind_of(kind: str, written: Any) -> str:
    """The type as which a column of CSV is read, by that of its first rows."""
    from pyarrow import compute

    if kind == "int64":
        # 007 is no number but a name, whose zeros count.
        names = compute.any(compute.match_substring_regex(written, r"^[+-]?0\d")).as_py()
        return "string" if names else "double"
    return "string" if kind == "null" else kind


def _end_of_rows(content: bytes, path: str) -> int:
    """Where the last complete row of a block of CSV ends: at a line end that is not inside quotes."""
    end = content.rfind(b"\n")
    quotes = content.count(b'"', 0, max(0, end))
    while end >= 0 and quotes % 2:
        # No line ends between the last quote and here.
        before = content.rfind(b"\n", 0, content.rfind(b'"', 0, end))
        quotes -= content.count(b'"', max(0, before), end)
        end = before
    if end < 0 and len(content) > LONGEST_ROW:
        raise InvalidRequest("address", f"{path}: has a row of more than {LONGEST_ROW} bytes, or quotes without an end")
    return end + 1


READERS: dict[str, type[TableFile]] = {
    ".parquet": ParquetTable,
    ".arrow": ArrowTable,
    ".feather": ArrowTable,
    ".csv": CsvTable,
    ".tsv": CsvTable,
}


def _types(schema: Any) -> dict[str, str]:
    _check_names(schema.names)
    return {field.name: str(field.type) for field in schema}


def _check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest("address", f"has several columns {twice!r}: give each a name of its own")


def _table(batch: Any, schema: Any, names: Sequence[str]) -> Any:
    import pyarrow

    chosen = pyarrow.schema([schema.field(name) for name in names])
    return chosen.empty_table() if batch is None else pyarrow.Table.from_batches([batch.select(list(names))])


def rows_at_a_time(columns: int, row_bytes: int) -> int:
    """How many rows are held at a time."""
    return int(max(LEAST_ROWS, min(MOST_ROWS, BATCH_BYTES // max(1, 8 * columns, row_bytes))))


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn errors of readers into errors of the request, which name the file."""
    import pyarrow

    try:
        yield
    except (ServiceError, MemoryError):
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        sentence = " ".join(str(error).split())[:500]
        sentence = "it is not UTF-8; save it as UTF-8" if "UTF8" in sentence else sentence
        raise InvalidRequest("address", f"{path} cannot be read: {sentence}") from error


# -- NumPy -------------------------------------------------------------------------------------------------------------


class ArrayFile:
    """A .npy file with an array of two dimensions, read row by row."""

    def __init__(self, file: RemoteFile) -> None:
        self.file = file
        path, size = file.file.path, file.file.size
        with reading(path):
            file.want([(0, size)])
            start = io.BytesIO(file.read(1 << 14))
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(npy.read_magic(start))
            if read is None:
                raise ValueError("it is not a .npy file of version 1 or 2")
            with ONE_HEADER_AT_A_TIME:
                shape, is_fortran, self._stored = read(start)
            self._offset = start.tell()
        problem = ""
        if self._stored.hasobject or self._stored.kind not in "fiub":
            problem = f"must hold real numbers; got {self._stored}"
        elif len(shape) != 2 or min(shape) < 1:
            problem = f"must have two dimensions, points and features; got {shape}"
        elif is_fortran:
            problem = "must be stored row by row; save numpy.ascontiguousarray of it"
        elif self._offset + shape[0] * shape[1] * self._stored.itemsize != size:
            problem = f"says that its shape is {shape}, which {size} bytes do not hold exactly"
        if problem:
            raise InvalidRequest("address", f"{path} {problem}")
        self.rows, self.columns = int(shape[0]), int(shape[1])
        is_small = self._stored.itemsize <= 2 or self._stored == np.float32
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if is_small else np.float64)

    def batches(self) -> Iterator[NDArray[Any]]:
        """Yield all rows, some at a time."""
        row_bytes = self.columns * self._stored.itemsize
        rows = rows_at_a_time(self.columns, row_bytes)
        self.file.seek(self._offset)
        for start in range(0, self.rows, rows):
            count = min(rows, self.rows - start)
            content = np.frombuffer(self.file.read(count * row_bytes), self._stored)
            yield content.reshape(count, self.columns).astype(self.dtype, copy=False)
