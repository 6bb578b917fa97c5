"""Active learning: how the error falls with the labels that a strategy asks for, beside graphlearning's strategies."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.datasets import load_digits

from benchmarks.data import Classes, DataSet, Floats, error_percent, manifolds, read, two_and_five
from benchmarks.measure import cpu_timed, timed, warm_up
from benchmarks.report import Options, Report, Row
from benchmarks.service import serving
from homophily import ERRClassifier, KNNGraph, relationship_energy
from homophily.active import suggest_points, suspicious_labels
from homophily.active.situation import Situation
from homophily.active.strategies import STRATEGIES
from homophily.graph.spectral import spectral_vectors
from homophily_client import Client

#: The classifier and the default strategy were chosen on seeds 0 to 3.
FIRST_SEED, SEEDS, BATCH, MOST_LABELS = 10, 5, 5, 100
SETS = ("ssl_digit1", "ssl_text", "pcmac", "gcat", "ssl_coil", "usps", "pendigits")
#: Sets beyond this size show the strategies that stand for their kind only.
LARGE = 2_500
FLIPPED, GIVEN = (0.05, 0.10), 200
TURNS = 15

#: Labels after each batch, and errors in percent.
Curve = list[float]
Chooser = Callable[[ERRClassifier, Classes, int], list[int]]


def run(options: Options, report: Report) -> None:
    warm_up()
    seeds = range(FIRST_SEED, FIRST_SEED + (options.seeds or (1 if options.quick else SEEDS)))
    rows: list[Row] = []
    for data in sets(options):
        graph = KNNGraph(n_jobs=1).fit(data.X)
        curves = {
            name: np.array([curve(graph, data.y, chooser, seed) for seed in seeds])
            for name, chooser in ours(graph).items()
        }
        curves |= {
            name: np.array([learn(graph, data.y, seed) for seed in seeds]) for name, learn in peers(graph).items()
        }
        random = curves["random"].mean()
        found: list[Row] = [
            {
                "set": data.name,
                "strategy": name,
                "mean error, %": float(errors.mean()),
                "beside random": float(errors.mean() / random),
                **{f"after {labels}": at(errors, labels, data.y) for labels in (20, 40, 60, 100)},
            }
            for name, errors in curves.items()
        ]
        title = f"{data.name}: error in %, from one label per class to {MOST_LABELS} labels in batches of {BATCH}"
        report.table(title, found)
        rows += found
    report.table("Mean over the sets", averages(rows))
    report.table(f"{GIVEN} labels, some flipped on purpose", list(suspects(options, seeds)))
    report.table("60,000 points, seconds of the clock, one core", [speed(options)])


def sets(options: Options) -> list[DataSet]:
    """The real sets, or stand-ins."""
    digits = DataSet("digits", *load_digits(return_X_y=True))
    if options.data is None:
        return [digits, two_and_five("digits {2, 5}", digits.X, digits.y)][: 1 if options.quick else 2]
    if options.quick:
        return [read(options.data, "ssl_digit1")]
    return [*(read(options.data, name) for name in SETS), test_digits(options.data)]


def test_digits(folder: Path) -> DataSet:
    """MNIST's 10,000 test digits."""
    with np.load(folder / "mnist.npz", allow_pickle=False) as archive:
        return DataSet("mnist, test digits", archive["X_test"].astype(np.float32), archive["y_test"].astype(np.int64))


def first_labels(y: Classes, seed: int) -> list[int]:
    """One point of each class."""
    rng = np.random.default_rng(seed)
    return [int(rng.choice(np.flatnonzero(y == c))) for c in np.unique(y)]


def few_of(y: Classes, labelled: list[int]) -> Classes:
    few = np.full(len(y), -1)
    few[labelled] = y[labelled]
    return few


def at(curves: Floats, labels: int, y: Classes) -> float:
    """The mean error once there are at least this number of labels."""
    batch = max(0, -(-(labels - len(np.unique(y))) // BATCH))
    return float(curves[:, min(batch, curves.shape[1] - 1)].mean())


def ours(graph: KNNGraph) -> dict[str, Chooser]:
    """Our strategies with our classifier, and random choice."""
    names = [name for name in STRATEGIES if graph.n_points < LARGE or name in ("surroundings", "margin")]

    def chooser(name: Any) -> Chooser:
        return lambda model, _, __: [one.point for one in suggest_points(model, BATCH, strategy=name)]

    def drawn(_: ERRClassifier, few: Classes, seed: int) -> list[int]:
        rng = np.random.default_rng([seed, int(np.sum(few >= 0))])
        return [int(point) for point in rng.choice(np.flatnonzero(few < 0), BATCH, replace=False)]

    return {"random": drawn} | {name: chooser(name) for name in names}


def curve(graph: KNNGraph, y: Classes, choose: Chooser, seed: int) -> Curve:
    """Errors of the default classifier after each batch."""
    labelled, errors = first_labels(y, seed), []
    while True:
        few = few_of(y, labelled)
        model = ERRClassifier(n_jobs=1).fit(graph, few)
        errors.append(error_percent(model.transduction_, y, few))
        if len(labelled) >= MOST_LABELS:
            return errors
        labelled += choose(model, few, seed)


def peers(graph: KNNGraph) -> dict[str, Callable[[KNNGraph, Classes, int], Curve]]:
    """The strategies of graphlearning with its own classifiers, where it is installed."""
    try:
        from graphlearning import active_learning, ssl
    except ImportError:
        return {}
    if graph.n_components > 1:
        # Its conjugate gradients divide 0 by 0 then, and do not end.
        return {}
    W = csr_matrix(graph.W)
    values, vectors = spectral_vectors(graph, min(100, graph.n_points), n_jobs=1)
    covariance = {"C": np.diag(1.0 / (values + 0.01)), "V": vectors}
    uncertain = active_learning.unc_sampling

    def learner(acquisition: Any, settings: dict[str, Any], **model: Any) -> Callable[[KNNGraph, Classes, int], Curve]:
        def learn(_: KNNGraph, y: Classes, seed: int) -> Curve:
            start = np.array(first_labels(y, seed))
            how = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in settings.items()}
            active = active_learning.active_learner(ssl.laplace(W, **model), acquisition, start, y[start], **how)
            errors = []
            while True:
                few = few_of(y, active.labeled_ind.tolist())
                errors.append(error_percent(active.u.argmax(axis=1), y, few))
                if len(active.labeled_ind) >= MOST_LABELS:
                    return errors
                chosen = active.select_queries(batch_size=BATCH)
                active.update(chosen, y[chosen])

        return learn

    found = {
        "graphlearning smallest margin": learner(uncertain, {}, reweighting="poisson"),
        "graphlearning norm": learner(uncertain, {"unc_method": "unc_2norm"}, reweighting="poisson", tau=0.01),
        "graphlearning VarOpt": learner(active_learning.var_opt, covariance, reweighting="poisson"),
        "graphlearning SigmaOpt": learner(active_learning.sigma_opt, covariance, reweighting="poisson"),
        "graphlearning model change": learner(active_learning.model_change, covariance, reweighting="poisson"),
    }
    return {
        name: learn for name, learn in found.items() if graph.n_points < LARGE or "norm" in name or "margin" in name
    }


def averages(rows: list[Row]) -> list[Row]:
    """The mean of each strategy that was run on all sets."""
    names = list(dict.fromkeys(str(row["strategy"]) for row in rows))
    count = len({row["set"] for row in rows})
    found: list[Row] = []
    for name in names:
        mine = [row for row in rows if row["strategy"] == name]
        if len(mine) == count:
            found.append(
                {"strategy": name}
                | {
                    column: float(np.mean([float(row[column] or 0.0) for row in mine]))
                    for column in ("mean error, %", "beside random")
                }
                | {"most beside random": max(float(row["beside random"] or 0.0) for row in mine)}
            )
    return found


def suspects(options: Options, seeds: range) -> Iterator[Row]:
    """How many flipped labels are found, by the precision at half of them, beside cleanlab."""
    for data in sets(options):
        graph = KNNGraph(n_jobs=1).fit(data.X)
        for share in FLIPPED:
            precision: dict[str, list[float]] = {}
            for seed in seeds:
                few, flipped = with_flips(data.y, share, seed)
                model = ERRClassifier(n_jobs=1).fit(graph, few)
                order = [one.point for one in suspicious_labels(model, all_labels=True)]
                precision.setdefault("ours", []).append(precision_at_half(order, flipped))
                theirs = cleanlab_order(data.X, few)
                if theirs is not None:
                    precision.setdefault("cleanlab", []).append(precision_at_half(theirs, flipped))
            row: dict[str, Any] = {"set": data.name, "flipped, %": 100.0 * share}
            for name, values in precision.items():
                row[f"precision at recall 0.5, {name}"] = float(np.mean(values))
            yield row


def with_flips(y: Classes, share: float, seed: int) -> tuple[Classes, set[int]]:
    """Labels of which some are of another class, and where those are."""
    rng = np.random.default_rng(seed)
    points = rng.choice(len(y), GIVEN, replace=False)
    few = few_of(y, points.tolist())
    flipped = points[: round(share * GIVEN)]
    classes = np.unique(y)
    for point in flipped:
        few[point] = rng.choice(classes[classes != y[point]])
    return few, set(flipped.tolist())


def precision_at_half(order: list[int], flipped: set[int]) -> float:
    """The precision where half of the flipped labels are among the first."""
    found, needed = 0, -(-len(flipped) // 2)
    for place, point in enumerate(order, start=1):
        found += point in flipped
        if found == needed:
            return found / place
    return 0.0


def cleanlab_order(X: Any, few: Classes) -> list[int] | None:
    """Labelled points by cleanlab's label quality, with a logistic regression held out in five folds."""
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return None
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    points = np.flatnonzero(few >= 0)
    given = np.unique(few[points], return_inverse=True)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = make_pipeline(MaxAbsScaler(), LogisticRegression(max_iter=1000))
        probabilities = cross_val_predict(model, X[points], given, cv=5, method="predict_proba")
    return [int(point) for point in points[np.argsort(get_label_quality_scores(given, probabilities))]]


def speed(options: Options) -> Row:
    """Twenty suggestions among 60,000 points, beside one evaluation of ERR's energy."""
    points = 2_000 if options.quick else 60_000
    X, y = manifolds(points, seed=3)
    graph = KNNGraph(n_jobs=1).fit(X)
    few = few_of(y, first_labels(y, 0) + first_labels(y, 1))
    model = ERRClassifier(n_jobs=1).fit(graph, few)
    suggest_points(model, 20)
    values, laplacian = Situation(model).margin[:, None], graph.laplacian(2)
    cpu, _ = cpu_timed(lambda: suggest_points(model, 20))
    seconds, served = asked_by_turns(X, few, model)
    evaluation, _ = timed(lambda: relationship_energy(values, laplacian, sigma_f=1.3))
    return {
        "points": points,
        "20 suggestions, p50": seconds,
        "CPU": cpu,
        "of an evaluation": seconds / evaluation,
        "Suggest, p50": served,
    }


def asked_by_turns(X: Any, few: Classes, model: ERRClassifier) -> tuple[float, float]:
    """The median times of twenty suggestions here and by a service that has the model in memory, asked in turn."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder)) as service,
        Client(service.target, timeout=300.0) as client,
    ):
        stored = client.fit(client.upload(X), few).result()
        client.suggest(stored, 20)
        ways = (lambda: suggest_points(model, 20)), (lambda: client.suggest(stored, 20))
        here, there = np.median([[timed(way)[0] for way in ways] for _ in range(TURNS)], axis=0)
    return float(here), float(there)
