"""Embeddings as stored objects: what their arrays are called, how they are written and read.

The API reads single arrays of them; the core is not imported here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily_service.contract.errors import DataLoss
from homophily_service.contract.labels import TEXT
from homophily_service.contract.links import Links
from homophily_service.storage.blobs.objects import Blobs
from homophily_service.storage.stores import Stores

COORDINATES, CLUSTERS = "coordinates", "clusters"
MUST_LINKS, CANNOT_LINKS = "must_links", "cannot_links"
VIOLATED_MUST_LINKS, VIOLATED_CANNOT_LINKS = "violated_must_links", "violated_cannot_links"
# The links as they were given, without those inferred from labels, and the labels.
GIVEN_MUST_LINKS, GIVEN_CANNOT_LINKS = "given_must_links", "given_cannot_links"
LABEL_POINTS, LABEL_CLASSES = "label_points", "label_classes"
# Raise it when arrays change their meaning; every version ever written stays readable.
VERSION = 1


class Given(NamedTuple):
    """The links and labels that were given so far."""

    links: Links
    label_points: NDArray[np.int64]
    #: Strings or integers, one for each of the points.
    label_classes: NDArray[Any]


def save_embedding(
    blobs: Blobs,
    path: str,
    coordinates: NDArray[np.float64],
    clusters: NDArray[np.int32] | None,
    links: Links,
    violated: Links,
    given: Given,
) -> int:
    """Write an embedding; returns its bytes."""
    classes, positions = np.unique(given.label_classes, return_inverse=True)
    arrays: dict[str, NDArray[Any]] = {
        COORDINATES: coordinates,
        MUST_LINKS: links.must,
        CANNOT_LINKS: links.cannot,
        VIOLATED_MUST_LINKS: violated.must,
        VIOLATED_CANNOT_LINKS: violated.cannot,
        GIVEN_MUST_LINKS: given.links.must,
        GIVEN_CANNOT_LINKS: given.links.cannot,
        LABEL_POINTS: given.label_points,
        LABEL_CLASSES: positions.reshape(-1).astype(np.int32),
    }
    if clusters is not None:
        arrays[CLUSTERS] = clusters
    document = {"kind": "embedding", "version": VERSION, "classes": classes.tolist()}
    return blobs.write(path, {name: np.ascontiguousarray(array) for name, array in arrays.items()}, document)


def load_embedding(stores: Stores | Blobs, path: str) -> tuple[NDArray[np.float64], Given]:
    """The map to continue from, and the links and labels that were given for it."""
    names = COORDINATES, GIVEN_MUST_LINKS, GIVEN_CANNOT_LINKS, LABEL_POINTS, LABEL_CLASSES
    stored = stores.read(path, *names)
    if (stored.document.get("kind"), stored.document.get("version")) != ("embedding", VERSION):
        raise DataLoss(f"{path} is not an embedding that this version of the service can read")
    coordinates, must, cannot, points, positions = (stored.arrays[name] for name in names)
    values = stored.document["classes"]
    dtype = TEXT if values and isinstance(values[0], str) else np.int64
    return coordinates, Given(Links(must, cannot), points, np.array(values, dtype=dtype)[positions])
