"""Links, given directly or as labels: read from messages into arrays, with every field checked.

The API uses this module and never computes, so the core is not imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from homophily_client._pb import embedding_pb2 as pb
from homophily_service.contract.errors import InvalidRequest

Pairs = NDArray[np.int64]

# Points of a chain that an error message shows at most.
SHOWN_POINTS = 12


class Links(NamedTuple):
    """Pairs of points that belong together, and apart; (·, 2) each."""

    must: Pairs
    cannot: Pairs


def join(*several: Links) -> Links:
    """Concatenate links."""
    return Links(np.vstack([links.must for links in several]), np.vstack([links.cannot for links in several]))


def read_links(message: pb.Links, n_points: int, field: str, *, max_links: int) -> Links:
    """Read the links of a request, in their order."""
    found = len(message.must) + len(message.cannot)
    if found > max_links:
        raise InvalidRequest(field, f"must be at most {max_links} links; got {found}")
    return Links(
        read_pairs(message.must, n_points, f"{field}.must"),
        read_pairs(message.cannot, n_points, f"{field}.cannot"),
    )


def read_pairs(links: Sequence[pb.Link], n_points: int, field: str) -> Pairs:
    """Read pairs of points, in their order."""
    ends = (end for link in links for end in (link.first, link.second))
    pairs = np.fromiter(ends, dtype=np.int64, count=2 * len(links)).reshape(-1, 2)
    for end, name in enumerate(("first", "second")):
        outside = np.flatnonzero((pairs[:, end] < 0) | (pairs[:, end] >= n_points))
        if outside.size:
            place = outside[0]
            raise InvalidRequest(
                f"{field}[{place}].{name}", f"must be between 0 and {n_points - 1}; got {pairs[place, end]}"
            )
    itself = np.flatnonzero(pairs[:, 0] == pairs[:, 1])
    if itself.size:
        place = itself[0]
        raise InvalidRequest(f"{field}[{place}]", f"must be two different points; got {pairs[place, 0]} twice")
    return pairs


def to_message(links: Links, most: int) -> pb.Links:
    """The first ``most`` links of each kind, as a message."""
    must, cannot = ([pb.Link(first=first, second=second) for first, second in pairs[:most].tolist()] for pairs in links)
    return pb.Links(must=must, cannot=cannot)


def each_once(pairs: Pairs) -> Pairs:
    """Sort the pairs, each with the smaller point first, and drop duplicates."""
    return np.unique(np.sort(pairs, axis=1), axis=0)


def without(links: Links, withdrawn: Links, field: str) -> Links:
    """The links except the withdrawn ones; InvalidRequest if one of those is not among them."""
    left = []
    for kind, pairs, removed in zip(("must", "cannot"), links, withdrawn, strict=True):
        known, places = np.unique(np.sort(np.vstack([pairs, removed]), axis=1), axis=0, return_inverse=True)
        places = places.reshape(-1)
        pair_places, removed_places = places[: len(pairs)], places[len(pairs) :]
        remains = np.zeros(len(known), dtype=bool)
        remains[pair_places] = True
        missing = np.flatnonzero(~remains[removed_places])
        if missing.size:
            first, second = removed[missing[0]]
            raise InvalidRequest(
                f"{field}.{kind}[{missing[0]}]", f"the embedding has no such link between {first} and {second}"
            )
        remains[removed_places] = False
        left.append(pairs[remains[pair_places]])
    return Links(*left)


def links_of_labels(points: NDArray[np.int64], classes: NDArray[Any]) -> Links:
    """The fewest links from which those of all pairs of labelled points follow.

    All points of a class are linked to its first one, and the first ones of any two classes are linked apart.
    """
    _, first, positions = np.unique(classes, return_index=True, return_inverse=True)
    hubs = points[first]
    must = np.column_stack([hubs[positions], points])
    below, above = np.triu_indices(len(hubs), k=1)
    return Links(must[must[:, 0] != must[:, 1]], np.column_stack([hubs[below], hubs[above]]))


def check_closure(given: Links, others: Links, closure: int) -> None:
    """Refuse links that contradict each other, if a closure is asked for."""
    if closure not in (pb.LINK_CLOSURE_TRANSITIVE, pb.LINK_CLOSURE_TWO_CLASS):
        return
    found = find_contradiction(join(given, others), two_classes=closure == pb.LINK_CLOSURE_TWO_CLASS)
    if found is not None:
        is_given = found.cannot is not None and found.cannot < len(given.cannot)
        field = f"links.cannot[{found.cannot}]" if is_given else "links"
        raise InvalidRequest(field, f"contradicts other links: {found.sentence}")


class Contradiction(NamedTuple):
    """Links that cannot all be obeyed: an example in words, and the position of its cannot-link, if it has one."""

    sentence: str
    cannot: int | None


def find_contradiction(links: Links, *, two_classes: bool) -> Contradiction | None:
    """The first contradiction among links; with ``two_classes``, points apart from the same point belong together."""
    from scipy.sparse.csgraph import connected_components  # takes a fifth of the API's start to import

    points, places = np.unique(np.vstack(links), return_inverse=True)
    together, apart = np.split(places.reshape(-1, 2), [len(links.must)])
    size = len(points)
    if not two_classes:
        graph = _graph(together, size)
        _, component = connected_components(graph, directed=False)
        broken = np.flatnonzero(component[apart[:, 0]] == component[apart[:, 1]])
        if broken.size == 0:
            return None
        start, end = apart[broken[0]]
        chain = points[_path(graph, start, end)].tolist()
        shown_chain = "–".join(map(str, _shortened(chain)))
        return Contradiction(
            f"{points[start]} and {points[end]} belong apart, but together by the chain of must-links {shown_chain}",
            int(broken[0]),
        )
    # Each point is in the graph once per class; must-links stay within a class, cannot-links change it.
    sides = np.array([0, size])
    graph = _graph(np.vstack([together, together + size, apart + sides, apart + sides[::-1]]), 2 * size)
    _, component = connected_components(graph, directed=False)
    broken = np.flatnonzero(component[:size] == component[size:])
    if broken.size == 0:
        return None
    path = _path(graph, broken[0], broken[0] + size)
    words = [str(points[path[0]])]
    for before, after in pairwise(path):
        words.append(f"{'with' if (before < size) == (after < size) else 'apart from'} {points[after % size]}")
    return Contradiction(f"of two classes, {', '.join(_shortened(words))} would be apart from itself", None)


def _graph(edges: NDArray[np.intp], size: int) -> csr_array:
    return csr_array(coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(size, size)))


def _path(graph: csr_array, start: int, end: int) -> list[int]:
    from scipy.sparse.csgraph import breadth_first_order

    _, parent = breadth_first_order(graph, start, directed=False)
    path = [int(end)]
    while path[-1] != start:
        path.append(int(parent[path[-1]]))
    return path[::-1]


def _shortened(chain: list[Any]) -> list[Any]:
    half = SHOWN_POINTS // 2
    return chain if len(chain) <= SHOWN_POINTS else [*chain[:half], "…", *chain[-half:]]
