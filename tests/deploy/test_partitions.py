"""Points divided between machines: what the capacity page promises of them, on a small graph."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from benchmarks.data import draw_labels, helices
from benchmarks.partitions import Network, Part, PartitionedEnergy, PartitionedPreconditioner, divide
from homophily import IRRClassifier, KNNGraph
from homophily.relationship.chebyshev import ChebyshevEngine
from homophily.relationship.dense import DenseEngine
from homophily.solve.label_energy import LabelEnergy, PolynomialPreconditioner
from homophily.solve.nonlinear_cg import NonlinearCG


@pytest.mark.parametrize("count", [1, 2, 5])
def test_parts_have_the_energy_and_gradient_of_the_whole(count: int) -> None:
    X, y = helices(300)
    few = draw_labels(y, 20, seed=0)
    G = KNNGraph().fit(X).laplacian()
    confidence, targets = (few >= 0) * 1.0, np.where(few >= 0, 2.0 * few - 1.0, 0.0)[:, None]
    start = np.random.default_rng(0).normal(size=(300, 1))
    whole = LabelEnergy(G, 1, confidence, targets, 0.01, DenseEngine(G, 0.5), 0.001)
    parts = [Part.cut_out(G, owned, confidence, targets) for owned in divide(X, count)]
    energy = PartitionedEnergy(parts, 0.5, 0.01, 0.001, start)
    # The second is outside of the window that was agreed on at the start.
    for evaluation, F in enumerate((start, 3.0 * start - 1.0)):
        (found, slope), (expected, true_slope) = energy(F), whole(F)
        assert found == pytest.approx(expected, rel=1e-10)
        np.testing.assert_allclose(slope, true_slope, rtol=0, atol=1e-9 * np.abs(true_slope).max())
        assert (energy.network.reductions == 1) == (evaluation == 0)


@pytest.mark.parametrize("count", [2, 8])
def test_parts_find_the_solution_of_the_whole(count: int) -> None:
    X, y = helices(2_000)
    few = draw_labels(y, 40, seed=0)
    graph = KNNGraph().fit(X)
    G = csr_array(graph.laplacian())
    confidence, targets = (few >= 0) * 1.0, np.where(few >= 0, 2.0 * few - 1.0, 0.0)[:, None]
    start = IRRClassifier(power=1, lambda1=0.01).fit(graph, few).solution_[:, :1]
    whole = LabelEnergy(G, 1, confidence, targets, 0.01, ChebyshevEngine(G, 0.5), 1e-2 / 2_000)
    expected = NonlinearCG(whole, 200, 0.1, PolynomialPreconditioner(G, 1, confidence, 0.03)).run(start)

    parts = [Part.cut_out(G, owned, confidence, targets) for owned in divide(X, count)]
    energy = PartitionedEnergy(parts, 0.5, 0.01, 1e-2 / 2_000, start)
    precondition = PartitionedPreconditioner(energy, 0.03)
    energy.network = Network()
    found = NonlinearCG(energy, 200, 0.1, precondition).run(start)
    assert found.iteration == expected.iteration > 1
    np.testing.assert_allclose(found.x, expected.x, rtol=0, atol=1e-9)
    assert ((found.x > 0) == (expected.x > 0)).all()
    # Of points only those at the boundary cross: once an evaluation, and for each product of the preconditioner.
    crossing = 8 * sum(part.ghosts.size for part in parts)
    products = (found.iteration + 1) * (PolynomialPreconditioner.STEPS - 1)
    assert energy.network.exchanged == crossing * (found.n_evaluations + products)
    assert energy.network.reductions >= found.n_evaluations
    assert energy.network.largest < 10_000


def test_every_point_is_in_one_part() -> None:
    X, _ = helices(101)
    parts = divide(X, 7)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(101))
