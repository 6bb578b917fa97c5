"""Makes a dataset from files that lie elsewhere, read in ranges by the worker and written as they come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import dataset_pb2, job_pb2, points_pb2
from homophily_client.columns import TableError, texts_of, values_of
from homophily_client.names import DatasetName
from homophily_client.tables import Table, TableOptions, label_texts, read_table
from homophily_service.contract.addresses import FORMATS, Address, suffix_of
from homophily_service.contract.arrays import check_finite, parts_of
from homophily_service.contract.errors import FailedPrecondition, InvalidRequest, LimitExceeded, NotFound
from homophily_service.contract.tables import (
    LONGEST_ID,
    LONGEST_STRING,
    NOT_FEATURES,
    STRINGS,
    Strings,
    check_no_infinity,
    check_schema,
    table_options,
)
from homophily_service.jobs.points_writer import PointsWriter
from homophily_service.jobs.table_files import READERS, ArrayFile, CsvTable, TableFile, reading
from homophily_service.jobs.work import Work
from homophily_service.storage.catalog import Catalog
from homophily_service.storage.elsewhere.allowed import open_place
from homophily_service.storage.elsewhere.places import Place, RemoteFile, SourceFile, digest_of
from homophily_service.storage.scratch import scratch_folder
from homophily_service.storage.uploads import limits_of


def create_dataset(work: Work) -> bytes:
    """Read the files; the result is a CreateDatasetResult."""
    import pyarrow

    # Arrow's other pools reserve more memory than they use, which counts towards this process's limit.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    request = job_pb2.CreateDatasetRequest.FromString(work.task.request)
    project = work.task.name.project
    work.stage.plan("read", "save")
    work.stage.enter("read")
    address, place = open_place(work.settings, project, request.address)
    with closing(place):
        files = _found(address, place)
        total = sum(file.size for file in files)
        if total > work.settings.max_dataset_bytes:
            raise LimitExceeded(f"{address} has {total} bytes, the limit is {work.settings.max_dataset_bytes}")
        source = dataset_pb2.DatasetSource(
            address=request.address,
            file_count=len(files),
            size_bytes=total,
            digest=digest_of(files, request.table.SerializeToString(deterministic=True)),
        )
        name = DatasetName(project, request.dataset_id or work.task.name.id)
        if request.dataset_id and (same := _unchanged(work.stores.catalog, name, source)) is not None:
            return job_pb2.CreateDatasetResult(dataset=same, unchanged=True).SerializeToString()
        with scratch_folder(work.settings, work.task.token) as folder:
            reader = _Reader(work, place, files, folder)
            if suffix_of(files[0].path) == ".npy":
                reader.read_arrays()
            else:
                reader.read_tables(table_options(request.table))
            writer = reader.writer
            assert writer is not None
            shape = writer.shape(reader.schema)
            parts = parts_of(shape, limits_of(work.settings), "address")
            reader.reserve(writer.size)
            work.stage.enter("save")
            sha256, digests = writer.finish()
            if reader.plan is not None:
                reader.plan.check_id(writer)
            work.stores.blobs.adopt(writer.arrays, work.task.result_path, {"sha256": sha256.hex()}, digests)
    dataset = dataset_pb2.Dataset(
        name=str(name),
        shape=shape,
        sha256=sha256,
        size_bytes=sum(part.bytes for part in parts),
        description=request.description,
        source=source,
    )
    dataset.create_time.GetCurrentTime()
    notes = reader.plan.notes if reader.plan is not None else ()
    return job_pb2.CreateDatasetResult(dataset=dataset, notes=notes).SerializeToString()


def _found(address: Address, place: Place) -> list[SourceFile]:
    """The files of an address, which are all of one kind."""
    files = place.find()
    if not files:
        raise NotFound(f"{address}: there is no file that ends with one of {', '.join(FORMATS)}")
    kinds = {suffix_of(file.path) for file in files}
    if len(kinds) > 1:
        listed = ", ".join(sorted(kinds))
        raise InvalidRequest(
            "address", f"must be files of one kind; {address} has {listed}: end it with, say, /*.parquet"
        )
    return files


def _unchanged(catalog: Catalog, name: DatasetName, source: dataset_pb2.DatasetSource) -> dataset_pb2.Dataset | None:
    """The dataset of this name, if it was made from the same; FailedPrecondition if from something else."""
    try:
        found = dataset_pb2.Dataset.FromString(catalog.get(name).message)
    except NotFound:
        return None
    if found.source.digest == source.digest:
        return found
    raise FailedPrecondition(
        f"{name} was made from another state of {source.address}, or with other columns: {found.source.file_count} "
        f"files of {found.source.size_bytes} bytes then, {source.file_count} of {source.size_bytes} bytes now: delete "
        "it, or give another dataset_id",
        reason="SOURCE_CHANGED",
    )


class _Reader:
    """Reads the files of one dataset into a writer."""

    def __init__(self, work: Work, place: Place, files: list[SourceFile], folder: Path) -> None:
        self.work, self.place, self.files, self.folder = work, place, files, folder
        self.writer: PointsWriter | None = None
        self.plan: _Plan | None = None
        self._limits = limits_of(work.settings)
        self._reserved = 0
        self._rows_of_file = 0
        # Bytes of the files that were read before the current one.
        self._done, self._total = 0, max(1, sum(file.size for file in files))

    @property
    def schema(self) -> points_pb2.TableSchema | None:
        """The columns, if the files are tables."""
        return self.plan.schema if self.plan is not None else None

    # -- NumPy

    def read_arrays(self) -> None:
        """Read .npy files, one after the other."""
        first: ArrayFile | None = None
        for source in self.files:
            with closing(RemoteFile(self.place, source)) as file:
                array = ArrayFile(file)
                if first is None:
                    first = array
                    self._begin(array.columns, array.dtype, 0)
                if (array.columns, array.dtype) != (first.columns, first.dtype):
                    raise InvalidRequest(
                        "address",
                        f"{source.path} has {array.columns} columns of {array.dtype}, but the first file has "
                        f"{first.columns} of {first.dtype}",
                    )
                self._expect(array.rows)
                for rows in array.batches():
                    self._add(file, rows, [])
            self._done, self._rows_of_file = self._done + source.size, 0

    # -- tables

    def read_tables(self, options: TableOptions) -> None:
        """Read files with columns, one after the other; the first one says which columns there are."""
        for source in self.files:
            with closing(RemoteFile(self.place, source)) as file:
                table = self._open(file, options)
                if self.plan is None:
                    self.plan = plan = _Plan(table, options)
                    if plan.schema is not None:
                        check_schema(plan.schema, plan.width, len(plan.strings), "table")
                    self._begin(plan.width, plan.dtype, len(plan.strings))
                plan = self.plan
                plan.check(table)
                if table.rows is not None:
                    self._expect(table.rows)
                for batch in table.batches(plan.names, plan.texts):
                    with reading(source.path), table_errors():
                        numbers, strings = plan.rows(batch)
                    self._add(file, numbers, strings, table.rows)
            self._done, self._rows_of_file = self._done + source.size, 0
        assert self.plan is not None
        assert self.writer is not None
        if not self.writer.rows:
            raise InvalidRequest("address", f"{self.files[0].path} holds no rows")
        self.plan.check_left_out(self.writer.rows)

    @staticmethod
    def _open(file: RemoteFile, options: TableOptions) -> TableFile:
        reader = READERS[suffix_of(file.file.path)]
        if reader is CsvTable:
            return CsvTable(file, [name for names in options.named.values() for name in names])
        return reader(file)

    # -- both

    def _begin(self, width: int, dtype: np.dtype[Any], n_strings: int) -> None:
        if width > self._limits.dimensions:
            raise LimitExceeded(f"address: {width} features, the limit is {self._limits.dimensions}")
        self.writer = PointsWriter(self.folder, width, dtype, n_strings)

    def _expect(self, rows: int) -> None:
        """Refuse a file whose rows would be too many, before they are read."""
        assert self.writer is not None
        rows += self.writer.rows
        if rows > self._limits.points:
            raise LimitExceeded(f"address: {rows} points, the limit is {self._limits.points}")
        numbers = rows * self.writer.width * self.writer.dtype.itemsize
        self.reserve(numbers + len(self.writer.string_bytes) * 8 * (rows + 1))

    def _add(self, file: RemoteFile, numbers: NDArray[Any], strings: list[Strings], most: int | None = None) -> None:
        """Write some rows of a file, which has ``most`` of them."""
        assert self.writer is not None
        writer, check = self.writer, check_finite if self.schema is None else check_no_infinity
        check(numbers, f"{file.file.path} after {writer.rows} points")
        if writer.rows + len(numbers) > self._limits.points:
            raise LimitExceeded(f"address: more than {self._limits.points} points, which is the limit")
        writer.add(numbers, strings)
        self.reserve(writer.size)
        self._rows_of_file += len(numbers)
        share = self._rows_of_file / most if most else file.tell() / max(1, file.file.size)
        self.work.stage.done((self._done + min(1.0, share) * file.file.size) / self._total)

    def reserve(self, size: int) -> None:
        """Reserve the bytes of the dataset; LimitExceeded if it or the project may not have them."""
        if size <= self._reserved:
            return
        if size > self._limits.bytes:
            raise LimitExceeded(f"address: the points take {size} bytes, the limit is {self._limits.bytes}")
        self.work.reserve(size)
        self._reserved = size


class _Plan:
    """Which columns are what, concluded from the first rows of the first file as the client does of a whole table."""

    def __init__(self, table: TableFile, options: TableOptions) -> None:
        self._types = table.types
        kept_out = set(options.drop)
        if options.columns is not None:
            kept_out |= self._types.keys() - {*options.columns, options.id_column, options.label_column}
        head = table.head([name for name in self._types if name not in kept_out])
        self._head_rows: int = head.num_rows
        #: The columns, if they have names; otherwise the points are an array.
        self.schema: points_pb2.TableSchema | None = None
        self.notes: tuple[str, ...] = ()
        self.strings: list[str] = []
        self._concluded_id: str | None = None
        self._left_out: list[str] = []
        if not table.has_names and options == TableOptions() and set(self._types.values()) == {"double"}:
            self.names = tuple(self._types)
            self._widths, self.dtype = dict.fromkeys(self.names, 1), np.dtype(np.float64)
        else:
            with reading(table.path), table_errors():
                self._describe(read_table(_with_unread(head, self._types), options, keep_labels=True), options)
            self._left_out = [name for name in self._types if name not in self.names and name not in kept_out]
        self.width = sum(self._widths.values())
        #: Columns of CSV that are wanted as they are written.
        self.texts = frozenset(self.strings)

    def _describe(self, table: Table, options: TableOptions) -> None:
        self.schema, self.notes, self.names = table.schema(), table.notes, tuple(table.columns)
        self._kinds = table.kinds
        self.strings = [name for name in self.names if self._kinds[name] in STRINGS]
        numbers = {name: values for name, values in table.columns.items() if name not in self.strings}
        self._widths = {name: values.shape[1] if values.ndim == 2 else 1 for name, values in numbers.items()}
        self.dtype = table.numbers().dtype
        self._concluded_id = table.id_column if options.id_column is None else None

    def check(self, table: TableFile) -> None:
        """Refuse a file whose columns differ from those of the first."""
        for name in self.names:
            found = table.types.get(name)
            if found != self._types[name] and not (found and name in self.texts and isinstance(table, CsvTable)):
                raise InvalidRequest(
                    "address",
                    f"{table.path}: column {name!r} is {found or 'missing'}, but {self._types[name]} in the first "
                    "file: write them alike",
                )

    def check_left_out(self, rows: int) -> None:
        """Refuse columns that were left out as all their values differ, if only some of the rows were looked at."""
        if self._left_out and rows > self._head_rows:
            listed = ", ".join(map(repr, self._left_out))
            raise InvalidRequest(
                "table",
                f"all values of {listed} differ in the first {self._head_rows} rows, as those of ids do: name them in "
                "drop, or in columns to make them features",
            )

    def check_id(self, writer: PointsWriter) -> None:
        """The same for a column that was taken as the id; all rows are written."""
        name = self._concluded_id
        if name is None or writer.rows <= self._head_rows:
            return
        import pyarrow
        from pyarrow import compute

        starts, data = writer.strings(self.strings.index(name))
        buffers = pyarrow.py_buffer(np.ascontiguousarray(starts)), pyarrow.py_buffer(np.ascontiguousarray(data))
        ids = pyarrow.LargeStringArray.from_buffers(writer.rows, *buffers)
        if compute.count_distinct(ids).as_py() < writer.rows:
            raise InvalidRequest(
                "table",
                f"the values of column {name!r} differ in the first {self._head_rows} rows, as those of an id do, but "
                "not in all: name it in drop, or in columns to make it a feature",
            )

    def rows(self, batch: Any) -> tuple[NDArray[Any], list[Strings]]:
        """The numbers and strings of some rows."""
        numbers = np.empty((batch.num_rows, self.width), self.dtype)
        begin, strings = 0, []
        for name in self.names:
            column = batch.column(batch.schema.get_field_index(name))
            if name in self.strings:
                strings.append(_strings(name, column, self._kinds[name]))
                continue
            values = values_of(name, _chunked(column))
            values = values.reshape(len(values), -1)
            if values.dtype == object or values.shape[1] != self._widths[name]:
                raise InvalidRequest("address", f"column {name!r} must hold the same kind of values in every row")
            numbers[:, begin : begin + self._widths[name]] = values
            begin += self._widths[name]
        return numbers, strings


def _with_unread(head: Any, types: dict[str, str]) -> Any:
    """The first rows, with columns that are not read in their places: the reader of tables checks names."""
    import pyarrow

    unread = pyarrow.chunked_array([pyarrow.nulls(head.num_rows)])
    return pyarrow.table({name: head[name] if name in head.column_names else unread for name in types})


def _chunked(column: Any) -> Any:
    import pyarrow

    return pyarrow.chunked_array([column])


def _strings(name: str, column: Any, kind: points_pb2.ColumnKind.ValueType) -> Strings:
    """A column of strings, as it is stored; "" is missing."""
    import pyarrow
    from pyarrow import compute

    plain = str(column.type)
    if kind == points_pb2.COLUMN_KIND_LABEL:
        column = pyarrow.array(label_texts(_chunked(column)).tolist(), pyarrow.large_string())
    elif "string" in plain or plain.startswith(("int", "uint")):
        column = compute.fill_null(column.cast(pyarrow.large_string()), "")
    else:
        column = pyarrow.array(texts_of(_chunked(column)).tolist(), pyarrow.large_string())
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    found = Strings(starts - starts[0], np.frombuffer(data or b"", np.uint8)[starts[0] : starts[-1]])
    longest = LONGEST_ID if kind in NOT_FEATURES else LONGEST_STRING
    if np.diff(starts).max(initial=0) > longest:
        raise InvalidRequest("address", f"column {name!r} must have at most {longest} bytes in a row")
    return found


@contextmanager
def table_errors() -> Iterator[None]:
    """Turn errors about columns into errors about the request's field."""
    try:
        yield
    except TableError as error:
        raise InvalidRequest("table", str(error)) from error
