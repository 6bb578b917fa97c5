"""Options become messages, and come back by the core's names; errors and results can be pickled."""

from __future__ import annotations

import pickle
from typing import Any

import grpc
import numpy as np
import pytest

from homophily_client import (
    ClientError,
    DeadlineExceeded,
    GraphOptions,
    InvalidArgument,
    JobFailed,
    MapOptions,
    SearchOptions,
    SolverOptions,
    Violation,
)
from homophily_client._pb import embedding_pb2, model_pb2
from homophily_client.parameters import search_message, to_dict, to_message


def graph_message(**given: Any) -> model_pb2.GraphParameters:
    return to_message(model_pb2.GraphParameters, GraphOptions(**given), "graph")


def solver_message(**given: Any) -> model_pb2.SolverParameters:
    return to_message(model_pb2.SolverParameters, SolverOptions(**given), "solver")


def test_parameters_come_back_by_the_cores_names() -> None:
    graph = {"n_neighbors": 5, "metric": "cosine", "weights": "self-tuning", "sigma_x": 0.5, "symmetrize": "max"}
    solver = {
        "method": "irr",
        "tol": 1e-8,
        "normalized": False,
        "multiclass": "one-vs-rest",
        "class_prior": [0.25, 0.75],
        "sharpen": True,
    }
    assert to_dict(graph_message(**graph, exponent=None)) == graph
    for space in ("input", "principal", "whitened"):
        assert to_dict(graph_message(space=space)) == {"space": space}
    assert to_dict(graph_message(edge_share=0.25)) == {"edge_share": 0.25}
    assert to_dict(graph_message(n_directions=np.int64(20))) == {"n_directions": 20}
    assert to_dict(solver_message(**solver, power=None)) == solver
    assert to_dict(solver_message(class_prior="estimate", power=np.int64(2))) == {"class_prior": "estimate", "power": 2}
    assert to_dict(solver_message(class_prior="balanced")) == {"class_prior": "balanced"}
    bounds = [(0.1, 0.3), (0.7, 0.9)]
    assert to_dict(solver_message(class_prior=np.array(bounds))) == {"class_prior": bounds}
    with pytest.raises(ValueError, match=r"metric must be one of 'euclidean', 'cosine', .* Got 'manhattan'"):
        graph_message(metric="manhattan")


@pytest.mark.parametrize("closure", [True, False, "two-class"])
def test_the_closure_of_links_is_a_boolean_or_a_word(closure: bool | str) -> None:
    message = to_message(embedding_pb2.EmbeddingParameters, {"closure": closure}, "solver")
    assert to_dict(message) == {"closure": closure}
    assert to_message(embedding_pb2.EmbeddingParameters, MapOptions(closure=closure), "solver") == message  # type: ignore[arg-type]


def test_dictionaries_and_options_make_the_same_message() -> None:
    assert to_message(model_pb2.GraphParameters, {"n_neighbors": 7}, "graph") == graph_message(n_neighbors=7)
    assert search_message({"trials": 9}) == search_message(9) == search_message(SearchOptions(trials=9))
    assert search_message(True) == model_pb2.SearchParameters()
    assert search_message(False) is search_message(None) is None


@pytest.mark.parametrize("name", ["neighbours", "tolerance"])
def test_an_unknown_option_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(ValueError, match=rf"solver has no option '{name}'. Known options: method, power, .* tol"):
        to_message(model_pb2.SolverParameters, {name: 1}, "solver")
    with pytest.raises(TypeError, match="graph must be options or a dictionary"):
        to_message(model_pb2.GraphParameters, 7, "graph")


@pytest.mark.parametrize("kind", [ClientError, InvalidArgument, DeadlineExceeded, JobFailed])
def test_errors_can_be_pickled(kind: type[ClientError]) -> None:
    error = kind("no", code=grpc.StatusCode.DATA_LOSS, reason="R", violations=(Violation("f", "d"),), request_id="x")
    again = pickle.loads(pickle.dumps(error))
    assert vars(again) == vars(error)
    assert (type(again), str(again)) == (kind, "no")
