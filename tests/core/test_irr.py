import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array, diags_array
from sklearn.exceptions import ConvergenceWarning

from homophily.graph.laplacian import choose_method
from homophily.solve.irr import irr_energy, solve_irr


def weights(u, seed=0, components=1):
    """Random weights around a ring in each component, so that each is connected."""
    rng = np.random.default_rng(seed)
    W = np.zeros((u, u))
    for members in np.array_split(np.arange(u), components):
        m = len(members)
        block = (rng.random((m, m)) < 6 / m) * rng.random((m, m))
        block[np.arange(m), (np.arange(m) + 1) % m] = 0.5
        W[np.ix_(members, members)] = block
    W = W + W.T
    np.fill_diagonal(W, 0)
    return W


def laplacian(W, normalized=True):
    d = W.sum(axis=1)
    if not normalized:
        return csr_array(np.diag(d) - W)
    return csr_array(np.eye(len(W)) - W / np.sqrt(np.outer(d, d)))


def problem(u, n, labels, seed=0):
    rng = np.random.default_rng(seed)
    h = np.zeros(u)
    h[rng.choice(u, labels, replace=False)] = rng.uniform(0.1, 3, labels)
    return h, rng.normal(size=(u, n))


def dense_solution(L, h, T, lambda1, power):
    """Gaussian elimination on the system scaled to a unit diagonal, with refinement in extended precision."""
    A = np.diag(h) + lambda1 * np.linalg.matrix_power(L.toarray().astype(np.longdouble), power)
    b = h[:, None] * T
    s = 1 / np.sqrt(np.diag(A).astype(float))
    scaled = (s[:, None] * A * s).astype(float)
    x = np.zeros(T.shape, dtype=np.longdouble)
    for _ in range(6):
        x += s[:, None] * np.linalg.solve(scaled, (s[:, None] * (b - A @ x)).astype(float))
    return x.astype(float)


def relative_error(x, reference):
    return np.linalg.norm(x - reference) / np.linalg.norm(reference)


@pytest.mark.parametrize("method", ["cg", "direct"])
@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("lambda1", [1e-6, 1e-2, 1e2])
@pytest.mark.parametrize("normalized", [True, False])
def test_solution_equals_the_dense_one(method, power, lambda1, normalized):
    L = laplacian(weights(80), normalized)
    for n in (1, 2, 10):
        h, T = problem(80, n, labels=8, seed=n)
        result = solve_irr(L, h, T, lambda1, power=power, method=method, tolerance=1e-13)
        assert result.method == method
        assert relative_error(result.solution, dense_solution(L, h, T, lambda1, power)) <= 1e-10


def test_default_tolerance_is_good_to_ten_digits():
    L = laplacian(weights(120))
    h, T = problem(120, 3, labels=10)
    for power in (1, 2):
        result = solve_irr(L, h, T, 1e-2, power=power, method="cg")
        assert relative_error(result.solution, dense_solution(L, h, T, 1e-2, power)) <= 1e-10


def test_a_power_equals_the_matrix_power_given_as_a_matrix():
    L = laplacian(weights(200))
    h, T = problem(200, 2, labels=20)
    assert_allclose(solve_irr(L, h, T, 0.1, power=2).solution, solve_irr(L @ L, h, T, 0.1).solution, atol=1e-10)


def test_solution_is_the_minimiser_of_the_energy():
    L = laplacian(weights(100))
    h, T = problem(100, 2, labels=10)
    F = solve_irr(L, h, T, 0.1, power=2).solution
    least = irr_energy(F, L, h, T, 0.1, power=2)
    rng = np.random.default_rng(0)
    for _ in range(10):
        assert irr_energy(F + 1e-3 * rng.normal(size=F.shape), L, h, T, 0.1, power=2) > least


@pytest.mark.parametrize("method", ["cg", "direct"])
def test_components_without_label_are_zero_and_change_nothing_elsewhere(method):
    L = laplacian(weights(120, components=3))
    h, T = problem(120, 2, labels=60)
    h[40:80] = 0
    whole = solve_irr(L, h, T, 1e-2, method=method).solution
    rest = np.r_[0:40, 80:120]
    assert_array_equal(whole[40:80], 0)
    assert_allclose(whole[rest], solve_irr(csr_array(L[rest][:, rest]), h[rest], T[rest], 1e-2).solution, atol=1e-10)


def test_no_confidence_at_all_gives_zeros():
    assert_array_equal(solve_irr(laplacian(weights(30)), np.zeros(30), np.ones((30, 2)), 1.0).solution, 0)


@pytest.mark.parametrize("method", ["cg", "direct"])
def test_isolated_points_keep_their_own_target(method):
    W = weights(30)
    L = csr_array(np.pad(laplacian(W).toarray(), (0, 2)))
    h, T = problem(32, 1, labels=5)
    h[30], h[31] = 2.0, 0.0
    F = solve_irr(L, h, T, 1e-2, method=method).solution
    assert_allclose(F[30], T[30])
    assert_array_equal(F[31], 0)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("power", [1, 2])
def test_the_null_vector_on_a_component_without_label_is_free(normalized, power):
    W = weights(60, components=2)
    L = laplacian(W, normalized)
    h, T = problem(60, 2, labels=40)
    h[30:] = 0
    F = np.random.default_rng(1).normal(size=(60, 2))
    null = np.where(np.arange(60) >= 30, np.sqrt(W.sum(axis=1)) if normalized else 1.0, 0.0)
    before = irr_energy(F, L, h, T, 0.5, power=power)
    assert_allclose(irr_energy(F + 7.0 * null[:, None], L, h, T, 0.5, power=power), before, rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]), st.sampled_from(["cg", "direct"]))
def test_permuted_points_permute_the_answer(seed, power, method):
    L = laplacian(weights(50, seed))
    h, T = problem(50, 2, labels=8, seed=seed)
    order = np.random.default_rng(seed).permutation(50)
    F = solve_irr(L, h, T, 1e-2, power=power, method=method).solution
    permuted = solve_irr(csr_array(L[order][:, order]), h[order], T[order], 1e-2, power=power, method=method).solution
    assert relative_error(permuted, F[order]) <= 1e-9


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 100), st.sampled_from([1, 2]))
def test_scaling_the_weights_is_scaling_lambda(seed, scale, power):
    W = weights(50, seed)
    h, T = problem(50, 1, labels=8, seed=seed)
    for normalized, factor in ((True, 1.0), (False, scale**power)):
        scaled = solve_irr(laplacian(scale * W, normalized), h, T, 1e-2, power=power, method="direct").solution
        plain = solve_irr(laplacian(W, normalized), h, T, 1e-2 * factor, power=power, method="direct").solution
        assert relative_error(scaled, plain) <= 1e-9


def big_problem():
    u = 20_000
    rng = np.random.default_rng(0)
    rows, columns = np.repeat(np.arange(u), 6), rng.integers(0, u, 6 * u)
    W = csr_array((rng.uniform(0.1, 1, 6 * u), (rows, columns)), shape=(u, u))
    W = csr_array(W + W.T)
    root = diags_array(1 / np.sqrt(W.sum(axis=1)))
    return csr_array(diags_array(np.ones(u)) - root @ W @ root), *problem(u, 3, labels=50)


def test_repeated_runs_and_thread_counts_agree_to_the_bit():
    L, h, T = big_problem()
    for power in (1, 2):
        first = solve_irr(L, h, T, 1e-6, power=power, n_jobs=2)
        assert first.method == "cg"
        for n_jobs in (1, 2):
            assert_array_equal(solve_irr(L, h, T, 1e-6, power=power, n_jobs=n_jobs).solution, first.solution)


def test_columns_do_not_influence_each_other():
    L, h, T = big_problem()
    T[:, 1] = 0
    together = solve_irr(L, h, T, 1e-2, method="cg").solution
    assert_array_equal(together[:, 1], 0)
    assert_allclose(together[:, [2]], solve_irr(L, h, T[:, [2]], 1e-2, method="cg").solution, atol=1e-9)


def test_a_warm_start_needs_fewer_iterations():
    L, h, T = big_problem()
    cold = solve_irr(L, h, T, 1e-2, method="cg")
    assert solve_irr(L, h, T, 1e-2, method="cg", initial=cold.solution).iterations == 0
    near = solve_irr(L, h, T, 1e-2, method="cg", initial=cold.solution + 1e-6)
    assert near.iterations < cold.iterations
    assert relative_error(near.solution, cold.solution) <= 1e-9


def test_too_few_iterations_warn_with_the_residual():
    L, h, T = big_problem()
    with pytest.warns(ConvergenceWarning, match="residual of .* after 3 iterations"):
        result = solve_irr(L, h, T, 1e-2, method="cg", max_iter=3)
    assert result.iterations == 3
    assert result.residual > 1e-12


def test_a_system_that_iterates_too_long_is_factorised_instead():
    """Weights over many powers of ten: the graph's shape promises few iterations."""
    W = weights(600)
    spread = 10.0 ** np.random.default_rng(1).uniform(-8, 0, W.shape)
    L = laplacian(W * spread * spread.T)
    h, T = problem(600, 2, labels=10)
    assert choose_method(L, 2, 2) == "cg"
    result = solve_irr(L, h, T, 1.0, power=2)
    assert result.method == "direct"
    assert result.iterations > 0
    assert result.residual < 1e-12


def test_the_callback_sees_every_iteration_and_can_cancel():
    L, h, T = big_problem()
    seen = []

    def cancel(iteration, residual):
        seen.append((iteration, residual))
        if iteration == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_irr(L, h, T, 1e-2, method="cg", callback=cancel)
    assert [iteration for iteration, _ in seen] == [1, 2, 3, 4]


def test_long_thin_graphs_are_factorised_and_wide_ones_iterated():
    u = 20_000
    chain = diags_array([np.full(u - 1, -0.5), np.ones(u), np.full(u - 1, -0.5)], offsets=[-1, 0, 1])
    assert choose_method(csr_array(chain), 2, 1) == "direct"
    assert choose_method(big_problem()[0], 2, 1) == "cg"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lambda1": 0.0}, "'lambda1' parameter of solve_irr must be a float"),
        ({"lambda1": np.nan}, "'lambda1' parameter"),
        ({"power": 0}, "'power' parameter"),
        ({"confidence": np.full(20, -1.0)}, "'confidence' parameter"),
        ({"confidence": np.ones(19)}, "'confidence' parameter"),
        ({"targets": np.full((20, 1), np.nan)}, "'targets' parameter"),
        ({"targets": np.ones(20)}, "'targets' parameter"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"confidence": np.ones(20), "targets": np.ones((20, 1)), "lambda1": 1.0} | change
    with pytest.raises(ValueError, match=message):
        solve_irr(laplacian(weights(20)), **arguments)


@pytest.mark.parametrize("power", [1, 2])
def test_many_columns_share_directions_and_end_at_the_same_values(power):
    L = laplacian(weights(3000, seed=4))
    h, T = problem(3000, 7, 60, seed=5)
    # Columns that are zero, or depend on others, leave fewer directions than columns.
    T[:, 2], T[:, 5] = 0.0, T[:, 0] - 2 * T[:, 1]
    together = solve_irr(L, h, T, 1e-2, power=power, method="cg")
    alone = [solve_irr(L, h, T[:, [c]], 1e-2, power=power, method="cg") for c in range(7)]
    assert relative_error(together.solution, np.hstack([one.solution for one in alone])) <= 1e-9
    assert together.residual <= 1e-12
    assert not together.solution[:, 2].any()
    assert together.iterations <= max(one.iterations for one in alone)


def test_many_columns_agree_to_the_bit_for_any_thread_count():
    L = laplacian(weights(5000, seed=6))
    h, T = problem(5000, 6, 50, seed=7)
    first = solve_irr(L, h, T, 1e-2, power=2, method="cg", n_jobs=1)
    again = solve_irr(L, h, T, 1e-2, power=2, method="cg", n_jobs=3)
    assert_array_equal(first.solution, again.solution)
