"""The number of neighbours when none is given: that of the core, and in stored messages what it once was."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy import sparse

from homophily import KNNGraph
from homophily_client._pb import model_pb2
from homophily_service.contract.values import graph_parameters
from homophily_service.tracking.records import Data, _complete_graph

from .serving import Project, Service, running

X = np.abs(np.random.default_rng(0).normal(size=(60, 5)))
LABELS = {point: point % 2 for point in range(8)}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("neighbors"), predictors=0) as service:
        yield service


@pytest.fixture
def project(service: Service) -> Project:
    return service.project()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_service_has_the_defaults_of_the_core(is_sparse: bool) -> None:
    points = sparse.csr_array(X) if is_sparse else X
    ours = graph_parameters(model_pb2.GraphParameters(), is_sparse=is_sparse, field="graph")
    assert ours.items() <= KNNGraph().fit(points).resolved_params_.items()


def test_a_model_of_sparse_points_says_how_many_neighbours_they_have(project: Project) -> None:
    of_sparse = project.model(project.upload(sparse.csr_array(X)).name, LABELS)
    assert of_sparse.graph_parameters == model_pb2.GraphParameters(n_neighbors=20)
    assert project.model(project.upload(X).name, LABELS).graph_parameters == model_pb2.GraphParameters()


def test_a_stored_model_that_says_nothing_has_ten_neighbours() -> None:
    data = Data("", "", is_sparse=True, dtype="", rows=60, columns=5, size=0)
    nothing = model_pb2.GraphParameters()
    assert _complete_graph(nothing, data, is_made=True)["n_neighbors"] == 10
    assert _complete_graph(nothing, data, is_made=False)["n_neighbors"] == 20
