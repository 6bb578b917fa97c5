"""The source of a job: a dataset, a model or an embedding, pinned by its content when the job is submitted.

Its name may be deleted and used for something else while the job waits.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from homophily_client._pb import dataset_pb2
from homophily_client.names import DatasetName, EmbeddingName, ModelName, ResourceName
from homophily_service.contract.errors import FailedPrecondition
from homophily_service.contract.names import parse_name
from homophily_service.storage.catalog import Catalog
from homophily_service.storage.records import ResourceRecord

# The fields of a request that name the job's source.
FIELDS: dict[str, type[ResourceName]] = {"dataset": DatasetName, "model": ModelName, "embedding": EmbeddingName}
# The fields of a request that hold labels.
LABELS = ("labels", "validation", "test")
# The fields of a request that name another dataset: with more points, or with edges between them.
BESIDES = ("added_dataset", "appended_dataset", "edges_dataset")


def dataset_digest(dataset: dataset_pb2.Dataset) -> str:
    """The SHA-256 of a dataset's bytes and of what they mean: layout, shape and types.

    The same bytes of another shape or type are other points. So are those that were appended to others: their graph may
    keep the recipe of these.
    """
    layout = str(dataset.shape.WhichOneof("layout"))
    sizes = getattr(dataset.shape, layout)
    names = ("rows", "columns", "data_type", *(("values", "index_type") if layout == "csr" else ()))
    described = [layout, dataset.sha256.hex(), *(getattr(sizes, name) for name in names)]
    if dataset.shape.HasField("schema"):
        described += [dataset.shape.schema.SerializeToString(deterministic=True).hex(), *dataset.shape.string_bytes]
    if dataset.HasField("base"):
        described.append(dataset.base.digest)
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def source_name(request: Any) -> ResourceName | None:
    """The dataset, model or embedding that a request names; None if it names none."""
    for field, kind in FIELDS.items():
        if field in request.DESCRIPTOR.fields_by_name and (name := getattr(request, field)):
            return parse_name(kind, name, field)
    return None


def source_digest(name: ResourceName, record: ResourceRecord) -> str:
    """The digest of a recorded dataset, model or embedding."""
    if isinstance(name, DatasetName):
        return dataset_digest(dataset_pb2.Dataset.FromString(record.message))
    # A path is never written twice.
    return hashlib.sha256(record.blob.encode()).hexdigest()


def other_datasets(request: Any) -> list[DatasetName]:
    """The datasets that a request names besides its source: of labels, of more points, and of edges."""
    known = request.DESCRIPTOR.fields_by_name
    named = {f"{field}.column.dataset": getattr(request, field).column.dataset for field in LABELS if field in known}
    named |= {field: getattr(request, field) for field in BESIDES if field in known}
    return [parse_name(DatasetName, name, field) for field, name in named.items() if name]


def digest_of(catalog: Catalog, request: Any) -> str:
    """The digest of everything that a request names; empty if it names nothing."""
    name = source_name(request)
    if name is None:
        return ""
    digests = [source_digest(one, catalog.get(one)) for one in (name, *other_datasets(request))]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def pinned(catalog: Catalog, request: Any, digest: str) -> ResourceRecord:
    """The record of a job's source; FailedPrecondition if a name has changed its meaning since it was submitted."""
    name = source_name(request)
    assert name is not None
    record = catalog.get(name)
    if digest and digest_of(catalog, request) != digest:
        names = " or ".join(map(str, (name, *other_datasets(request))))
        raise FailedPrecondition(
            f"{names} was deleted and created again after the job was submitted: submit the job again",
            reason="SOURCE_CHANGED",
        )
    return record
