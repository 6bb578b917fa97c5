"""The search for hyper-parameters: what is asked, how trials are judged, what is chosen, and fits that search."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.calibration import label_folds
from homophily.selection import Best, Group, Outcome, Result, Search, Trial, build_graph, evaluate, select
from homophily.selection.choice import rank, smoothed
from homophily.selection.sampler import Dimension
from homophily.state import classifier_state, restore_classifier
from tests.core.small_sets import blobs, moons


def pretend(group, valley=None, answers=50):
    """An outcome without a fit: the error grows with the distance from a valley of parameters."""
    valley = valley or {"n_neighbors": 20, "sigma_f": 0.8, "lambda2": 1.5}
    results = []
    for solver in group.trials:
        parameters = {**group.graph, **solver}
        steps = [np.log(parameters[name] / best) for name, best in valley.items() if name in parameters]
        error = min(0.5, 0.1 + 0.02 * float(np.sum(np.square(steps))))
        results.append(Result(error, 2 * error, answers, 0.1))
    return Outcome(group, tuple(results), 0.1 * len(results))


def trial_graph(trial):
    return {name: value for name, value in trial.parameters.items() if name in ("n_neighbors", "weights", "sigma_x")}


def play(search, order=lambda groups: groups, **how):
    batches = []
    while groups := search.ask():
        batches.append(groups)
        search.tell([pretend(group, **how) for group in order(groups)])
    return batches


# -- asking and telling ------------------------------------------------------------------------------------------------


def test_the_whole_budget_is_asked_for_in_two_stages():
    search = Search(1000, 2, trials=40)
    play(search)
    assert [trial.number for trial in search.trials] == list(range(40))
    methods = {"graph": "irr", "relationships": "err"}
    assert all(trial.method == methods[trial.stage] for trial in search.trials)
    stages = [trial.stage for trial in search.trials]
    assert stages == sorted(stages)
    assert stages.count("graph") == Search.graph_trials(40) == 24
    assert search.ask() == []


def test_a_search_for_err_begins_with_the_whole_search_for_irr():
    irr, err = Search(1000, 2, method="irr"), Search(1000, 2, method="err")
    play(irr)
    play(err)
    assert len(irr.trials) == Search.graph_trials(len(err.trials))
    assert err.trials[: len(irr.trials)] == irr.trials
    # Which graph is best for ERR it says itself, but it is one of the best for IRR.
    assert err.best.graph in [trial_graph(trial) for trial in irr.trials]


def test_the_first_batch_of_a_stage_holds_its_home_and_lambda2_near_zero():
    search = Search(1000, 2)
    batches = play(search)
    home = {"n_neighbors": 6, "weights": "global", "sigma_x": 0.75}
    assert any(group.graph == home and {"lambda1": 3.0} in group.trials for group in batches[0])
    assert "local" in [group.graph["weights"] for group in batches[0]]
    lines = next(batch for batch in batches if batch[0].stage == "relationships")
    solvers = [solver for group in lines for solver in group.trials]
    tried = [(solver["sigma_f"], round(solver["lambda2"] / solver["lambda1"], 3)) for solver in solvers]
    assert (1.3, 0.1) in tried
    assert min(share for _, share in tried) == 0.04
    for group in lines:
        assert len({(solver["lambda1"], solver["sigma_f"]) for solver in group.trials}) == 1
        weights = [solver["lambda2"] for solver in group.trials]
        assert weights == sorted(weights)


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 23])
@pytest.mark.parametrize("method", ["irr", "err"])
def test_small_budgets_are_kept(budget, method):
    search = Search(1000, 2, method=method, trials=budget)
    play(search)
    assert len(search.trials) == budget
    assert search.best.method == method


def test_a_smooth_valley_is_found():
    search = Search(3000, 2, trials=40)
    play(search, answers=2000)
    best = search.best.parameters
    # Away from where it begins: 6, 1.3 and 0.3.
    assert 10 <= best["n_neighbors"] <= 30
    assert 0.6 <= best["sigma_f"] <= 1.1
    assert 0.6 <= best["lambda2"] <= 4.0


def test_the_order_of_telling_changes_nothing_and_the_seed_does():
    forward, backward, other = (Search(1000, 2, trials=70, seed=seed) for seed in (0, 0, 1))
    play(forward)
    play(backward, order=lambda groups: groups[::-1])
    play(other)
    assert forward.trials == backward.trials
    assert forward.best == backward.best
    assert forward.trials != other.trials


def test_a_search_is_rebuilt_from_stored_outcomes_even_within_a_batch():
    search = Search(1000, 2, trials=36)
    outcomes = []
    while groups := search.ask():
        outcomes += [pretend(group) for group in groups]
        search.tell(outcomes[-len(groups) :])
    stored = [json.dumps(outcome.to_json()) for outcome in outcomes]
    for kept in (0, 3, 11, len(stored) - 1):
        again = Search(1000, 2, trials=36)
        again.tell(Outcome.from_json(json.loads(text)) for text in stored[:kept])
        missing = again.ask()
        assert missing[0] == outcomes[kept].group
        play(again)
        assert again.trials == search.trials
        assert again.best == search.best


def test_asking_again_asks_for_what_was_not_told():
    search = Search(1000, 2)
    groups = search.ask()
    assert search.ask() == groups
    search.tell([pretend(groups[1])])
    search.tell([pretend(groups[1])])
    assert search.ask() == [groups[0], *groups[2:]]
    assert len(search.trials) == len(groups[1].trials)


def test_fixed_parameters_are_in_every_trial_and_not_searched():
    search = Search(1000, 2, trials=24, fixed={"n_neighbors": 12, "metric": "cosine", "lambda2": 0.002, "power": 1})
    play(search)
    for trial in search.trials:
        assert trial.parameters["n_neighbors"] == 12
        assert trial.parameters["power"] == 1
        assert trial.parameters.get("lambda2", 0.002) == 0.002
    assert {trial.parameters["lambda2"] for trial in search.trials if trial.method == "err"} == {0.002}
    assert len({trial.parameters["sigma_f"] for trial in search.trials if trial.method == "err"}) > 3


def test_a_given_graph_leaves_the_solver_to_search():
    search = Search(1000, 2, trials=24, graph=False)
    play(search)
    assert all("n_neighbors" not in trial.parameters for trial in search.trials)
    assert search.best.graph == {}
    everything = Search(1000, 2, trials=24, graph=False, fixed={"lambda1": 0.02})
    play(everything)
    assert [trial.method for trial in everything.trials].count("irr") == 1


def test_the_backend_is_one_of_graph_and_fit():
    group = Search(1000, 2, fixed={"backend": "numpy"}).ask()[0]
    assert group.graph["backend"] == "numpy"
    found = select(*moons(100, labels=20), trials=2, n_jobs=1, backend="numpy")
    assert found.best.parameters["backend"] == "numpy"


def test_optional_fields_are_searched_when_asked():
    search = Search(1000, 2, trials=60, vary=["n_neighbors", "weights", "power", "lambda2", "repulsion"])
    play(search)
    assert {trial.parameters["weights"] for trial in search.trials} == {"local", "self-tuning", "global"}
    err = [trial.parameters for trial in search.trials if trial.method == "err"]
    assert {parameters["power"] for parameters in err} == {1, 2}
    assert len({parameters["repulsion"] for parameters in err}) > 3
    assert "sigma_f" not in err[0]


def test_the_width_of_weights_is_searched_by_irr_and_the_power_by_whatever_comes_last():
    search = Search(1000, 2, trials=60, vary=["sigma_x", "lambda2", "power"])
    play(search)
    widths, powers = ([t.parameters.get(name) for t in search.trials] for name in ("sigma_x", "power"))
    irr = [trial.method == "irr" for trial in search.trials]
    assert len({width for width, is_irr in zip(widths, irr, strict=True) if is_irr}) > 3
    assert 1 < len({width for width, is_irr in zip(widths, irr, strict=True) if not is_irr}) <= 3
    assert {power for power, is_irr in zip(powers, irr, strict=True) if is_irr} == {None}
    assert {power for power, is_irr in zip(powers, irr, strict=True) if not is_irr} == {1, 2}
    # A line of rising λ2 has one power: where one fails, the other may not.
    for group in play(Search(1000, 2, trials=60, vary=["lambda2", "power"]))[-1]:
        lambdas = [solver["lambda2"] for solver in group.trials if solver["power"] == group.trials[0]["power"]]
        assert lambdas == sorted(lambdas)
    alone = Search(1000, 2, method="irr", trials=8, vary=["power"])
    play(alone)
    assert {trial.parameters["power"] for trial in alone.trials} == {1, 2}


def test_a_graph_with_another_width_has_other_weights():
    X, y = moons(200, labels=60)
    found = select(X, y, trials=4, n_jobs=1, vary=["sigma_x", "lambda2"])
    assert {trial.parameters["sigma_x"] for trial in found.trials} == {1.0, 1.5}
    assert len({trial.loss for trial in found.trials if trial.stage == "graph"}) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vary": ["sigma_x"], "fixed": {"weights": "fixed", "sigma_x": None}}, "'vary' parameter of Search"),
        ({"vary": ["tol"]}, "'vary' parameter of Search"),
        ({"vary": ["lambda1"], "fixed": {"lambda1": 0.1}}, "'vary' parameter of Search"),
        ({"method": "irr", "vary": ["lambda2"]}, "'vary' parameter of Search"),
        ({"graph": False, "vary": ["n_neighbors"]}, "'vary' parameter of Search"),
        ({"method": "svm"}, "'method' parameter of Search"),
        ({"trials": 0}, "'trials' parameter of Search"),
    ],
)
def test_a_search_refuses_what_it_cannot_do(arguments, message):
    with pytest.raises(ValueError, match=message):
        Search(100, 2, **arguments)


def test_a_search_without_outcomes_has_no_best():
    with pytest.raises(ValueError, match="once outcomes were told"):
        _ = Search(100, 2).best


def test_more_classes_have_narrower_relationships_to_begin_with():
    widths = [Search(1000, classes).ranges.home("relationships")["sigma_f"] for classes in (2, 3)]
    assert_allclose(widths, [1.3, 0.919])
    apart = Search(1000, 3, fixed={"multiclass": "one-vs-rest"})
    assert apart.ranges.home("relationships")["sigma_f"] == 1.3


def test_a_stage_ends_when_its_time_is_over_by_the_clock():
    search = Search(1000, 2, trials=1000, seconds=6.0)
    clock, ends = 0.0, {}
    while groups := search.ask():
        # All of a batch at the same time: what they take together is not what counts.
        clock += 0.9
        ends[groups[0].stage] = clock
        search.tell([pretend(group)._replace(ended=clock) for group in groups])
    assert ends["graph"] == pytest.approx(3.6)
    assert ends["relationships"] == pytest.approx(6.3)


def test_optuna_is_needed_only_beyond_the_design():
    program = """
import sys
sys.modules["optuna"] = None
from homophily.selection import Search
from tests.core.test_select import pretend
search = Search(3000, 2, trials=18)
while groups := search.ask():
    search.tell(map(pretend, groups))
print(len(search.trials), search.best.method)
search = Search(3000, 2, method="irr", trials=240)
search.tell(map(pretend, search.ask()))
try:
    search.ask()
except ImportError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "18 err" in run.stdout
    assert "pip install homophily[search]" in run.stdout


# -- judging -----------------------------------------------------------------------------------------------------------


def irr_group(*lambdas, k=8):
    return Group(0, "graph", "irr", {"n_neighbors": k}, tuple({"lambda1": value} for value in lambdas))


def test_validation_errors_are_those_of_a_fit_that_does_not_see_the_validation_points():
    X, y = blobs(200, classes=3, labels=60)
    validation = np.arange(40, 60)
    few = np.where(np.arange(200) < 40, y, -1)
    solvers = ({"sigma_f": 0.9, "lambda2": 0.002}, {"sigma_f": 0.9, "lambda2": 0.01})
    outcome = evaluate(Group(0, "relationships", "err", {"n_neighbors": 8}, solvers), X, y, validation=validation)
    for solver, result in zip(solvers, outcome.results, strict=True):
        fitted = ERRClassifier(n_neighbors=8, **solver).fit(X, few)
        assert result.error == np.mean(fitted.transduction_[validation] != y[validation])
        assert result.held_out == 20
        assert result.loss > 0


def test_classes_of_validation_points_reach_no_fit():
    X, y = moons(200, labels=60)
    validation = np.arange(30, 60)
    flipped = y.copy()
    flipped[validation] = 1 - y[validation]
    one, other = (evaluate(irr_group(0.01), X, labels, validation=validation).results[0] for labels in (y, flipped))
    assert one.error == pytest.approx(1.0 - other.error)
    assert one.loss < other.loss


def test_without_validation_points_every_label_is_held_out_once():
    X, y = moons(200, labels=60)
    labelled = np.arange(60)
    folds = label_folds(y[:60], 5, 3)
    wrong = 0
    for fold in range(5):
        few = y.copy()
        few[labelled[folds == fold]] = -1
        fitted = IRRClassifier(n_neighbors=8, lambda1=0.01).fit(X, few)
        wrong += np.count_nonzero(fitted.transduction_[:60][folds == fold] != y[:60][folds == fold])
    result = evaluate(irr_group(0.01), X, y, seed=3).results[0]
    assert (result.error, result.held_out) == (wrong / 60, 60)


def test_very_few_labels_are_held_out_several_times_and_many_only_in_part():
    X, y = moons(300, labels=10)
    assert evaluate(irr_group(0.01), X, y).results[0].held_out == 60
    X, y = moons(2500, labels=2400)
    result = evaluate(irr_group(0.01), X, y).results[0]
    assert result.held_out == pytest.approx(600, abs=2)


def test_a_graph_may_be_built_elsewhere():
    X, y = moons(200, labels=40)
    group = irr_group(0.01, 0.1)
    graph = build_graph(group.graph, X)
    assert isinstance(graph, KNNGraph)
    assert graph.n_neighbors == 8
    one, other = evaluate(group, X, y), evaluate(group, graph, y)
    assert [result.error for result in one.results] == [result.error for result in other.results]
    assert [result.loss for result in one.results] == [result.loss for result in other.results]


def test_a_class_of_validation_points_alone_counts_as_wrong():
    X, y = blobs(200, classes=3, labels=60)
    few = np.where((np.arange(200) < 40) & (y == 2), -1, y)
    validation = np.arange(40, 60)
    result = evaluate(irr_group(0.01), X, few, validation=validation).results[0]
    assert result.error >= np.mean(y[validation] == 2)
    assert np.isfinite(result.loss)


@pytest.mark.parametrize("validation", [[], [500], [-1], [199], np.arange(20), [0.5]])
def test_validation_points_must_have_classes_and_leave_some(validation):
    X, y = moons(200, labels=20)
    with pytest.raises(ValueError, match="'validation' parameter"):
        evaluate(irr_group(0.01), X, y, validation=validation)


def test_one_label_of_each_class_is_too_few_to_judge_by():
    X, y = moons(200, labels=100)
    few = np.full(200, -1)
    few[[np.flatnonzero(y == 0)[0], np.flatnonzero(y == 1)[0]]] = 0, 1
    with pytest.raises(ValueError, match="needs labels to judge by"):
        evaluate(irr_group(0.01), X, few)


class Spoilt:
    """Fits whose answers are right for the given λ2 only."""

    def __init__(self, good):
        self.good = good

    def __call__(self, _method, graph, y, parts, _n_jobs, _warm_start, _starts):
        self.graph, self.y, self.parts = graph, y, parts
        self.asked = []
        return self.fit

    def fit(self, parameters, number):
        self.asked.append((parameters["lambda2"], number))
        few = np.where(self.parts[number].confidence > 0, self.y, -1)
        model = IRRClassifier(n_jobs=1).fit(self.graph, few)
        if parameters["lambda2"] not in self.good:
            model.transduction_ = 1 - model.transduction_
        return model


def test_a_line_is_left_when_its_error_rises_clearly(monkeypatch):
    X, y = moons(200, labels=60)
    fits = Spoilt(good=(0.001, 0.002))
    monkeypatch.setattr("homophily.selection.evaluation._Fits", fits)
    solvers = tuple({"sigma_f": 1.3, "lambda2": value} for value in (0.001, 0.002, 0.004, 0.008, 0.016))
    next_line = tuple({"sigma_f": 2.0, "lambda2": value} for value in (0.001, 0.02))
    outcome = evaluate(
        Group(0, "relationships", "err", {}, solvers + next_line), X, y, validation=np.arange(30, 60), n_jobs=1
    )
    assert [weight for weight, _ in fits.asked] == [0.001, 0.002, 0.004, 0.001, 0.02]
    assert [result.error is None for result in outcome.results] == [False] * 3 + [True] * 2 + [False] * 2
    assert not outcome.late


def test_a_trial_that_cannot_win_is_stopped_between_folds(monkeypatch):
    X, y = moons(200, labels=60)
    fits = Spoilt(good=(0.001,))
    monkeypatch.setattr("homophily.selection.evaluation._Fits", fits)
    solvers = ({"sigma_f": 1.3, "lambda2": 0.001}, {"sigma_f": 2.0, "lambda2": 0.002})
    outcome = evaluate(Group(0, "relationships", "err", {}, solvers), X, y, n_jobs=1)
    assert [number for weight, number in fits.asked if weight == 0.002] == [0]
    first, second = outcome.results
    assert not first.pruned
    assert second.pruned
    assert 0 < second.held_out < first.held_out


def test_time_that_is_over_leaves_trials_out():
    X, y = moons(200, labels=60)
    told = []
    outcome = evaluate(irr_group(0.01, 0.1), X, y, seconds=-1.0, callback=told.append)
    assert outcome.late
    assert [trial.pruned for trial in told] == [True, True]
    assert all(result.pruned and result.error is None for result in outcome.results)


def test_trials_warn_of_nothing_and_leave_the_filters_alone():
    X, y = blobs(120, classes=3, labels=40)
    far = np.vstack([X, X + 1000.0])
    group = Group(0, "relationships", "err", {"n_neighbors": 4}, ({"max_iter": 1, "tol": 1e-9},))
    evaluate(group, far, np.append(y, np.full(120, -1)))
    with pytest.warns(ConvergenceWarning):
        ERRClassifier(max_iter=1, tol=1e-9).fit(X, y)


# -- choosing ----------------------------------------------------------------------------------------------------------


def trial(number, error, *, pruned=False, **parameters):
    return Trial(number, "graph", "irr", parameters, error, 0.0, 50, 0.1, pruned)


def test_smoothing_is_the_posterior_mean_of_a_gaussian_process():
    rng = np.random.default_rng(0)
    places, values = rng.normal(size=(6, 2)), rng.normal(size=6)
    found = smoothed(places, values, 0.3)
    own = values.var() - 0.3
    for i in range(6):
        similarity = [own * np.exp(-0.5 * np.sum((places[i] - other) ** 2)) for other in places]
        every = [[own * np.exp(-0.5 * np.sum((one - other) ** 2)) for one in places] for other in places]
        weights = np.linalg.inv(np.array(every) + 0.3 * np.eye(6)) @ similarity
        assert_allclose(found[i], values.mean() + weights @ (values - values.mean()), atol=1e-12)


def ranked(trials, dimensions, home):
    return rank(trials, dimensions, [home] * len(trials))


def test_a_lucky_trial_among_bad_neighbours_is_not_chosen():
    dimensions = {"lambda1": Dimension(1e-3, 1e3, step=2.0)}
    errors = {0.01: 0.30, 0.02: 0.14, 0.04: 0.30, 0.08: 0.26, 0.16: 0.20, 0.32: 0.16, 0.64: 0.15, 1.28: 0.16, 2.56: 0.2}
    trials = [trial(i, error, lambda1=value) for i, (value, error) in enumerate(errors.items())]
    assert ranked(trials, dimensions, {"lambda1": 1.0})[0].parameters == {"lambda1": 0.64}


def test_many_held_out_answers_are_believed():
    dimensions = {"lambda1": Dimension(1e-3, 1e3, step=2.0)}
    errors = {0.01: 0.30, 0.02: 0.14, 0.04: 0.30, 0.08: 0.26, 0.16: 0.20, 0.32: 0.16, 0.64: 0.15, 1.28: 0.16}
    trials = [
        trial(i, error, lambda1=value)._replace(held_out=100_000) for i, (value, error) in enumerate(errors.items())
    ]
    assert ranked(trials, dimensions, {"lambda1": 0.1})[0].parameters == {"lambda1": 0.02}


def test_equal_errors_are_parted_by_the_loss_then_by_the_way_from_the_home():
    dimensions = {"lambda1": Dimension(1e-6, 1e6, step=2.0)}
    far = [trial(i, 0.2, lambda1=value) for i, value in enumerate((1e-5, 1e-1, 1e5))]
    assert [each.number for each in ranked(far, dimensions, {"lambda1": 0.1})] == [1, 0, 2]
    surer = [*far[:2], far[2]._replace(loss=-1.0)]
    assert ranked(surer, dimensions, {"lambda1": 1e5})[0].number == 2


def test_pruned_trials_are_not_chosen_but_warn_of_their_neighbourhood():
    dimensions = {"lambda1": Dimension(1e-3, 1e3, step=2.0)}
    trials = [trial(0, 0.2, lambda1=0.1), trial(1, 0.2, lambda1=10.0), trial(2, 0.9, lambda1=0.1, pruned=True)]
    assert [each.number for each in ranked(trials, dimensions, {"lambda1": 1.0})] == [1, 0]


# -- the whole search --------------------------------------------------------------------------------------------------


def test_select_finds_parameters_fits_and_tells():
    X, y = moons(300, labels=60)
    seen = []
    validation = np.arange(30, 60)
    found = select(X, y, validation=validation, trials=16, n_jobs=2, callback=seen.append, symmetrize="max")
    assert isinstance(found.best, Best)
    assert sorted(seen, key=lambda trial: trial.number) == found.trials
    assert len(found.trials) == 16
    assert found.best.trial in [trial.number for trial in found.trials]
    few = np.where(np.arange(300) < 30, y, -1)
    again = ERRClassifier(**found.best.parameters).fit(X, few)
    assert again.symmetrize == "max"
    assert_allclose(found.estimator_.solution_, again.solution_, atol=1e-9)
    json.dumps([trial._asdict() for trial in found.trials])


def test_the_number_of_threads_changes_no_choice():
    X, y = moons(300, labels=40)
    one, two = (select(X, y, trials=12, n_jobs=jobs) for jobs in (1, 2))
    assert one.best == two.best
    assert [trial[:6] for trial in one.trials] == [trial[:6] for trial in two.trials]


def test_a_callback_that_raises_ends_the_search():
    X, y = moons(200, labels=40)
    calls = []

    def stop(trial):
        calls.append(trial)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        select(X, y, trials=20, n_jobs=1, callback=stop)
    assert len(calls) == 3


def test_without_time_a_search_ends_where_it_begins():
    X, y = moons(300, labels=40)
    began = time.perf_counter()
    found = select(X, y, trials=100_000, seconds=1e-6)
    assert time.perf_counter() - began < 30
    assert found.best.trial is None
    graph = {"n_neighbors": 6, "weights": "global", "sigma_x": 0.75, "space": "input"}
    assert found.best.parameters == {**graph, "lambda1": 3.0, "sigma_f": 1.3, "lambda2": 0.3, "repulsion": 1.0}
    assert_allclose(found.estimator_.solution_, ERRClassifier(**found.best.parameters).fit(X, y).solution_)


def test_seconds_end_a_search_that_has_trials_left():
    X, y = moons(300, labels=40)
    select(X, y, trials=4)
    began = time.perf_counter()
    found = select(X, y, trials=100_000, seconds=2.0, vary=["n_neighbors", "lambda1", "sigma_f", "lambda2"])
    assert time.perf_counter() - began < 20
    assert {trial.stage for trial in found.trials} == {"graph", "relationships"}


# -- estimators that search --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [IRRClassifier, ERRClassifier])
def test_a_fit_that_searches_is_the_fit_with_the_parameters_it_chose(estimator):
    X, y = blobs(240, classes=3, labels=40)
    names = np.array(["ant", "bee", "cow", ""])[y]
    model = estimator(search=10, symmetrize="max")
    before = model.get_params()
    model.fit(X, names)
    assert model.get_params() == before
    assert len(model.search_) == 10
    assert set(model.chosen_) >= {"n_neighbors", "lambda1"}
    assert "symmetrize" not in model.chosen_
    plain = estimator(symmetrize="max", **model.chosen_).fit(X, names)
    assert_allclose(model.solution_, plain.solution_, atol=1e-9)
    new = X[:30] + 0.1
    assert_allclose(model.predict_proba(new), plain.predict_proba(new), atol=1e-6)
    assert (model.predict(new) == plain.predict(new)).all()
    assert not hasattr(clone(model), "chosen_")
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.predict(new) == model.predict(new)).all()


def test_parameters_that_are_given_stay():
    X, y = moons(200, labels=40)
    model = ERRClassifier(search={"trials": 12, "n_neighbors": 9}, lambda1=0.02, lambda2=0.001).fit(X, y)
    assert {trial.parameters["n_neighbors"] for trial in model.search_} == {9}
    assert {trial.parameters["lambda1"] for trial in model.search_} == {0.02}
    assert not {"lambda1", "lambda2"} & set(model.chosen_)
    assert model.graph_.n_neighbors == 9


def test_on_a_graph_only_the_solver_is_searched():
    X, y = moons(200, labels=40)
    graph = KNNGraph(n_neighbors=7).fit(X)
    model = ERRClassifier(search=8).fit(graph, y)
    assert model.graph_ is graph
    assert set(model.chosen_) <= {"lambda1", "sigma_f", "lambda2", "repulsion"}


def test_searched_and_validation_points_are_not_fitted():
    X, y = moons(200, labels=40)
    validation = np.arange(20, 40)
    model = IRRClassifier(search={"trials": 4, "validation": validation}).fit(X, y)
    few = np.where(np.arange(200) < 20, y, -1)
    assert_allclose(model.solution_, IRRClassifier(**model.chosen_).fit(X, few).solution_, atol=1e-9)


def test_a_fit_without_search_forgets_an_earlier_one():
    X, y = moons(200, labels=40)
    model = ERRClassifier(search=8).fit(X, y)
    model.set_params(search=None).fit(X, y)
    assert not hasattr(model, "chosen_")
    assert_allclose(model.solution_, ERRClassifier().fit(X, y).solution_)


def test_a_stored_model_keeps_the_parameters_that_were_chosen():
    X, y = moons(200, labels=40)
    model = ERRClassifier(search=8, class_prior=np.array([0.5, 0.5])).fit(X, y)
    again = restore_classifier(classifier_state(model), model.graph_)
    assert again.search is None
    for name, value in model.chosen_.items():
        assert getattr(again, name) == value
    assert_allclose(again.decision_function(X + 0.05), model.decision_function(X + 0.05))


@pytest.mark.parametrize("search", [0.5, "yes", -3])
def test_a_wrong_search_is_refused(search):
    X, y = moons(100, labels=20)
    with pytest.raises(ValueError, match="'search' parameter of ERRClassifier"):
        ERRClassifier(search=search).fit(X, y)


def test_a_warm_start_goes_along_rising_lambda2(monkeypatch):
    X, y = moons(200, labels=60)
    solvers = tuple({"sigma_f": 1.3, "lambda1": 1.0, "lambda2": value} for value in (0.1, 0.2, 0.4))
    group = Group(0, "relationships", "err", {}, solvers)
    starts = []
    fit = ERRClassifier.fit

    def noted(self, X, y, sample_weight=None, init=None):
        fitted = fit(self, X, y, sample_weight, init)
        starts.append((self.max_iter, init, fitted.solution_))
        return fitted

    monkeypatch.setattr(ERRClassifier, "fit", noted)
    for warm in (False, True):
        starts.clear()
        evaluate(group, X, y, validation=np.arange(30, 60), n_jobs=1, warm_start=warm)
        irr, *fits = starts
        assert [init is irr[2] for _, init, _ in fits] == [True, not warm, not warm]
        if warm:
            assert all(later[1] is earlier[2] for earlier, later in pairwise(fits))


def test_trials_of_one_graph_solve_irr_once_for_each_lambda1(monkeypatch):
    X, y = moons(200, labels=60)
    solved = []
    fit = ERRClassifier.fit

    def noted(self, *arguments, **more):
        if self.max_iter == 0:
            solved.append(self.lambda1)
        return fit(self, *arguments, **more)

    monkeypatch.setattr(ERRClassifier, "fit", noted)
    found = select(KNNGraph().fit(X), y, validation=np.arange(30, 60), trials=20, n_jobs=2)
    tried = [trial.parameters for trial in found.trials if trial.stage == "relationships"]
    assert len({parameters["sigma_f"] for parameters in tried}) > 1
    assert sorted(solved) == sorted({parameters["lambda1"] for parameters in tried})


def test_with_cosine_distances_relationships_must_be_clearly_better():
    def told(gain):
        search = Search(1000, 2, fixed={"metric": "cosine"}, trials=20)
        while groups := search.ask():
            error = 0.3 if groups[0].method == "irr" else 0.3 - gain
            search.tell(
                Outcome(group, (Result(error, 2 * error, 50, 0.1),) * len(group.trials), 0.1) for group in groups
            )
        return search

    doubtful, clear = told(0.02), told(0.2)
    irr = next(trial for trial in doubtful.trials if trial.number == doubtful.best.trial)
    assert (irr.method, doubtful.best.method) == ("irr", "err")
    assert doubtful.best.parameters["lambda2"] == 0.0
    assert irr.parameters.items() <= doubtful.best.parameters.items()
    assert clear.best.parameters["lambda2"] > 0.0
