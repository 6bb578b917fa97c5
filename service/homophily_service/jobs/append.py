"""Makes a dataset of an earlier one and more points."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from homophily_client._pb import dataset_pb2, job_pb2
from homophily_client.names import DatasetName
from homophily_service.contract.arrays import Points, parts_from_points, points_from_parts, shape_of
from homophily_service.contract.errors import LimitExceeded
from homophily_service.contract.names import parse_name
from homophily_service.contract.tables import Rows, Strings, size_of
from homophily_service.jobs.work import Work
from homophily_service.storage.records import ResourceRecord
from homophily_service.storage.sources import dataset_digest


def append_points(work: Work) -> bytes:
    """Join the points of two datasets; the result is an AppendPointsResult."""
    request = job_pb2.AppendPointsRequest.FromString(work.task.request)
    work.stage.plan("load", "save")
    work.stage.enter("load")
    first = work.source(request)
    more = work.stores.catalog.get(parse_name(DatasetName, request.added_dataset, "added_dataset"))
    base = dataset_pb2.Dataset.FromString(first.message)
    points = joined(*(_points(work, row) for row in (first, more)))
    work.stage.enter("save")
    arrays = parts_from_points(points)
    size = sum(array.nbytes for array in arrays.values())
    # Jobs that waited beside this one may have taken what was left when it was queued.
    work.reserve(size)
    sha256 = hashlib.sha256()
    for array in arrays.values():
        sha256.update(np.ascontiguousarray(array).data)
    work.stores.blobs.write(work.task.result_path, arrays, {"sha256": sha256.hexdigest()})
    dataset = dataset_pb2.Dataset(
        name=str(DatasetName(work.task.name.project, request.dataset_id or work.task.name.id)),
        shape=shape_of(points),
        sha256=sha256.digest(),
        size_bytes=size,
        description=request.description,
        base=dataset_pb2.DatasetBase(
            dataset=base.name, row_count=size_of(base.shape).rows, digest=dataset_digest(base)
        ),
    )
    dataset.create_time.GetCurrentTime()
    return job_pb2.AppendPointsResult(dataset=dataset).SerializeToString()


def _points(work: Work, row: ResourceRecord) -> Points:
    return points_from_parts(work.stores.read(row.blob).arrays, dataset_pb2.Dataset.FromString(row.message).shape)


def joined(first: Points, more: Any) -> Points:
    """The points of both; the check has seen to it that they are alike."""
    if isinstance(first, Rows):
        strings = map(_one_after_the_other, first.strings, more.strings)
        return Rows(first.schema, np.concatenate([first.numbers, more.numbers]), tuple(strings))
    if not isinstance(first, csr_array):
        return np.concatenate([first, more])
    data, indices = (np.concatenate([getattr(one, part) for one in (first, more)]) for part in ("data", "indices"))
    if len(data) > np.iinfo(first.indptr.dtype).max:
        raise LimitExceeded(f"points: {len(data)} values are more than {first.indptr.dtype} row starts can count")
    starts = np.concatenate([first.indptr, more.indptr[1:] + first.indptr[-1]]).astype(first.indptr.dtype)
    return csr_array((data, indices, starts), shape=(first.shape[0] + more.shape[0], first.shape[1]))


def _one_after_the_other(first: Strings, more: Strings) -> Strings:
    starts = np.concatenate([first.row_starts, more.row_starts[1:] + first.row_starts[-1]])
    return Strings(starts, np.concatenate([first.data, more.data]))
