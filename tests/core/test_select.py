"""The search for hyper-parameters: what is asked, given what was told."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

from homophily import TunedClassifier
from homophily.selection import Outcome, Result, Search
from homophily.selection.driver import find
from tests.core.small_sets import moons


def pretend(group, valley=None, answers=50):
    """An outcome without a fit: the error grows with the distance from a valley, and is larger for IRR."""
    valley = valley or {"n_neighbors": 20, "sigma_f": 0.8, "lambda2": 1.5}
    results = []
    for solver in group.trials:
        parameters = {**group.graph, **solver}
        steps = [np.log(parameters[name] / best) for name, best in valley.items() if name in parameters]
        error = min(0.5, (0.2 if group.method == "irr" else 0.1) + 0.02 * float(np.sum(np.square(steps))))
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


def test_a_choice_among_many_classes_is_drawn_to_its_beginning_more():
    def leaves_its_beginning(classes, gain):
        search = Search(1000, classes, method="irr", trials=8, graph=False)
        begin = search.ranges.defaults("graph")["lambda1"]
        for group in search.ask():
            errors = [0.3 - (gain if trial["lambda1"] == 10 * begin else 0.0) for trial in group.trials]
            search.tell([Outcome(group, tuple(Result(error, 0.5, 500, 0.1) for error in errors), 0.1)])
        return search.best.solver["lambda1"] != begin

    gains = np.linspace(0.0, 0.2, 81)
    least = {classes: min(gain for gain in gains if leaves_its_beginning(classes, gain)) for classes in (2, 10)}
    assert least[10] > least[2] > 0.0


def test_the_backend_is_one_of_graph_and_fit():
    group = Search(1000, 2, fixed={"backend": "numpy"}).ask()[0]
    assert group.graph["backend"] == "numpy"
    found = find(*moons(100, labels=20), trials=2, n_jobs=1, backend="numpy")
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
    tuned = TunedClassifier(trials=4, n_jobs=1, vary=["sigma_x", "lambda2"]).fit(X, y)
    assert {trial.parameters["sigma_x"] for trial in tuned.results_} == {1.0, 1.5}
    assert len({trial.loss for trial in tuned.results_ if trial.stage == "graph"}) == 2


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
    with pytest.raises(ValueError, match="without outcomes has no best"):
        _ = Search(100, 2).best


def test_more_classes_have_narrower_relationships_to_begin_with():
    widths = [Search(1000, classes).ranges.defaults("relationships")["sigma_f"] for classes in (2, 3)]
    assert_allclose(widths, [1.3, 0.919])
    for apart in (Search(1000, 3, fixed={"multiclass": "one-vs-rest"}), Search(5000, 3)):
        assert apart.ranges.defaults("relationships")["sigma_f"] == 1.3


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


def test_optuna_is_needed_only_beyond_the_design(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    search = Search(3000, 2, trials=18)
    while groups := search.ask():
        search.tell(map(pretend, groups))
    assert (len(search.trials), search.best.method) == (18, "err")
    search = Search(3000, 2, method="irr", trials=240)
    search.tell(map(pretend, search.ask()))
    with pytest.raises(ImportError, match=r"pip install 'homophily\[search\]'"):
        search.ask()


def told_gain(gain, metric):
    """A search in which relationships lower the error by ``gain`` everywhere."""
    search = Search(1000, 2, fixed={"metric": metric}, trials=20)
    while groups := search.ask():
        error = 0.3 if groups[0].method == "irr" else 0.3 - gain
        search.tell(Outcome(group, (Result(error, 2 * error, 50, 0.1),) * len(group.trials), 0.1) for group in groups)
    return search


@pytest.mark.parametrize(("gain", "taken"), [(0.02, True), (-0.02, True), (-0.2, False)])
def test_relationships_that_are_clearly_worse_than_none_are_not_chosen(gain, taken):
    assert (told_gain(gain, "euclidean").best.parameters["lambda2"] > 0.0) is taken


def test_with_cosine_distances_relationships_must_be_clearly_better():
    doubtful, clear = told_gain(0.02, "cosine"), told_gain(0.2, "cosine")
    irr = next(trial for trial in doubtful.trials if trial.number == doubtful.best.trial)
    assert (irr.method, doubtful.best.method) == ("irr", "err")
    assert doubtful.best.parameters["lambda2"] == 0.0
    assert irr.parameters.items() <= doubtful.best.parameters.items()
    assert clear.best.parameters["lambda2"] > 0.0
