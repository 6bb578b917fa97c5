"""The pictures of a run, drawn from what is stored."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from homophily import HomophilyWarning
from homophily_client._pb import embedding_pb2, model_pb2
from homophily_client.names import EmbeddingName, ModelName
from homophily_service.storage.embeddings import (
    CANNOT_LINKS,
    CLUSTERS,
    COORDINATES,
    MUST_LINKS,
    VIOLATED_CANNOT_LINKS,
    VIOLATED_MUST_LINKS,
    load_embedding,
)
from homophily_service.storage.models import load_graph
from homophily_service.storage.solutions import CLASS_INDICES, SCORES
from homophily_service.storage.stores import Stores

_log = logging.getLogger(__name__)

# A map of more points would take the tracker longer than a minute; fewer points make no map.
_LEAST_MAPPED, _MOST_MAPPED = 4, 500_000
# Finer differences are invisible in a picture.
_MAP_TOLERANCE = 1e-3


def draw(stores: Stores, made: model_pb2.Model | embedding_pb2.Embedding) -> dict[str, bytes]:
    """The pictures of a model or an embedding, by the names of their files."""
    from homophily_service.plots import embedding_pictures, model_pictures
    from homophily_service.tracking.artifact import model_blob

    if isinstance(made, model_pb2.Model):
        arrays = stores.blobs.read(model_blob(stores, made), SCORES, CLASS_INDICES).arrays
        coordinates, mapped_by = _map_of(stores, made)
        return model_pictures(made, arrays[SCORES], arrays[CLASS_INDICES], coordinates=coordinates, mapped_by=mapped_by)
    row = stores.catalog.get(EmbeddingName.parse(made.name, "name"))
    names = [COORDINATES, MUST_LINKS, CANNOT_LINKS, VIOLATED_MUST_LINKS, VIOLATED_CANNOT_LINKS]
    arrays = stores.blobs.read(row.blob, *names, *([CLUSTERS] if made.cluster_count else [])).arrays
    given = load_embedding(stores, row.blob)[1]
    labels = dict(zip(given.label_points.tolist(), given.label_classes.tolist(), strict=True))
    return embedding_pictures(
        made,
        arrays[COORDINATES],
        arrays.get(CLUSTERS),
        labels=None if made.cluster_count else labels or None,
        must_link=arrays[MUST_LINKS],
        cannot_link=arrays[CANNOT_LINKS],
        violated_must=arrays[VIOLATED_MUST_LINKS],
        violated_cannot=arrays[VIOLATED_CANNOT_LINKS],
    )


def _map_of(stores: Stores, model: model_pb2.Model) -> tuple[Any, str]:
    """Coordinates to draw the model's points at: the newest map on its graph, or the graph's eigenvectors."""
    from homophily.graph.spectral import spectral_coordinates

    try:
        project = ModelName.parse(model.name, "name").project
        for row in stores.catalog.on_graph(EmbeddingName.collection, project, model.graph.digest):
            if embedding_pb2.Embedding.FromString(row.message).component_count > 1:
                return stores.blobs.read(row.blob, COORDINATES).arrays[COORDINATES], f"on the map {row.id}"
        if not _LEAST_MAPPED <= model.point_count <= _MOST_MAPPED:
            return None, ""
        graph = load_graph(stores, model.graph.digest, 1).graph
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HomophilyWarning)
            return spectral_coordinates(graph, 2, tolerance=_MAP_TOLERANCE, n_jobs=1)[1], "two spectral vectors"
    except Exception:
        _log.warning("%s has no map", model.name, exc_info=True)
        return None, ""
