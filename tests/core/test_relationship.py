"""The function over the engines: which one is chosen, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import coo_array, csc_array, csr_array

from homophily import ApproximationWarning, relationship_energy
from homophily.relationship import choose
from homophily.relationship.cells import CellEngine
from homophily.relationship.chebyshev import ChebyshevEngine
from homophily.relationship.choose import ENGINE_NAMES, choose_engine, make_engine
from homophily.relationship.dense import DenseEngine
from homophily.relationship.functions import CAUCHY, RELATIONSHIPS
from homophily.relationship.nufft import NufftEngine
from homophily.relationship.nystrom import NystromEngine
from homophily.relationship.tiles import TileEngine

from . import oracle
from .oracle import knn_weights, laplacian, relative_error


def values(u, n, seed=0):
    return np.random.default_rng(seed).normal(size=(u, n))


@pytest.mark.parametrize(
    ("points", "columns", "sigma_f", "name"),
    [
        (10, 1, 1.0, "chebyshev"),
        (9_000, 1, 0.01, "chebyshev"),
        (10, 1, 1e-9, "cells"),
        (500, 2, 1.0, "tiles"),
        (2_000, 2, 1.0, "cells"),
        (2_000, 3, 1.0, "tiles"),
        (6_000, 3, 1.0, "cells"),
        (6_000, 3, 1e-3, "cells"),
        (2_000, 4, 1.0, "tiles"),
        (6_000, 4, 1.0, "nystrom"),
        (6_000, 10, 1.0, "nystrom"),
    ],
)
def test_engine_follows_points_columns_and_range(points, columns, sigma_f, name):
    assert choose_engine(values(points, columns), sigma_f) == name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("auto", ChebyshevEngine),
        ("dense", DenseEngine),
        ("tiles", TileEngine),
        ("chebyshev", ChebyshevEngine),
        ("cells", CellEngine),
        ("nufft", NufftEngine),
        ("nystrom", NystromEngine),
    ],
)
def test_an_engine_is_made_by_name(name, kind):
    assert isinstance(make_engine(laplacian(knn_weights(30)), values(30, 1), 0.5, engine=name)[1], kind)


def test_every_name_is_offered_once():
    assert len(set(ENGINE_NAMES)) == len(ENGINE_NAMES) == 7


@pytest.mark.parametrize("columns", [1, 2, 5])
@pytest.mark.parametrize("name", ENGINE_NAMES)
def test_engines_agree_through_the_function(name, columns):
    if (name, columns) in {("chebyshev", 2), ("chebyshev", 5), ("cells", 5), ("nufft", 5)}:
        pytest.skip("too many columns for this engine")
    G, F = laplacian(knn_weights(100)), values(100, columns)
    energy, gradient = relationship_energy(F, G, sigma_f=0.9, engine=name)
    reference, slope = relationship_energy(F, G, sigma_f=0.9, engine="dense")
    # A low rank that the data choose is good to a few digits; the others are exact to their tolerance.
    assert relative_error(energy, reference) <= 1e-3
    assert relative_error(gradient, slope) <= 1e-2
    if name != "nystrom":
        assert relative_error(energy, reference) <= 1e-9
        assert relative_error(gradient, slope) <= 1e-8


@pytest.mark.parametrize("threshold", [0, 10**9])
@pytest.mark.parametrize("columns", [2, 3])
def test_either_side_of_the_threshold_gives_the_same_answer(monkeypatch, threshold, columns):
    monkeypatch.setattr(choose, "TILES_BEAT_CELLS", {2: threshold, 3: threshold})
    G, F = laplacian(knn_weights(100)), values(100, columns)
    assert choose_engine(F, 0.9) == ("cells" if threshold == 0 else "tiles")
    energy, gradient = relationship_energy(F, G, sigma_f=0.9)
    reference, slope = relationship_energy(F, G, sigma_f=0.9, engine="dense")
    assert relative_error(energy, reference) <= 1e-9
    assert relative_error(gradient, slope) <= 1e-8


@pytest.mark.parametrize(
    "form", [csr_array, csc_array, coo_array, lambda G: G.toarray(), lambda G: G.toarray().tolist()]
)
def test_the_matrix_may_have_any_form(form):
    G, F = laplacian(knn_weights(30)), values(30, 1)
    energy, gradient = relationship_energy(F, form(G), sigma_f=0.5)
    reference, slope = relationship_energy(F, G, sigma_f=0.5)
    assert energy == pytest.approx(reference, rel=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-10, atol=1e-12)


def test_a_vector_of_values_gives_a_vector_of_slopes():
    G, F = laplacian(knn_weights(30)), values(30, 1)
    energy, gradient = relationship_energy(F[:, 0], G, sigma_f=0.5)
    assert gradient.shape == (30,)
    reference, slope = relationship_energy(F, G, sigma_f=0.5)
    assert energy == reference
    assert (gradient == slope[:, 0]).all()


def test_lists_and_single_precision_are_values_too():
    G = laplacian(knn_weights(30))
    F = values(30, 1).astype(np.float32)
    energy, gradient = relationship_energy(F, G.astype(np.float32), sigma_f=0.5)
    assert gradient.dtype == np.float64
    # Single precision in F and G costs no more than their own rounding.
    assert energy == pytest.approx(relationship_energy(F.astype(np.float64), G, sigma_f=0.5)[0], rel=1e-5)
    assert relationship_energy(F.tolist(), G, sigma_f=0.5)[0] == pytest.approx(energy, rel=1e-5)


def test_arguments_are_left_as_they_were():
    G, F = laplacian(knn_weights(30)), values(30, 2)
    G_before, F_before = G.copy(), F.copy()
    for name in ("dense", "tiles", "cells", "nufft", "nystrom"):
        relationship_energy(F, G, sigma_f=0.5, engine=name)
    assert (F_before == F).all()
    assert (G_before != G).nnz == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"F": np.nan * np.ones((10, 1))}, "The 'F' parameter of relationship_energy must be a finite array"),
        ({"F": np.full((10, 1), np.inf)}, "The 'F' parameter"),
        ({"F": np.ones((10, 1, 1))}, "The 'F' parameter"),
        ({"F": np.ones((0, 1))}, "The 'F' parameter"),
        ({"F": np.ones((10, 0))}, "The 'F' parameter"),
        ({"F": []}, "The 'F' parameter"),
        ({"F": 1.0}, "The 'F' parameter"),
        ({"sigma_f": 0.0}, "The 'sigma_f' parameter of relationship_energy must be a float"),
        ({"sigma_f": -1.0}, "The 'sigma_f' parameter"),
        ({"sigma_f": np.nan}, "The 'sigma_f' parameter"),
        ({"sigma_f": np.inf}, "The 'sigma_f' parameter"),
        ({"G": np.eye(9)}, "The 'G' parameter of relationship_energy must be a square matrix .*10 points"),
        ({"G": np.ones((10, 9))}, "The 'G' parameter"),
        ({"G": np.full((10, 10), np.nan)}, "The 'G' parameter of relationship_energy must be finite"),
        ({"G": np.triu(np.ones((10, 10)))}, "The 'G' parameter of relationship_energy must be symmetric"),
        ({"engine": "fast"}, "The 'engine' parameter .*'fast'"),
        ({"engine": None}, "The 'engine' parameter"),
        ({"F": np.ones((10, 2)), "engine": "chebyshev"}, "'chebyshev' engine works on F of at most 1 column"),
        ({"F": np.ones((10, 4)), "engine": "cells"}, "'cells' engine works on F of at most 3 columns"),
        ({"relationship": "student"}, "The 'relationship' parameter .*'student'"),
        ({"F": np.ones((10, 4)), "engine": "nufft"}, "'nufft' engine works on F of at most 3 columns"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"F": np.ones((10, 1)), "G": np.eye(10), "sigma_f": 1.0} | change
    with pytest.raises(ValueError, match=message):
        relationship_energy(arguments.pop("F"), arguments.pop("G"), **arguments)


@pytest.mark.parametrize("sigma_f", ["wide", None, [1.0]])
def test_a_width_that_is_no_number_is_named(sigma_f):
    with pytest.raises((TypeError, ValueError), match="sigma_f"):
        relationship_energy(np.ones((10, 1)), np.eye(10), sigma_f=sigma_f)


def test_text_for_values_is_named():
    with pytest.raises((TypeError, ValueError), match="'F'"):
        relationship_energy(["a", "b"], np.eye(2), sigma_f=1.0)


@pytest.mark.parametrize("tolerance", [0.0, -1e-3, np.nan])
def test_a_tolerance_that_is_not_positive_is_named(tolerance):
    with pytest.raises(ValueError, match="'tolerance'"):
        relationship_energy(values(10, 2), np.eye(10), sigma_f=1.0, engine="nufft", tolerance=tolerance)


def test_a_low_rank_that_is_far_off_is_warned_of():
    G, F = laplacian(knn_weights(300)), values(300, 5, seed=3)
    error = NystromEngine(G, 0.1, landmarks=F[:5]).error(F)
    with pytest.warns(ApproximationWarning, match="nystrom"):
        choose.warn_of_error(error, stacklevel=1)


def test_auto_checks_the_low_rank_that_it_proposes(monkeypatch):
    monkeypatch.setattr(choose, "TILES_BEAT_NYSTROM", 0)
    monkeypatch.setattr(choose, "choose_landmarks", lambda F, *_, **__: F[:5])
    G, F = laplacian(knn_weights(300)), values(300, 5, seed=3)
    assert choose_engine(F, 0.1) == "nystrom"
    assert choose.make_engine(G, F, 0.1, engine="auto")[0] == "tiles"


def test_auto_takes_tiles_for_a_heavy_tail():
    F = values(6_000, 2)
    assert choose_engine(F, 1.0, CAUCHY) == "tiles"
    assert choose_engine(values(10, 1), 1.0, CAUCHY) == "tiles"


@pytest.mark.parametrize("name", ["chebyshev", "cells", "nufft", "nystrom"])
def test_engines_of_gaussians_refuse_another_function(name):
    with pytest.raises(ValueError, match=f"'{name}' engine works on Gaussian relationships only.*engine='tiles'"):
        relationship_energy(values(10, 1), np.eye(10), sigma_f=1.0, engine=name, relationship="cauchy")


@pytest.mark.parametrize("name", ["auto", "dense", "tiles"])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("function", RELATIONSHIPS)
def test_every_function_is_the_triple_sum_and_its_slope(name, columns, function):
    G, F = laplacian(knn_weights(12)), values(12, columns)

    def energy(moved):
        return relationship_energy(moved, G, sigma_f=0.7, engine=name, relationship=function)[0]

    assert relative_error(energy(F), oracle.relationship_energy(G, F, 0.7, function)) <= 1e-12
    gradient = relationship_energy(F, G, sigma_f=0.7, engine=name, relationship=function)[1]
    assert relative_error(gradient, oracle.central_differences(energy, F, step=1e-3)) <= 1e-6


def test_a_heavy_tail_still_joins_points_far_apart():
    G = laplacian(knn_weights(300))
    F = values(300, 2) * 30
    energy, gradient = relationship_energy(F, G, sigma_f=1.0, relationship="cauchy", engine="tiles")
    reference, slope = relationship_energy(F, G, sigma_f=1.0, relationship="cauchy", engine="dense")
    assert relative_error(energy, reference) <= 1e-12
    assert relative_error(gradient, slope) <= 1e-10
    # The Gaussian's gradient has long gone out there.
    assert np.abs(gradient).min(axis=0).max() > 1e-7


@pytest.mark.parametrize("name", ["dense", "tiles", "chebyshev", "cells", "nufft"])
def test_a_matrix_of_a_diagonal_alone_gives_the_repulsion(name):
    D, F = csr_array(np.diag(np.linspace(0.5, 2, 150))), values(150, 1)
    energy, gradient = make_engine(D, F, 0.9, engine=name)[1](F)
    reference, slope = DenseEngine(D, 0.9)(F)
    assert relative_error(energy, reference) <= 1e-9
    assert relative_error(gradient, slope) <= 1e-8
