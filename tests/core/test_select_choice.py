"""From judged trials to a choice."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from homophily.selection import Trial
from homophily.selection.choice import rank, smoothed
from homophily.selection.sampler import Dimension


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


def test_a_stronger_pull_keeps_to_where_the_search_begins():
    dimensions = {"lambda1": Dimension(1e-3, 1e3, step=10.0)}
    trials = [trial(0, 0.20, lambda1=1.0), trial(1, 0.20, lambda1=10.0), trial(2, 0.16, lambda1=100.0)]
    home = [{"lambda1": 1.0}] * 3
    assert rank(trials, dimensions, home, pull=0.0)[0].number == 2
    assert rank(trials, dimensions, home, pull=1.0)[0].number == 0


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
