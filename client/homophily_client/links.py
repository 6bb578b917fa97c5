"""Converts links as users write them to messages."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from homophily_client._pb import embedding_pb2

Pairs = Iterable[tuple[int, int]]

#: Lets the graph decide how many clusters there are.
SUGGEST = "suggest"


def links_message(must: Pairs, cannot: Pairs, argument: str) -> embedding_pb2.Links:
    """Return a message with links; ``argument`` is the pattern of the arguments' names."""
    return embedding_pb2.Links(
        must=_pairs(must, argument.format("must")), cannot=_pairs(cannot, argument.format("cannot"))
    )


def _pairs(pairs: Pairs, argument: str) -> list[embedding_pb2.Link]:
    links = np.asarray(pairs if isinstance(pairs, np.ndarray) else list(pairs))
    if links.size and (links.ndim != 2 or links.shape[1] != 2 or links.dtype.kind not in "iu"):
        raise ValueError(f"{argument} must be pairs of row numbers. Got an array of shape {links.shape} instead.")
    return [embedding_pb2.Link(first=first, second=second) for first, second in links.tolist()]


def number_of_clusters(n_clusters: int | str | None) -> int | None:
    """Return the number that the service expects, where 0 means "suggest"."""
    if isinstance(n_clusters, str):
        if n_clusters != SUGGEST:
            raise ValueError(f"n_clusters must be a number, {SUGGEST!r} or None. Got {n_clusters!r} instead.")
        return 0
    if n_clusters is not None and n_clusters < 2:
        raise ValueError(f"n_clusters must be at least 2. Got {n_clusters} instead.")
    return n_clusters
