"""The order in which points are computed: neighbours are near each other."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_array_equal
from scipy.sparse import csr_array, random_array

from homophily.graph.order import gathered


def test_each_next_point_has_the_most_neighbours_before_it() -> None:
    matrix = csr_array(random_array((60, 60), density=0.08, rng=0) != 0)
    matrix = csr_array(matrix + matrix.T)
    order, dense = gathered(matrix), matrix.toarray()
    assert_array_equal(np.sort(order), np.arange(60))
    for n in range(1, 60):
        found = np.count_nonzero(dense[order[n:]][:, order[:n]] * (order[n:, None] != order[:n]), axis=1)
        assert found[0] == found.max()


def test_points_without_neighbours_are_in_the_order_too() -> None:
    assert_array_equal(gathered(csr_array((3, 3))), [0, 1, 2])
    assert gathered(csr_array((0, 0))).size == 0
