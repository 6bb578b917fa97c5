"""Points divided between machines: what the capacity page promises of them, on a small graph."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.data import draw_labels, helices
from benchmarks.partitions import Part, PartitionedEnergy, divide
from homophily import KNNGraph
from homophily.energy import LabelEnergy
from homophily.relationship.dense import DenseEngine


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


def test_every_point_is_in_one_part() -> None:
    X, _ = helices(101)
    parts = divide(X, 7)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(101))
