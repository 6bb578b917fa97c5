"""``make demo``: starts a service that labels scikit-learn's digits from 50 labels; table and picture.

The picture compares with classifiers that learn from the labelled digits alone, and shows a map of all digits.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from homophily_client import Client, ClientError, JobHandle, Model
from homophily_service.cli.own_service import embedded_service
from homophily_service.cli.progress import follow_own
from homophily_service.cli.screen import print_json, print_result, print_status, print_table
from homophily_service.cli.uploads import send
from homophily_service.plots.canvas import colours

LABELS = 50
MORE_LABELS = 10
NEW_POINTS = 200
MAP = "map from pairs: nearest is another digit"
DRAWS = 3
METHODS: dict[str, dict[str, Any]] = {
    "IRR, p = 1": {"method": "irr", "power": 1},
    "IRR, p = 2": {"method": "irr", "power": 2},
    "ERR, p = 1": {"method": "err", "power": 1},
    "ERR, p = 2": {"method": "err", "power": 2},
}
BEST = "ERR, p = 2"
# For the map: pairs of digits that are the same, and pairs that are not.
LINKS_OF_EACH_KIND = 100


class DemoFailed(Exception):
    """Something went wrong; the message says what."""


class Row(NamedTuple):
    """A line of the table."""

    what: str
    #: Error rates, one per draw of labels.
    errors: list[float]
    #: Seconds, one per draw.
    seconds: list[float]
    #: Jobs whose graph existed already; None where no graph is needed.
    reused: int | None
    #: The error rate of the model that this one was made from.
    before: float | None = None


class Digits(NamedTuple):
    """The points that are uploaded, and those that are new."""

    X: NDArray[Any]
    y: NDArray[Any]
    new_X: NDArray[Any]
    new_y: NDArray[Any]


class Shown(NamedTuple):
    """What the picture shows."""

    digits: Digits
    #: The labels of the first draw.
    given: dict[int, int]
    rows: list[Row]
    #: Error rates of the usual classifiers, one per draw of labels.
    usual: dict[str, list[float]]
    #: Coordinates of the map.
    F: NDArray[Any]


def run(picture: Path = Path("demo.png"), *, as_json: bool = False) -> None:
    """Run the demonstration."""
    began = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="homophily-demo-") as folder,
            embedded_service(Path(folder)) as target,
            Client(target) as client,
        ):
            shown = _work(client)
        print_status("✓ the service has stopped cleanly")
        is_drawn = _draw(shown, picture)
    except (ClientError, OSError, ValueError, TypeError) as error:
        raise DemoFailed(str(error)) from error
    seconds = time.monotonic() - began
    if as_json:
        rows = [row._asdict() for row in shown.rows]
        print_json({"rows": rows, "usual": shown.usual, "picture": str(picture) if is_drawn else None})
        return
    print_result("")
    _print_rows(shown)
    print_result(f"\n{seconds:.0f} s in all." + (f" The picture is in {picture}." if is_drawn else ""))
    print_result(f"Go on with your own data: `{command()} serve` runs the service; then, in another terminal,")
    print_result(f"  {command()} fit points.csv --label-column label")


def command() -> str:
    """The command as it can be typed here: make's virtual environment need not be active."""
    return "homophily" if shutil.which("homophily") else shlex.quote(str(Path(sys.executable).with_name("homophily")))


def _work(client: Client) -> Shown:
    """Upload, fit, transduce, predict, map."""
    digits = load_and_split()
    dataset = send(client, digits.X, "digits", "scikit-learn's digits", "digits")
    print_status(f"✓ {dataset.points:,} digits uploaded, {len(digits.new_y)} kept back as new points")
    rows: list[Row] = []
    first_models: dict[str, Model] = {}
    for name, parameters in METHODS.items():
        row = Row(name, [], [], 0)
        for draw in range(DRAWS):
            given = draw_labels(digits.y, draw)
            job = client.fit(dataset, given, validation=_others(digits.y, given), solver=parameters)
            model = _follow(job, f"{name}, fit {draw + 1} of {DRAWS}")
            row = _with(row, model)
            first_models.setdefault(name, model)
        rows.append(row)
        print_status(f"✓ {name}: {_spread(row.errors)} error from {LABELS} labels")
    best, given = first_models[BEST], draw_labels(digits.y, 0)
    solution = client.read_solution(best, ("labels",))
    assert solution.labels is not None
    more = {one.point: int(digits.y[one.point]) for one in client.suggest(best, MORE_LABELS).points}
    job = client.transduce(best, more, validation=_others(digits.y, given | more))
    changed = _follow(job, f"{MORE_LABELS} more labels")
    rows.append(_with(Row(f"fit 1, {MORE_LABELS} more labels", [], [], 0, best.error_rate), changed))
    print_status(
        f"✓ {MORE_LABELS} more labels, where it asked for them: {job.info.changed_points} points changed their class"
    )
    began = time.monotonic()
    answers = client.predict(changed, digits.new_X).labels
    seconds = time.monotonic() - began
    rows.append(Row(f"fit 1, {NEW_POINTS} new points", [float(np.mean(answers != digits.new_y))], [seconds], None))
    print_status(f"✓ {NEW_POINTS} new points predicted")
    pairs = draw_pairs(digits.y)
    mapping = client.embed(best, must_link=pairs["must_link"], cannot_link=pairs["cannot_link"])
    follow_own(mapping, quiet=True, title="a map")
    embedding = mapping.result()
    F = client.read_embedding(embedding, ["coordinates"]).coordinates
    assert F is not None
    rows.append(Row(MAP, [_map_error(F, digits.y)], [sum(embedding.seconds.values())], int(embedding.graph.reused)))
    print_status(f"✓ a map from {2 * LINKS_OF_EACH_KIND} pairs of digits that are the same or not")
    return Shown(digits, given, rows, usual_errors(digits), F)


def usual_errors(digits: Digits) -> dict[str, list[float]]:
    """Error rates of the usual classifiers, which learn from the labelled digits alone, for the same draws."""
    errors: dict[str, list[float]] = {}
    for draw in range(DRAWS):
        known = list(draw_labels(digits.y, draw))
        others = np.setdiff1d(np.arange(len(digits.y)), known)
        classifiers = {
            "random forest": RandomForestClassifier(100, random_state=0),
            "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
            "1-nearest neighbour": KNeighborsClassifier(1),
        }
        for name, classifier in classifiers.items():
            answers = classifier.fit(digits.X[known], digits.y[known]).predict(digits.X[others])
            errors.setdefault(name, []).append(float(np.mean(answers != digits.y[others])))
    return errors


def draw_pairs(y: NDArray[Any]) -> dict[str, list[tuple[int, int]]]:
    """Pairs of points drawn at random: as many of the same digit as of different ones."""
    rng = np.random.default_rng(0)
    pairs: dict[str, list[tuple[int, int]]] = {"must_link": [], "cannot_link": []}
    while min(map(len, pairs.values())) < LINKS_OF_EACH_KIND:
        i, j = (int(point) for point in rng.choice(len(y), 2, replace=False))
        kind = pairs["must_link" if y[i] == y[j] else "cannot_link"]
        if len(kind) < LINKS_OF_EACH_KIND:
            kind.append((i, j))
    return pairs


def _map_error(F: NDArray[Any], y: NDArray[Any]) -> float:
    """The share of points whose nearest point on the map is another digit."""
    nearest = NearestNeighbors(n_neighbors=1).fit(F).kneighbors(return_distance=False)[:, 0]
    return float(np.mean(y[nearest] != y))


def load_and_split() -> Digits:
    """The digits, some kept back."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    new, kept = np.sort(order[:NEW_POINTS]), np.sort(order[NEW_POINTS:])
    return Digits(X[kept], y[kept], X[new], y[new])


def draw_labels(y: NDArray[Any], seed: int) -> dict[int, int]:
    """The labels of 50 points drawn at random, every class among them."""
    rng = np.random.default_rng(seed)
    known = rng.choice(len(y), LABELS, replace=False)
    while len(np.unique(y[known])) < 10:
        known = rng.choice(len(y), LABELS, replace=False)
    return {int(point): int(y[point]) for point in known}


# -- what is shown -----------------------------------------------------------------------------------------------------


def _follow(job: JobHandle[Model], title: str) -> Model:
    follow_own(job, quiet=True, title=title)
    return job.result()


def _with(row: Row, model: Model) -> Row:
    assert model.error_rate is not None
    assert row.reused is not None
    return row._replace(
        errors=[*row.errors, model.error_rate],
        seconds=[*row.seconds, sum(model.seconds.values())],
        reused=row.reused + model.graph.reused,
    )


def _others(y: NDArray[Any], given: dict[int, int]) -> dict[int, int]:
    """The true labels of the unlabelled points, only to compare with."""
    return {point: int(label) for point, label in enumerate(y) if point not in given}


def _spread(errors: list[float]) -> str:
    mean = f"{100 * np.mean(errors):.2f}"
    if len(errors) == 1:
        return f"{mean} %"
    return f"{mean} ± {100 * np.std(errors) / np.sqrt(len(errors) - 1):.2f} %"


def _print_rows(shown: Shown) -> None:
    print_table(
        "",
        ["method", "error on the unlabelled", "seconds per fit", "graph reused"],
        [(name, _spread(errors), None, None) for name, errors in shown.usual.items()]
        + [
            (
                row.what,
                _spread(row.errors) + ("" if row.before is None else f" (was {100 * row.before:.2f} %)"),
                round(float(np.mean(row.seconds)), 2),
                None if row.reused is None else f"{row.reused} of {len(row.errors)}",
            )
            for row in shown.rows
        ],
    )


def _draw(shown: Shown, path: Path) -> bool:
    """Write the picture; False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print_status("There is no picture, as matplotlib is not installed: pip install 'homophily[plot]'")
        return False
    digits, given = shown.digits, shown.given
    figure: Any = Figure(figsize=(13, 4.4), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=[1.0, 1.25, 1.1])
    known = sorted(given, key=lambda point: (given[point], point))
    _show_digits(left, digits.X, known, f"Given: {LABELS} labels for {len(digits.y):,} digits")
    (best,) = [row for row in shown.rows if row.what == BEST]
    _show_errors(middle, shown.usual | {"ERR": best.errors}, len(digits.y) - LABELS)
    (found,) = [row for row in shown.rows if row.what == MAP]
    _show_map(right, shown.F, digits.y, found.errors[0])
    figure.savefig(path, dpi=110)
    return True


def _show_errors(figure: Any, errors: dict[str, list[float]], points: int) -> None:
    """Bars with the mean error, and a dot for each draw of labels."""
    figure.suptitle(f"Wrong among the other {points:,}", fontweight="bold")
    axis = figure.subplots()
    names = sorted(errors, key=lambda name: -float(np.mean(errors[name])))
    means = [100 * float(np.mean(errors[name])) for name in names]
    bars = axis.barh(names, means, color=["#e69f00" if name == "ERR" else "#c9ced3" for name in names], height=0.65)
    for bar, name, mean in zip(bars, names, means, strict=True):
        place = bar.get_y() + bar.get_height() / 2
        axis.plot(100 * np.array(errors[name]), [place] * len(errors[name]), "k.", alpha=0.35, markersize=5)
        right = max(mean, 100 * max(errors[name]))
        axis.text(right + 0.02 * max(means), place, f"{mean:.1f} %", va="center", fontweight="bold")
    axis.set_xlim(0, 1.35 * max(means))
    axis.set_xticks([])
    axis.tick_params(axis="y", length=0)
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.set_xlabel(f"mean of {DRAWS} draws of labels; a dot is one draw")


def _show_map(figure: Any, F: NDArray[Any], y: NDArray[Any], error: float) -> None:
    """Every point as its digit; points far away are drawn at the edge, as they would shrink the rest."""
    figure.suptitle(
        f"A map from {2 * LINKS_OF_EACH_KIND} pairs: the nearest point\nis another digit for {100 * error:.1f} %",
        fontweight="bold",
    )
    axis = figure.subplots()
    low, high = np.quantile(F, [0.02, 0.98], axis=0)
    F = np.clip(F, low - 0.2 * (high - low), high + 0.2 * (high - low))
    for digit, colour in enumerate(colours(10)):
        axis.scatter(*F[y == digit].T, marker=f"${digit}$", s=20, color=colour, linewidths=0.2)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_color("#cccccc")


def _show_digits(figure: Any, X: NDArray[Any], points: list[int], title: str) -> None:
    figure.suptitle(title, fontweight="bold")
    for axis, point in zip(figure.subplots(5, 10).ravel(), points, strict=True):
        axis.set_axis_off()
        axis.imshow(X[point].reshape(8, 8), cmap="gray_r")


if __name__ == "__main__":
    run()
