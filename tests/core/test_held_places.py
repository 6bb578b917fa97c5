"""Which links hold a point in its place on a map."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.datasets import load_digits

from homophily import ERREmbedding, KNNGraph, ParameterError
from homophily.active import explain_place
from homophily.active.held_places import held_places
from homophily.active.situation import GIVES_UP
from homophily.supervision.links import check_links

X, Y = (part[:200] for part in load_digits(return_X_y=True))
MUST, CANNOT = [(0, 10), (3, 13), (0, 20)], [(0, 1), (40, 41)]


@pytest.fixture(scope="module")
def embedding() -> ERREmbedding:
    return ERREmbedding(max_iter=3).fit(X, must_link=MUST, cannot_link=CANNOT)


def walked(W: np.ndarray, ends: list[int], start: int) -> np.ndarray:
    """Where walks end, by following all of them step by step."""
    step = (1.0 - GIVES_UP) * W / np.maximum(W.sum(axis=1), 1e-300)[:, None]
    here, met = np.zeros(len(W)), np.zeros(len(W))
    here[start] = 1.0
    for _ in range(3000):
        met[ends] += here[ends]
        here[ends] = 0.0
        here = here @ step
    return met


@pytest.mark.parametrize("point", [0, 1, 30, 199])
def test_shares_are_those_of_walks_followed_step_by_step(embedding: ERREmbedding, point: int) -> None:
    one = explain_place(embedding, [point])[0]
    links = [*MUST, *CANNOT]
    ends = sorted({end for link in links for end in link})
    met = walked(embedding.graph_.W.toarray(), ends, point)
    count = {end: sum(end in link for link in links) for end in ends}
    expected = {link: sum(met[end] / count[end] for end in link) for link in links}
    found = {(link.first, link.second): link.share for link in one.links}
    assert found == {link: pytest.approx(share, abs=1e-8) for link, share in expected.items() if share > 0}
    assert sum(found.values()) + one.free == pytest.approx(1.0)
    assert [link.share for link in one.links] == sorted(found.values(), reverse=True)
    assert {(link.first, link.second) for link in one.links if link.together} <= set(MUST)


def test_a_linked_point_is_held_by_its_own_links_alone(embedding: ERREmbedding) -> None:
    one = explain_place(embedding, [40])[0]
    assert [(link.first, link.second, link.share, link.end) for link in one.links] == [(40, 41, 1.0, 40)]
    assert one.free == 0.0
    assert one.paths([40, 41])[0] == [40]


def test_a_path_leads_to_the_end_that_walks_meet(embedding: ERREmbedding) -> None:
    one = explain_place(embedding, [30])[0]
    W = embedding.graph_.W
    path = one.paths([one.links[0].end])[0]
    assert path[0] == 30
    assert path[-1] == one.links[0].end
    assert all(W[i, j] > 0 for i, j in pairwise(path))


def test_without_links_and_out_of_reach_of_them_a_place_is_free() -> None:
    apart = np.vstack([X, X + 1000.0])
    graph = KNNGraph().fit(apart)
    none, beyond = check_links(None, None, 400), check_links([(0, 10)], None, 400)
    for links in (none, beyond):
        one = held_places(graph, links, np.array([300]))[0]
        assert (one.links, one.free) == ((), pytest.approx(1.0))


def test_points_out_of_range_are_refused_by_name(embedding: ERREmbedding) -> None:
    with pytest.raises(ParameterError, match="positions from 0 to 199") as refused:
        explain_place(embedding, [200])
    assert refused.value.parameter == "points"
