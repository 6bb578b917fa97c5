"""Graphs of near points with edges that are known besides them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from homophily import ERRClassifier, IRRClassifier, KNNGraph, ParameterError
from homophily.estimators import graph_estimator
from homophily.storage import graph_state, restore_graph

X, Y = load_digits(return_X_y=True)
X, Y = X[:200], Y[:200]


def friends(seed: int = 0, count: int = 400) -> Any:
    """Edges within classes, with weights."""
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, len(Y), (2, 20 * count))
    chosen = np.flatnonzero((Y[i] == Y[j]) & (i < j))[:count]
    half = sparse.coo_array((rng.uniform(1, 9, len(chosen)), (i[chosen], j[chosen])), shape=(len(Y), len(Y)))
    return sparse.csr_array(half + half.T)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_both_kinds_of_edges_have_their_share_of_the_weight(share: float) -> None:
    edges, near = friends(), KNNGraph().fit(X).W
    found = KNNGraph(edge_share=share).fit(X, edges=edges)
    expected = (1 - share) * near.toarray() + share * edges.toarray() * near.sum() / edges.sum()
    np.testing.assert_allclose(found.W.toarray(), expected, atol=1e-12)
    assert found.W.sum() == pytest.approx(near.sum())
    # New points are near points only.
    np.testing.assert_allclose(found.attach(X[:3] + 0.1)[2], (1 - share) * KNNGraph().fit(X).attach(X[:3] + 0.1)[2])


def test_edges_help_where_near_points_do_not() -> None:
    rng = np.random.default_rng(0)
    few = np.full(len(Y), -1)
    few[:30] = Y[:30]
    noise = rng.normal(size=X.shape)
    errors = [
        np.mean(ERRClassifier().fit(graph, few).transduction_ != Y)
        for graph in (KNNGraph().fit(noise), KNNGraph().fit(noise, edges=friends(count=2000)))
    ]
    assert errors[0] > 0.5
    assert errors[1] < 0.1


def test_a_graph_with_edges_is_stored_with_them() -> None:
    graph = KNNGraph(edge_share=0.2).fit(X, edges=friends())
    again = restore_graph(graph_state(graph))
    assert (again.W != graph.W).nnz == 0
    for ours, theirs in zip(again.attach(X[:4] + 0.1), graph.attach(X[:4] + 0.1), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for one in (graph, again):
        with pytest.raises(ParameterError, match="cannot grow"):
            one.append(X[:2])


@pytest.mark.parametrize(
    ("edges", "parameters", "parameter"),
    [
        (np.ones((3, 3)), {}, "edges"),
        (np.triu(np.ones((200, 200))), {}, "edges"),
        (-np.ones((200, 200)), {}, "edges"),
        (np.full((200, 200), np.nan), {}, "edges"),
        (np.ones((200, 200)), {"metric": "affinity"}, "metric"),
    ],
)
def test_wrong_edges_are_refused(edges: Any, parameters: dict[str, Any], parameter: str) -> None:
    points = np.ones((200, 200)) if parameters else X
    with pytest.raises(ParameterError) as caught:
        KNNGraph(**parameters).fit(points, edges=edges)
    assert caught.value.parameter == parameter


def test_new_points_with_many_edges_take_no_room_beside_those_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    u = 400
    ring = sparse.coo_array((np.ones(u), (np.arange(u), (np.arange(u) + 1) % u)), shape=(u, u)).tocsr()
    y = np.full(u, -1)
    y[[0, u // 2]] = 0, 1
    model = IRRClassifier().fit(KNNGraph(metric="affinity").fit(ring + ring.T), y)
    rng = np.random.default_rng(0)
    rows = np.zeros((1000, u))
    rows[np.arange(1000), rng.integers(0, u, 1000)] = 1.0
    rows[::250] = 1.0
    rows[7] = 0.0
    expected = model.decision_function(rows)
    shapes = []
    attached = KNNGraph.attach_validated

    def seen(graph: KNNGraph, X: Any) -> Any:
        found = attached(graph, X)
        shapes.append(found[0].shape)
        return found

    monkeypatch.setattr(KNNGraph, "attach_validated", seen)
    monkeypatch.setattr(graph_estimator, "BLOCK_ENTRIES", 2000)
    np.testing.assert_array_equal(model.decision_function(sparse.csr_array(rows)), expected)
    assert sum(m for m, _ in shapes) == 1000
    assert max(m * k for m, k in shapes) <= 2000
