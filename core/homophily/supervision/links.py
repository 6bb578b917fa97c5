"""Must-link and cannot-link pairs: reading them, drawing them from labels, and what follows from them.

The energies that links enter are in :mod:`homophily.solve.map_energy`.
"""

from __future__ import annotations

import warnings
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from sklearn.utils import column_or_1d

from homophily.arrays import Floats
from homophily.exceptions import ContradictingLinksError, ContradictingLinksWarning
from homophily.parameters import wrong_parameter
from homophily.solve.link_pairs import Links as Links
from homophily.solve.link_pairs import Pairs as Pairs
from homophily.supervision.labels import _read_classes, class_array


class LinkGroups(NamedTuple):
    """What follows from links, without a list of pairs: groups of points, and which groups are apart."""

    #: (u,) the group of each point; most are alone in theirs.
    groups: NDArray[np.int64]
    #: (q, 2) pairs of groups, lower number first, each once, that belong apart.
    apart: Pairs


def check_links(
    must_link: Any,
    cannot_link: Any,
    points: int,
    *,
    more: Links | None = None,
    two_classes: bool = False,
    owner: str = "fit",
    stacklevel: int = 4,
) -> Links:
    """Links as a user gave them: None, or pairs of positions among the ``points``, in any order.

    ``more`` links are added to them. Links that contradict each other are kept, because an energy weighs links rather
    than trusting them; a :class:`~homophily.exceptions.ContradictingLinksWarning` shows an example. With
    ``two_classes`` it also warns of links that need a third class. Nothing is concluded from contradicting links, see
    :func:`close_links`. ``stacklevel`` is that of the caller of ``fit``, past scikit-learn's wrapper.
    """
    given = {"must_link": must_link, "cannot_link": cannot_link}
    links = Links(*(read_pairs(name, pairs, points, owner) for name, pairs in given.items()))
    if more is not None:
        both = (links.must, more.must), (links.cannot, more.cannot)
        links = Links(*(_tidy(np.vstack(pairs), points) for pairs in both))
    contradiction = find_contradiction(links, points)
    if contradiction is None and two_classes:
        contradiction = find_contradiction(links, points, two_classes=True)
    if contradiction is not None:
        warnings.warn(
            f"The links contradict each other: {contradiction}. They cannot all be obeyed, and nothing is concluded "
            "from them; remove one of these.",
            ContradictingLinksWarning,
            stacklevel=stacklevel,
        )
    return links


def read_pairs(name: str, pairs: Any, points: int, owner: str) -> Pairs:
    """Pairs of positions among ``points`` as a user gave them, each once, the smaller end first."""
    wrong = partial(wrong_parameter, name, owner)
    try:
        given = np.asarray([] if pairs is None else pairs)
    except ValueError:
        raise wrong("pairs (i, j) of points", "rows of different lengths") from None
    if given.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if given.ndim != 2 or given.shape[1] != 2:
        raise wrong("an array of shape (n_links, 2)", f"shape {given.shape}")
    if given.dtype.kind not in "iu":
        raise wrong("pairs of integers", f"{_show(given[0])} ({given.dtype})")
    outside = np.flatnonzero((given < 0).any(axis=1) | (given >= points).any(axis=1))
    if outside.size:
        raise wrong(f"pairs of positions from 0 to {points - 1}", _show(given[outside[0]]))
    itself = np.flatnonzero(given[:, 0] == given[:, 1])
    if itself.size:
        raise wrong("pairs of two different points", _show(given[itself[0]]))
    return _tidy(given.astype(np.int64), points)


def _show(pair: NDArray[Any]) -> str:
    return f"({', '.join(str(end) for end in pair.tolist())})"


def _tidy(pairs: Pairs, points: int) -> Pairs:
    """Smaller end first, each pair once, sorted."""
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    return np.stack(np.divmod(np.unique(low * points + high), points), axis=1)


def links_from_labels(y: ArrayLike) -> Links:
    """The fewest links from which all pairs of labelled points follow: s − C must-links and C(C − 1)/2 cannot-links.

    All pairs would be s²/2. In each class every point is linked to the class' first one, and the first ones of any two
    classes are linked apart. :func:`close_links` gives all pairs back; :func:`draw_links` draws some of them. −1, NaN,
    None and "" in ``y`` mean unlabelled.

    >>> links = links_from_labels([0, 0, -1, 1, 0])
    >>> links.must.tolist(), links.cannot.tolist()
    ([[0, 1], [0, 4]], [[0, 3]])
    """
    position = _class_positions(y)
    labelled = np.flatnonzero(position >= 0)
    _, first = np.unique(position[labelled], return_index=True)
    hubs = labelled[first]
    must = np.column_stack([hubs[position[labelled]], labelled])
    cannot = hubs[np.column_stack(np.triu_indices(len(hubs), k=1))]
    return Links(_tidy(must[must[:, 0] != must[:, 1]], len(position)), _tidy(cannot, len(position)))


def _class_positions(y: ArrayLike) -> NDArray[np.int64]:
    """The class of each point, counted from 0; −1 for points without label."""
    _, shares = _read_classes(column_or_1d(class_array(y)))
    return np.where(shares.any(axis=1), shares.argmax(axis=1) if shares.shape[1] else -1, -1).astype(np.int64)


def pair_matrix(pairs: Pairs, values: Floats, points: int) -> csr_array:
    """Symmetric matrix with a value at (i, j) and (j, i) of each pair."""
    both = np.concatenate([pairs, pairs[:, ::-1]]).T
    return csr_array(coo_array((np.tile(values, 2), tuple(both)), shape=(points, points)))


def draw_links(y: ArrayLike, n_must: int, n_cannot: int, random_state: Any = None) -> Links:
    """Different pairs of labelled points at random: up to ``n_must`` of one class and ``n_cannot`` of two."""
    position = _class_positions(y)
    labelled = np.flatnonzero(position >= 0)
    members = [labelled[position[labelled] == c] for c in range(position.max(initial=-1) + 1)]
    apart = np.column_stack(np.triu_indices(len(members), k=1))
    rng = np.random.default_rng(random_state)
    drawn = _some_inside(members, n_must, rng), _some_between(members, apart, n_cannot, rng)
    return Links(*(_tidy(pairs, len(position)) for pairs in drawn))


def find_groups(links: Links, points: int, *, two_classes: bool = False) -> LinkGroups:
    """Points that must be together as groups, and which groups are apart; linear in points and links.

    ``two_classes`` adds what follows when there are no more than two classes: apart from the same is together. Raises
    :class:`~homophily.exceptions.ContradictingLinksError` with an example chain of points.
    """
    contradiction = find_contradiction(links, points, two_classes=two_classes)
    if contradiction is not None:
        raise ContradictingLinksError(
            f"The links contradict each other: {contradiction}. Nothing can follow from them; remove one of these."
        )
    _, found = connected_components(_link_graph(links, points, two_classes), directed=False)
    groups: NDArray[np.int64] = found.astype(np.int64)
    if two_classes:
        # A group is what shares a place on the first side; it is apart from the group that its other side meets there.
        here, there = groups[:points], groups[points:]
        numbers = np.unique(here)
        groups = np.searchsorted(numbers, here)
        apart: Pairs = np.searchsorted(numbers, np.column_stack([here, there])[np.isin(there, numbers)])
    else:
        apart = groups[links.cannot]
    return LinkGroups(groups, _tidy(apart, int(groups.max(initial=-1)) + 1) if len(apart) else apart)


def close_links(
    links: Links, points: int, *, two_classes: bool = False, max_pairs: int = 100_000, random_state: Any = 0
) -> Links:
    """All links that follow: together with together is together, together with apart is apart.

    With ``two_classes`` also: apart with apart is together. Their number can grow as the square of the number given
    (from the labels of s points follow s²/2), so at most ``max_pairs`` of each kind are returned: all that were given,
    and of the others as many as there is room for, drawn at random. :func:`find_groups` needs no list of pairs.
    Raises :class:`~homophily.exceptions.ContradictingLinksError` with an example if links contradict each other.

    >>> links = close_links(Links(np.array([[0, 1], [1, 2]]), np.array([[2, 3]])), points=5)
    >>> links.must.tolist(), links.cannot.tolist()
    ([[0, 1], [0, 2], [1, 2]], [[0, 3], [1, 3], [2, 3]])
    """
    groups, apart = find_groups(links, points, two_classes=two_classes)
    rng = np.random.default_rng(random_state)
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(groups))[:-1])
    return Links(
        _with_given(links.must, _some_inside(members, max_pairs, rng), max_pairs, points),
        _with_given(links.cannot, _some_between(members, apart, max_pairs, rng), max_pairs, points),
    )


def _with_given(given: Pairs, following: Pairs, most: int, points: int) -> Pairs:
    following = _tidy(following, points)
    new = following[~np.isin(following @ [points, 1], given @ [points, 1])]
    room = max(0, most - len(given))
    if len(new) > room:
        new = new[np.linspace(0, len(new) - 1, room).astype(np.int64)]
    return _tidy(np.vstack([given, new]), points)


def _some_inside(members: list[NDArray[np.intp]], most: int, rng: np.random.Generator) -> Pairs:
    """Up to ``most`` different pairs inside groups, each as likely."""
    sizes = np.array([len(group) for group in members], dtype=np.int64)
    group, rank = _choose(sizes * (sizes - 1) // 2, most, rng)
    # Pair number r of a group is (row, column) below the diagonal: r = row (row − 1)/2 + column.
    row = ((1 + np.sqrt(1 + 8.0 * rank)) / 2).astype(np.int64)
    row -= row * (row - 1) // 2 > rank
    row += row * (row + 1) // 2 <= rank
    return _members(members, group, row, group, rank - row * (row - 1) // 2)


def _some_between(members: list[NDArray[np.intp]], apart: Pairs, most: int, rng: np.random.Generator) -> Pairs:
    """Up to ``most`` different pairs between groups, each as likely."""
    sizes = np.array([len(group) for group in members], dtype=np.int64)
    which, rank = _choose(sizes[apart[:, 0]] * sizes[apart[:, 1]], most, rng)
    first, second = apart[which].T
    return _members(members, first, rank // sizes[second], second, rank % sizes[second])


def _choose(counts: Pairs, most: int, rng: np.random.Generator) -> tuple[Pairs, Pairs]:
    """Which of the lists of the given lengths, and which entry of it; all of them or ``most`` at random."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    picked = np.arange(total) if total <= most else rng.choice(total, most, replace=False, shuffle=False)
    which = np.searchsorted(ends, picked, side="right")
    return which, picked - (ends - counts)[which] if len(ends) else picked


def _members(members: list[NDArray[np.intp]], a: Pairs, i: Pairs, b: Pairs, j: Pairs) -> Pairs:
    flat = np.concatenate([*members, np.empty(0, dtype=np.intp)]).astype(np.int64)
    starts = np.cumsum([0, *(len(group) for group in members)])
    return np.column_stack([flat[starts[a] + i], flat[starts[b] + j]])


def find_contradiction(links: Links, points: int, *, two_classes: bool = False) -> str | None:
    """The shortest example of links that contradict one given link, in words; None if all can be obeyed."""
    graph = _link_graph(links, points, two_classes)
    _, component = connected_components(graph, directed=False)
    if not two_classes:
        broken = links.cannot[component[links.cannot[:, 0]] == component[links.cannot[:, 1]]]
        if len(broken) == 0:
            return None
        i, j = broken[0]
        chain = "–".join(str(point) for point in _shortest_path(graph, i, j))
        return f"{chain} must be together, yet {i}–{j} must be apart"
    twice = np.flatnonzero(component[:points] == component[points:])
    if twice.size == 0:
        return None
    path = _shortest_path(graph, twice[0], twice[0] + points)
    words = [str(path[0])]
    for before, after in pairwise(path):
        words += ["with" if (before < points) == (after < points) else "apart from", str(after % points)]
    return f"of two classes, {' '.join(words)} would put {path[0]} apart from itself"


def _link_graph(links: Links, points: int, two_classes: bool) -> csr_array:
    """Must-links as edges. For two classes each point appears once per side, and cannot-links change sides."""
    pairs, size = links.must, points
    if two_classes:
        side = np.array([0, points])
        crossing = np.vstack([links.cannot + side, links.cannot + side[::-1]])
        pairs, size = np.vstack([links.must, links.must + points, crossing]), 2 * points
    return csr_array(coo_array((np.ones(len(pairs)), tuple(pairs.T)), shape=(size, size)))


def _shortest_path(graph: csr_array, start: int, end: int) -> list[int]:
    _, parent = breadth_first_order(graph, start, directed=False)
    path = [int(end)]
    while path[-1] != start:
        path.append(int(parent[path[-1]]))
    return path[::-1]
