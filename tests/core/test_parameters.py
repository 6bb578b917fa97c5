"""A wrong parameter is refused by an error that knows its name."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from homophily import (
    ERRClassifier,
    ERRClustering,
    ERREmbedding,
    IRRClassifier,
    KNNGraph,
    LinkPenalty,
    ParameterError,
    SpectralEmbedding,
    TunedClassifier,
    relationship_energy,
)
from homophily.baselines import CCSR, COSC, CSP, SL, Original
from homophily.supervision.links import check_links

from .small_sets import moons

X, Y = moons(60)


@pytest.mark.parametrize(
    ("estimator", "parameter", "value"),
    [
        (KNNGraph, "n_neighbors", 0),
        (KNNGraph, "metric", "manhattan"),
        (KNNGraph, "exponent", 3),
        (IRRClassifier, "graph", "knn"),
        (IRRClassifier, "lambda1", 0.0),
        (IRRClassifier, "tol", -1.0),
        (IRRClassifier, "class_prior", [0.2, 0.3, 0.5]),
        (IRRClassifier, "backend", "torch"),
        (ERRClassifier, "power", 0),
        (ERRClassifier, "sigma_f", -1.0),
        (ERRClassifier, "engine", "fast"),
        (ERRClassifier, "multiclass", "pairs"),
        (ERRClassifier, "n_jobs", "all"),
        (SpectralEmbedding, "n_components", 0),
        (SpectralEmbedding, "n_components", 60),
        (SpectralEmbedding, "graph", {}),
        (ERREmbedding, "sigma_f", 0.0),
        (ERREmbedding, "sigma_f", []),
        (ERREmbedding, "sigma_f", [0.2, 0.2]),
        (ERREmbedding, "sigma_f", [0.2, -0.1]),
        (ERREmbedding, "link_penalty", 30.0),
        (ERREmbedding, "n_components", 60),
        (ERRClustering, "n_clusters", 0),
        (ERRClustering, "n_clusters", 60),
        (ERRClustering, "embedding", KNNGraph()),
        (ERRClustering, "n_init", 0),
        (TunedClassifier, "estimator", SpectralEmbedding()),
        (TunedClassifier, "trials", 0),
        (Original, "n_clusters", 61),
        (SL, "graph", 5),
        (CCSR, "n_init", 0),
        (CSP, "n_clusters", 3),
        (COSC, "random_state", "seed"),
    ],
)
def test_the_error_knows_the_parameter(estimator, parameter, value):
    message = f"The '{parameter}' parameter of {estimator.__name__} must be .* Got .* instead"
    with pytest.raises(ParameterError, match=message) as told:
        estimator(**{parameter: value}).fit(X, Y)
    assert told.value.parameter == parameter
    assert isinstance(told.value, ValueError)


@pytest.mark.parametrize(
    ("estimator", "parameter"),
    [
        (KNNGraph(weights="fixed"), "sigma_x"),
        (KNNGraph(n_directions=1), "n_directions"),
        (KNNGraph(metric="precomputed"), "X"),
        (ERRClassifier(relationship_neighbors=5, power=2), "power"),
        (ERRClassifier(graph=KNNGraph(n_neighbors=0)), "n_neighbors"),
        (SpectralEmbedding(graph=KNNGraph(weights="fixed")), "sigma_x"),
        (ERREmbedding(link_penalty=LinkPenalty(weight=-1.0)), "weight"),
        (ERREmbedding(link_penalty=LinkPenalty(loss="linear")), "loss"),
        (ERRClustering(embedding=ERREmbedding(link_penalty=LinkPenalty(edges=-1.0))), "edges"),
    ],
)
def test_parameters_beside_others_and_inside_of_others_are_named_too(estimator, parameter):
    with pytest.raises(ParameterError, match=f"The '{parameter}' parameter of") as told:
        estimator.fit(X, Y)
    assert told.value.parameter == parameter


@pytest.mark.parametrize("estimator", [IRRClassifier, ERRClassifier])
def test_arguments_of_a_fit_are_named_too(estimator):
    labels = (np.full((60, 2), -1.0), np.full(60, -1), np.zeros(60), np.linspace(0.0, 1.0, 60), np.full(60, np.inf))
    weights = (np.ones(59), np.full(60, -1.0), np.full(60, np.nan))
    wrong = [("init", np.zeros(59)), *(("y", y) for y in labels), *(("sample_weight", each) for each in weights)]
    for argument, value in wrong:
        with pytest.raises(ParameterError) as told:
            estimator().fit(**{"X": X, "y": Y, argument: value})
        assert told.value.parameter == argument


def test_an_error_from_another_process_still_knows_the_parameter():
    with pytest.raises(ParameterError) as told:
        ERRClassifier(lambda2=-1.0).fit(X, Y)
    for again in (pickle.loads(pickle.dumps(told.value)), copy.copy(told.value)):
        assert type(again) is ParameterError
        assert again.parameter == "lambda2"
        assert str(again) == str(told.value)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"sigma_f": -1.0}, "sigma_f"), ({"sigma_f": 1.0, "engine": "none"}, "engine"), ({"sigma_f": 1.0, "F": []}, "F")],
)
def test_errors_of_the_energy_name_their_parameter(arguments, name):
    F = np.zeros((2, 1))
    with pytest.raises(ParameterError) as error:
        relationship_energy(**{"F": F, "G": np.zeros((2, 2)), **arguments})
    assert error.value.parameter == name


@pytest.mark.parametrize("name", ["must_link", "cannot_link"])
@pytest.mark.parametrize("pairs", [[(0, 0)], [(0, 99)], [(0,)], [(0.5, 1.0)], [(0, 1), (1,)]])
def test_errors_of_links_name_their_parameter(name, pairs):
    with pytest.raises(ParameterError) as error:
        check_links(**{"must_link": None, "cannot_link": None, name: pairs}, points=5)
    assert error.value.parameter == name
