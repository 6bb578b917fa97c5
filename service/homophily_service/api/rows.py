"""Columns of answers that are not stored as they are sent: whether a label was given, and the ids of points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from homophily_client._pb import embedding_pb2, model_pb2
from homophily_client._pb import points_pb2 as pb
from homophily_service.contract.errors import DataLoss
from homophily_service.contract.tables import LONGEST_ID, Strings
from homophily_service.storage.blobs.objects import StoredRows
from homophily_service.storage.solutions import IDS
from homophily_service.storage.stores import Stores


class Given:
    """Whether the label of each point was given; the labelled points are few."""

    row_bytes = 4

    def __init__(self, labelled: StoredRows) -> None:
        self._labelled = labelled.rows(0, labelled.shape[0])

    def rows(self, start: int, stop: int) -> NDArray[np.int32]:
        """1 for the labelled points of a range, 0 for the others."""
        return np.isin(np.arange(start, stop), self._labelled).astype(np.int32)


class Ids:
    """The ids of points."""

    #: At most.
    row_bytes = LONGEST_ID

    def __init__(self, starts: StoredRows, data: StoredRows) -> None:
        self._starts, self._data = starts, data

    def rows(self, start: int, stop: int) -> list[str]:
        """The ids of a range."""
        starts = self._starts.rows(start, stop + 1)
        data = self._data.rows(int(starts[0]), int(starts[-1]))
        ids: list[str] = Strings(starts - starts[0], data).decode().tolist()
        return ids


def ids_of(stores: Stores, described: model_pb2.Model | embedding_pb2.Embedding) -> Ids | None:
    """The ids of the points of a model or an embedding, which are stored with their graph; None if there are none."""
    if all(column.kind != pb.COLUMN_KIND_ID for column in described.schema.columns):
        return None
    path = stores.catalog.use_graph(described.graph.digest)
    if path is None:
        raise DataLoss(f"the graph of {described.name} is not there any more, and with it the ids of its points")
    return Ids(*stores.read_rows(path, *IDS))
