import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, random_array

from homophily.graph.laplacian import Blocks, sparse_product


@pytest.mark.parametrize("columns", [None, 1, 2, 3, 7, 10, 40])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_product_equals_scipys(columns, index):
    rng = np.random.default_rng(0)
    A = csr_array(random_array((5000, 5000), density=0.003, rng=rng, format="csr"))
    A.indices, A.indptr = A.indices.astype(index), A.indptr.astype(index)
    X = rng.normal(size=5000 if columns is None else (5000, columns))
    assert_allclose(sparse_product(A, X), A @ X, rtol=1e-13, atol=1e-13)
    assert_array_equal(sparse_product(A, X, n_jobs=1), sparse_product(A, X, n_jobs=2))


@pytest.mark.parametrize("columns", [1, 2, 5, 16, 33, 70])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_product_is_added_to_other_arrays(columns, kind):
    rng = np.random.default_rng(0)
    A = csr_array(random_array((300, 300), density=0.03, rng=rng, format="csr", dtype=kind))
    X, Y, Z = rng.normal(size=(3, 300, columns)).astype(kind)
    out = np.empty_like(X)
    Blocks(A, columns, 2).multiply(A, X, out, Y, Z, 0.5, -2.0)
    assert_allclose(out, A @ X + 0.5 * Y - 2.0 * Z, atol=1e-5 if kind is np.float32 else 1e-12)


def test_product_of_empty_matrices_is_empty():
    assert sparse_product(csr_array((0, 0)), np.empty((0, 3))).shape == (0, 3)
    assert_array_equal(sparse_product(csr_array((4, 4)), np.ones(4)), np.zeros(4))
