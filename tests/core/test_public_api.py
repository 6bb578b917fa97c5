"""What the package exports, what importing it costs, and the examples in its documentation."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest
from sklearn.base import BaseEstimator

import homophily
import homophily.baselines
from homophily import ERREmbedding, KNNGraph
from homophily.estimators.graph_estimator import GraphEstimator

from ..patience import COMPUTING_SECONDS

MODULES = ["homophily", *(module.name for module in pkgutil.walk_packages(homophily.__path__, "homophily."))]
ESTIMATORS = [
    "ERRClassifier",
    "ERRClustering",
    "ERREmbedding",
    "IRRClassifier",
    "KNNGraph",
    "LinkPenalty",
    "Preprocessing",
    "SpectralEmbedding",
    "TunedClassifier",
]
#: Estimators whose use the others show.
PARTS = ["LinkPenalty"]
ON_A_GRAPH = [
    one
    for one in [*(getattr(homophily, name) for name in ESTIMATORS), *vars(homophily.baselines).values()]
    if isinstance(one, type) and issubclass(one, GraphEstimator)
]
EXPORTS = [*ESTIMATORS, "ParameterError", "Search", "relationship_energy"]


@pytest.mark.parametrize("name", EXPORTS)
def test_the_public_names_are_there_and_documented(name):
    assert name in homophily.__all__
    assert getattr(homophily, name).__doc__


def test_every_export_exists_and_is_listed_in_order():
    assert all(hasattr(homophily, name) for name in homophily.__all__)
    assert homophily.__all__ == sorted(homophily.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", [name for name in EXPORTS if name not in PARTS])
def test_public_names_come_with_a_runnable_example(name):
    assert ">>>" in getattr(homophily, name).__doc__


def test_importing_the_core_and_fitting_on_the_cpu_loads_nothing_of_the_service_or_of_cuda():
    outside = [
        "grpc",
        "sqlalchemy",
        "mlflow",
        "cupy",
        "cupy_backends",
        "cufinufft",
        "cuda",
        "matplotlib",
        "optuna",
        "homophily_service",
    ]
    program = f"""
import sys, numpy as np, homophily
homophily.ERRClassifier().fit(np.arange(40.0)[:, None], [0, 1, *[-1] * 38])
print([name for name in {outside} if name in sys.modules])
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=COMPUTING_SECONDS
    )
    assert run.stdout.strip() == "[]"
    assert run.stderr == ""


def test_every_estimator_on_a_graph_takes_one():
    for estimator in ON_A_GRAPH:
        # Links are obeyed on a graph whose edges are as strong as the nearer of two points says.
        default = KNNGraph(symmetrize="max") if estimator is ERREmbedding else KNNGraph()
        assert estimator().graph is None
        made = estimator().set_params(graph__metric="auto").graph
        assert made.get_params() == default.get_params()
        assert not set(default.get_params()) - {"backend", "n_jobs"} & set(estimator().get_params())


def test_no_estimator_has_many_parameters():
    exported = [getattr(homophily, name) for name in homophily.__all__]
    exported += [getattr(homophily.baselines, name) for name in homophily.baselines.__all__]
    estimators = [one for one in exported if isinstance(one, type) and issubclass(one, BaseEstimator)]
    assert len(estimators) == len(ESTIMATORS) + len(homophily.baselines.__all__)
    for estimator in estimators:
        assert len(inspect.signature(estimator).parameters) <= 17, estimator.__name__


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_has_a_constraint(name):
    estimator = getattr(homophily, name)
    assert set(estimator._parameter_constraints) == set(estimator().get_params())
