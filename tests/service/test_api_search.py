"""Fit with a search: in one job, spread over jobs, cancelled, and with labels to test by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from homophily.selection import ranges
from homophily_client import Client, InvalidArgument, JobCancelled, Model
from homophily_client._pb import model_pb2
from homophily_client.names import JobName
from homophily_service.contract.parameters import SEARCHED
from homophily_service.contract.values import set_parameters

from .serving import PATIENCE, Service, running

U = 300


def message_of(client: Client, model: Model) -> model_pb2.Model:
    return client._connection.call("GetModel", model_pb2.GetModelRequest(name=model.name)).model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("search"), workers=2, threads=1) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as client:
        yield client


@pytest.fixture(scope="module")
def moons() -> tuple[Any, Any]:
    from sklearn.datasets import make_moons

    return make_moons(U, noise=0.15, random_state=0)


def asked(moons: tuple[Any, Any], **search: Any) -> dict[str, Any]:
    _, y = moons
    names = np.array(["left", "right"])[y]
    return {
        "y": {i: names[i] for i in range(12)},
        "validation": {i: names[i] for i in range(12, 40)},
        "test": {i: names[i] for i in range(40, U)},
        "search": {"trials": 8, **search},
        "calibrate": True,
    }


def test_a_search_finds_parameters_and_tells_how(client: Client, moons: tuple[Any, Any]) -> None:
    job = client.fit(moons[0], **asked(moons), solver={"lambda1": 0.02})
    events = list(job.watch())
    model = job.result(PATIENCE)
    message = message_of(client, model)
    assert [trial.number for trial in message.search.trials] == list(range(8))
    assert {trial.stage for trial in message.search.trials} == {1, 2}
    # What was given stays, what was found is in the model.
    assert {trial.solver.lambda1 for trial in message.search.trials} == {0.02}
    best = message.search.trials[message.search.best]
    assert message.solver_parameters.sigma_f == best.solver.sigma_f
    assert message.solver_parameters.lambda2 == best.solver.lambda2
    assert message.graph_parameters.n_neighbors == best.graph.n_neighbors
    assert best.held_out_count == 28
    assert_told(events, best)
    # A search ended at 40 %, and the phases after it began at 5 % again.
    fractions = [event.progress.fraction for event in events if event.progress]
    assert fractions == sorted(fractions)
    assert message.test.point_count == U - 40
    assert message.test.error_rate < 0.2
    assert sum(message.test.confusion) == U - 40
    assert sum(one.point_count for one in message.test.reliability) == U - 40
    assert message.validation.error_rate == message.error_rate
    assert message.trace.energies[-1] == message.energy
    assert list(message.trace.iterations) == sorted(message.trace.iterations)
    assert message.peak_memory_bytes > 50 << 20
    assert "numpy" in message.software


def assert_told(events: list[Any], best: model_pb2.Trial) -> None:
    """Every trial is counted in the end, and the lowest error so far is told."""
    searching = [event for event in events if event.progress and event.progress.phase == "search"]
    last = searching[-1].progress
    assert last.trials == last.max_trials == 8
    assert last.best_error_rate <= best.error_rate


def compared(message: model_pb2.Model) -> list[Any]:
    return [
        (trial.number, trial.error_rate, trial.score, str(trial.graph), str(trial.solver))
        for trial in message.search.trials
    ]


def test_a_spread_search_finds_the_same(client: Client, moons: tuple[Any, Any]) -> None:
    alone = message_of(client, client.fit(moons[0], **asked(moons)).result(PATIENCE))
    job = client.fit(moons[0], **asked(moons, spread=True))
    events = list(job.watch())
    assert "waiting" in {str(event.state) for event in events}
    spread = message_of(client, job.result(PATIENCE))
    assert_told(events, spread.search.trials[spread.search.best])
    assert compared(spread) == compared(alone)
    assert spread.search.best == alone.search.best
    assert spread.solver_parameters == alone.solver_parameters
    trials = list(client.list_jobs(kind="trial"))
    assert len(trials) > 2
    assert {str(one.state) for one in trials} == {"succeeded"}
    # Waiting for trials is no attempt.
    assert job.refresh().attempt == 1


def test_cancelling_a_spread_search_cancels_its_trials(client: Client, moons: tuple[Any, Any]) -> None:
    job = client.fit(moons[0], **asked(moons, spread=True, trials=200))
    for event in job.watch():
        if event.state == "waiting":
            break
    job.cancel()
    with pytest.raises(JobCancelled):
        job.result(PATIENCE)
    mine = JobName.parse(job.name, "name").id
    for one in client.list_jobs(kind="trial"):
        if JobName.parse(one.name, "name").id.startswith(mine):
            list(one.watch())
            assert str(one.state) in ("cancelled", "succeeded")


def test_trials_of_a_spread_search_keep_to_its_seconds(client: Client, moons: tuple[Any, Any]) -> None:
    model = client.fit(moons[0], **asked(moons, spread=True, trials=1000, seconds=1e-6)).result(PATIENCE)
    message = message_of(client, model)
    # The first of each stage were handed out; none was begun, and it ends where it began.
    assert 0 < len(message.search.trials) < 100
    assert not any(trial.HasField("error_rate") for trial in message.search.trials)
    assert not message.search.HasField("best")
    assert message.graph_parameters.HasField("n_neighbors")


def test_people_say_what_is_searched(client: Client, moons: tuple[Any, Any]) -> None:
    model = client.fit(moons[0], **asked(moons, trials=12, vary=["sigma_x", "power", "lambda2"])).result(PATIENCE)
    message = message_of(client, model)
    irr, err = ([trial for trial in message.search.trials if trial.stage == stage] for stage in (1, 2))
    assert len({trial.graph.sigma_x for trial in irr}) > 1
    assert {trial.graph.n_neighbors for trial in message.search.trials} == {0}
    assert {trial.solver.power for trial in err} == {1, 2}
    assert message.graph_parameters.HasField("sigma_x")
    assert message.solver_parameters.power in (1, 2)


def test_a_search_finds_the_space_that_suits_the_points(client: Client, moons: tuple[Any, Any]) -> None:
    # Along the last column, which tells nothing, points are far from each other; whitened, they are not.
    points = np.column_stack([moons[0], 30 * np.random.default_rng(0).normal(size=U)])
    model = client.fit(points, **asked(moons, vary=["space"]), solver={"method": "irr"}).result(PATIENCE)
    message = message_of(client, model)
    every = {model_pb2.SPACE_INPUT, model_pb2.SPACE_PRINCIPAL, model_pb2.SPACE_WHITENED}
    assert {trial.graph.space for trial in message.search.trials} == every
    assert message.graph_parameters.space == model_pb2.SPACE_WHITENED
    assert model.graph_parameters["space"] == "whitened"
    fixed = client.fit(points, **asked(moons), graph={"space": "principal"}, solver={"method": "irr"}).result(PATIENCE)
    assert {trial.graph.space for trial in message_of(client, fixed).search.trials} == {model_pb2.SPACE_PRINCIPAL}


def test_a_search_finds_how_many_directions_count(client: Client, moons: tuple[Any, Any]) -> None:
    points = np.column_stack([5 * moons[0], np.random.default_rng(0).normal(size=(U, 30))])
    given = asked(moons, vary=["n_directions"], spread=True) | {
        "graph": {"space": "principal"},
        "solver": {"method": "irr"},
    }
    model = client.fit(points, **given).result(PATIENCE)
    search = message_of(client, model).search
    assert len({trial.graph.n_directions for trial in search.trials}) > 1
    found = search.trials[search.best].graph.n_directions
    assert model.graph_parameters == {"space": "principal", "n_directions": found}


def test_a_search_tries_angles_of_dense_points(client: Client, moons: tuple[Any, Any]) -> None:
    model = client.fit(moons[0], **asked(moons, vary=["metric"]), solver={"method": "irr"}).result(PATIENCE)
    message = message_of(client, model)
    assert {trial.graph.metric for trial in message.search.trials} == {
        model_pb2.METRIC_EUCLIDEAN,
        model_pb2.METRIC_COSINE,
    }
    # Two moons differ in place, not in direction.
    assert model.graph_parameters["metric"] == "euclidean"


def test_sparse_points_have_one_metric_to_search(client: Client, moons: tuple[Any, Any]) -> None:
    points = csr_array(np.abs(moons[0]))
    with pytest.raises(InvalidArgument, match="metric cannot be searched for sparse points"):
        client.fit(points, **asked(moons, vary=["metric"]))
    model = client.fit(points, **asked(moons, trials=2), solver={"method": "irr"}).result(PATIENCE)
    begin = message_of(client, model).search.trials[0].graph
    assert (begin.n_neighbors, begin.metric) == (20, model_pb2.METRIC_COSINE)


def test_the_service_searches_what_the_core_does() -> None:
    assert set(SEARCHED) == set(ranges.SEARCHED)


def test_a_trial_along_all_directions_gives_no_number_of_them() -> None:
    graph, solver = model_pb2.GraphParameters(), model_pb2.SolverParameters()
    set_parameters({"space": "whitened", "n_directions": None, "n_neighbors": 5}, graph, solver)
    assert graph == model_pb2.GraphParameters(space=model_pb2.SPACE_WHITENED, n_neighbors=5)


def test_trials_start_from_each_other_if_asked_for(client: Client, moons: tuple[Any, Any]) -> None:
    cold, warm, spread = (
        message_of(
            client, client.fit(moons[0], **asked(moons, trials=12, **how), solver={"max_iter": 2}).result(PATIENCE)
        )
        for how in ({}, {"warm_start": True}, {"warm_start": True, "spread": True})
    )
    # So few steps do not forget where they began.
    assert compared(warm) != compared(cold)
    assert compared(warm) == compared(spread)
    assert [trial.score for trial in warm.search.trials if trial.stage == 1] == [
        trial.score for trial in cold.search.trials if trial.stage == 1
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"search": {"vary": ["tol"]}}, "search.vary[0]"),
        ({"search": {"vary": ["lambda2", "lambda2"]}}, "search.vary[1]"),
        ({"search": {"vary": ["lambda1", "lambda2"]}, "solver": {"lambda2": 0.01}}, "search.vary[1]"),
        ({"search": {"vary": ["sigma_f"]}, "solver": {"method": "irr"}}, "search.vary[0]"),
        ({"search": {"vary": ["sigma_x"]}, "graph": {"weights": "fixed"}}, "search.vary[0]"),
        ({"search": {"vary": ["lambda1", "space"]}, "graph": {"metric": "cosine"}}, "search.vary[1]"),
        ({"search": {"vary": ["space"]}, "graph": {"space": "input"}}, "search.vary[0]"),
        ({"search": {"vary": ["n_directions"]}, "graph": {"space": "principal", "n_directions": 2}}, "search.vary[0]"),
        ({"search": {"vary": ["lambda1", "n_directions"]}}, "search.vary[1]"),
        ({"search": {"vary": ["n_directions"]}, "graph": {"space": "input"}}, "search.vary[0]"),
        ({"search": {"trials": 1}}, "search.trials"),
        ({"search": {"seconds": -1.0}}, "search.seconds"),
        ({"validation": {3: "left"}}, "validation.points[0]"),
        ({"test": {U: "left"}}, "test.points[0]"),
    ],
)
def test_a_wrong_search_is_refused(client: Client, moons: tuple[Any, Any], change: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        client.fit(moons[0], **(asked(moons) | change))
    assert refused.value.violations[0].field == field


def test_sparse_points_have_one_space(client: Client, moons: tuple[Any, Any]) -> None:
    points = csr_array(np.abs(moons[0]))
    for name in ("space", "n_directions"):
        with pytest.raises(InvalidArgument) as refused:
            client.fit(points, **asked(moons, vary=[name]))
        assert refused.value.violations[0].field == "search.vary[0]"
        assert "sparse" in refused.value.violations[0].description


def test_a_search_with_too_few_labels_fails_with_a_sentence(client: Client, moons: tuple[Any, Any]) -> None:
    job = client.fit(moons[0], {0: "left", 1: "right"}, search=True)
    with pytest.raises(Exception, match="needs labels to judge by"):
        job.result(PATIENCE)
