"""Pictures of models and maps out of messages made by hand: there when there are data, readable, and never broken."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from homophily_client._pb import embedding_pb2, model_pb2
from homophily_client.results import Evaluation, ReliabilityBin, Search, Trial
from homophily_service.plots import embedding_pictures, model_pictures
from homophily_service.plots.answers import confusion_matrix, reliability_diagram, score_histogram
from homophily_service.plots.canvas import percent, words
from homophily_service.plots.fits import error_surface
from homophily_service.plots.maps import frame
from homophily_service.plots.report import Table, report_page

ODD = ["$x_1$", "<b>&amp;</b>", "a_b^{c", "\\$5\\frac", "日本語", "tab\tand\nline", "", "ß" * 80, "$", "{}%"]


def picture(content: bytes | None) -> NDArray[np.uint8]:
    """The pixels of a PNG of sensible size on which something is drawn."""
    assert content is not None
    assert content.startswith(b"\x89PNG")
    assert len(content) < 220_000
    with Image.open(io.BytesIO(content)) as image:
        assert 400 <= image.width <= 1600
        assert 250 <= image.height <= 1600
        pixels = np.asarray(image.convert("RGB"))
    assert 0.005 < (pixels < 250).any(axis=2).mean() < 0.9
    return pixels


def solved(points: int, classes: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Scores and answers."""
    rng = np.random.default_rng(seed)
    if classes == 2:
        scores = rng.normal(size=(points, 1))
        return scores, (scores[:, 0] > 0).astype(np.int32)
    scores = rng.normal(size=(points, classes))
    return scores, scores.argmax(axis=1).astype(np.int32)


def evaluated(points: int, classes: int) -> model_pb2.Evaluation:
    rng = np.random.default_rng(1)
    truth = rng.integers(0, classes, points)
    answers = np.where(rng.random(points) < 0.8, truth, rng.integers(0, classes, points))
    confusion = np.zeros((classes, classes), dtype=int)
    np.add.at(confusion, (truth, answers), 1)
    bins = [
        model_pb2.ReliabilityBin(confidence=one, accuracy=one * one, point_count=points) for one in (0.3, 0.6, 0.95)
    ]
    return model_pb2.Evaluation(
        point_count=points, error_rate=float(np.mean(truth != answers)), confusion=confusion.ravel(), reliability=bins
    )


def searched(stage_two: int = 12) -> model_pb2.SearchSummary:
    rng = np.random.default_rng(2)
    summary = model_pb2.SearchSummary(best=8)
    for number in range(8 + stage_two):
        trial = summary.trials.add(number=number, stage=1 if number < 8 else 2)
        trial.graph.n_neighbors, trial.solver.lambda1 = int(rng.integers(4, 40)), 10 ** rng.uniform(-4, 0)
        if number >= 8:
            trial.solver.sigma_f, trial.solver.lambda2 = 2 ** rng.uniform(-2, 1), 10 ** rng.uniform(-4, -1)
        trial.error_rate, trial.score = rng.integers(1, 9) / 50, rng.random()
    return summary


def full_model(points: int, names: list[str]) -> model_pb2.Model:
    classes = len(names)
    return model_pb2.Model(
        name="projects/default/models/first",
        point_count=points,
        classes=model_pb2.ClassValues(strings=model_pb2.StringValues(values=names)),
        trace=model_pb2.Trace(
            iterations=[0, 1, 2], energies=[5, 3, 2], gradient_norms=[1, 0.1, 0], evaluation_counts=[1, 3, 5]
        ),
        validation=evaluated(max(1, points // 2), classes),
        test=evaluated(points, classes),
        search=searched(),
    )


# -- all together ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("points", "classes"), [(1, 2), (10_000, 100)])
def test_a_model_has_all_its_pictures_at_any_size(points: int, classes: int) -> None:
    model = full_model(points, [f"class {one}" for one in range(classes)])
    model.validation.ClearField("reliability")
    model.test.ClearField("confusion")
    coordinates = np.random.default_rng(3).normal(size=(points, 3))
    found = model_pictures(model, *solved(points, classes), coordinates=coordinates, mapped_by="two spectral vectors")
    page = found.pop("map.html").decode()
    assert "class 1" in page
    assert re.search(r"2 of 3 dimensions, (\d+ points outside the frame, )?two spectral vectors", page)
    assert list(found) == [
        "energy.png",
        "confusion-validation.png",
        "reliability-test.png",
        "scores.png",
        "map.png",
        "search-graph.png",
        "search-relationships.png",
    ]
    for content in found.values():
        picture(content)


def test_what_a_model_has_no_data_for_is_not_drawn() -> None:
    assert model_pictures(model_pb2.Model()) == {}
    bare = model_pb2.Model(point_count=3, validation=model_pb2.Evaluation(point_count=3, error_rate=1.0))
    assert model_pictures(bare, np.full((3, 1), np.nan), np.zeros(3, dtype=np.int32)) == {}
    bare.search.trials.add(number=0, stage=1)
    assert model_pictures(bare) == {}


def test_names_are_drawn_as_they_are_and_never_as_formulas() -> None:
    model = full_model(50, ODD)
    model.ClearField("search")
    model.ClearField("test")
    model.name = "projects/default/models/" + "long" * 15
    for content in model_pictures(model, *solved(50, len(ODD))).values():
        picture(content)
    for names in (ODD[:2], ODD[2:4]):
        picture(score_histogram(*solved(50, 2), names, "about"))
    assert words("$x_1$ 日 a\tb\nc") == r"\$x_1\$ □ a b c"
    assert words("abcdef", 4) == "abc…"


def test_the_same_data_are_the_same_bytes() -> None:
    model, solution = model_pb2.Model(classes=model_pb2.ClassValues()), solved(30, 2)
    model.classes.strings.values.extend("ab")
    assert list(model_pictures(model, *solution)) == ["scores.png"]
    assert model_pictures(model, *solution) == model_pictures(model, *solution)


def test_without_matplotlib_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'homophily\[plot\]'"):
        model_pictures(full_model(5, ["a", "b"]))
    with pytest.raises(ImportError, match=r"pip install 'homophily\[plot\]'"):
        embedding_pictures(embedding_pb2.Embedding(), np.zeros((3, 2)))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Those that were made into pictures."""
    drawn: list[Figure] = []
    plain = Figure.savefig

    def savefig(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure)
        plain(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return drawn


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The long form has all sizes, the short one those at the ends."""
    if "crowd" in metafunc.fixturenames:
        sizes = [(points, classes) for points in (10, 100_000) for classes in (2, 10, 30)]
        ends = [(10, 2), (100_000, 30)]
        metafunc.parametrize("crowd", sizes if metafunc.config.getoption("--long") else ends)


def test_nothing_is_cut_off_at_the_edges_and_headings_are_above_all_else(
    figures: list[Figure], crowd: tuple[int, int]
) -> None:
    points, classes = crowd
    name = "a-model-of-a-thirty-two-long-nam"
    model = full_model(points, [f"class {one}" for one in range(classes)])
    model.name = f"projects/default/models/{name}"
    # Wide, so that the picture is flat and the list of classes is not.
    flat = np.random.default_rng(3).normal(size=(points, 3)) * (1.0, 0.2, 1.0)
    found = model_pictures(model, *solved(points, classes), coordinates=flat, mapped_by=f"on the map {name}")
    mapped = embedded(points)
    mapped.name = f"projects/default/embeddings/{name * 2}"[:-1]
    found |= {f"2-{file}": one for file, one in embedding_pictures(mapped, flat, np.arange(points) % classes).items()}
    assert len(figures) == sum(file.endswith(".png") for file in found) == 11
    for figure in figures:
        heading, below = figure.texts
        # All that is drawn, in inches.
        drawn = figure.get_tightbbox()
        width, height = figure.get_size_inches()
        assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) > 0, heading.get_text()
        top, lower = heading.get_window_extent(), below.get_window_extent()
        assert top.y0 > lower.y1
        assert all(axis.get_tightbbox().y1 < lower.y0 for axis in figure.axes)
        assert top.x0 == pytest.approx(lower.x0, abs=2)


def test_drawing_leaves_no_figure_behind() -> None:
    from matplotlib import pyplot

    score_histogram(*solved(5, 3), ["a", "b", "c"], "about")
    assert pyplot.get_fignums() == []


# -- one by one --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("energies", [[4.0], [4.0, 4.0], [1e6, 3.0, 2.0], [3.0, -2.0], list(range(400, 0, -1))])
def test_the_energy_is_drawn_however_it_goes(energies: list[float]) -> None:
    norms = [0.0] * (len(energies) if len(energies) < 3 else 0)
    trace = model_pb2.Trace(iterations=range(len(energies)), energies=energies, gradient_norms=norms)
    picture(model_pictures(model_pb2.Model(trace=trace))["energy.png"])


@pytest.mark.parametrize("classes", [10, 41])
def test_right_answers_are_dark_on_the_diagonal(classes: int) -> None:
    everything_right = tuple(tuple(5 * (row == column) for column in range(classes)) for row in range(classes))
    names = [str(one) for one in range(classes)]

    def dark(confusion: tuple[tuple[int, ...], ...]) -> NDArray[np.intp]:
        found = picture(
            confusion_matrix(
                Evaluation(points=5 * classes, error_rate=0.0, confusion=confusion, reliability=()),
                names,
                "test",
                "about",
            )
        )
        places = np.argwhere((found[:, :, 2] > 80) & (found[:, :, 0] < 20))
        # Without the bar that explains the colours, to the right.
        return places[places[:, 1] < 0.6 * found.shape[1]]

    rows, columns = dark(everything_right).T
    assert np.corrcoef(rows, columns)[0, 1] > 0.9
    rows, columns = dark(tuple(reversed(everything_right))).T
    assert np.corrcoef(rows, columns)[0, 1] < -0.9


def test_a_class_without_labels_and_labels_of_other_classes_are_drawn() -> None:
    evaluation = Evaluation(points=7, error_rate=0.4, confusion=((3, 0, 0), (0, 0, 0), (1, 0, 1)), reliability=())
    picture(confusion_matrix(evaluation, ["a", "b", "c"], "validation", "about"))
    scores, _ = solved(40, 3)
    picture(score_histogram(scores, np.zeros(40, dtype=np.int32), ["a", "b", "c"], "about"))
    scores, _ = solved(40, 30)
    picture(score_histogram(scores, np.zeros(40, dtype=np.int32), [str(one) for one in range(30)], "about"))
    one_sided = np.abs(solved(40, 2)[0])
    picture(score_histogram(one_sided, np.ones(40, dtype=np.int32), ["a", "b"], "about"))


@pytest.mark.parametrize("bins", [[(1.0, 1.0, 1)], [(0.5, 0.0, 3), (0.5, 1.0, 2), (0.9, 0.0, 0)], [(0.2, 0.3, 10**6)]])
def test_probabilities_are_drawn_in_few_bins_too(bins: list[tuple[float, float, int]]) -> None:
    picture(reliability_diagram([ReliabilityBin(*one) for one in bins], "test", "about"))


def test_scores_that_are_all_the_same_are_drawn() -> None:
    picture(score_histogram(np.zeros((9, 1)), np.zeros(9, dtype=np.int32), ["a", "b"], "about"))
    picture(score_histogram(np.zeros((9, 3)), np.zeros(9, dtype=np.int32), ["a", "b", "c"], "about"))


def trial(number: int, error: float | None, stage: int = 2, *, pruned: bool = False, **solver: Any) -> Trial:
    return Trial(number, stage, {}, solver, error, error, 0.1, pruned, 10)


def test_the_surface_needs_parameters_that_were_varied() -> None:
    same = [trial(number, 0.1, sigma_f=0.5, lambda2=0.1) for number in range(3)]
    assert error_surface(Search(tuple(same), 0), 2, "about") is None
    assert error_surface(Search(tuple(same), 0), 1, "about") is None
    not_begun = [trial(number, None, sigma_f=0.5 + number, lambda2=0.1) for number in range(3)]
    assert error_surface(Search(tuple(not_begun), 0), 2, "about") is None
    along = [trial(number, 0.1 * number, lambda2=10.0**-number, pruned=number == 2) for number in range(4)]
    picture(error_surface(Search(tuple(along), 0), 2, "about"))


@pytest.mark.parametrize("errors", [np.linspace(0, 1, 9), np.full(9, 0.25)], ids=["rising", "equal"])
def test_the_surface_is_drawn_for_trials_on_a_grid_on_a_line_and_with_others_missing(errors: NDArray[Any]) -> None:
    grid = [(1.0 + number % 3, 10.0 ** (number // 3)) for number in range(9)]
    line = [(2.0**number, 4.0**number) for number in range(9)]
    for places in (grid, line):
        tried = [
            trial(number, float(errors[number]), sigma_f=width, lambda2=weight, pruned=number == 4)
            for number, (width, weight) in enumerate(places)
        ]
        picture(error_surface(Search((*tried, trial(20, None, sigma_f=1.0)), 1), 2, "about"))


def test_the_chosen_trial_is_marked_where_it_was_tried_and_else_the_lowest_error() -> None:
    tried = tuple(
        trial(number, 0.3 - 0.01 * number, sigma_f=0.1 * 10 ** (number / 11), lambda2=10.0 ** -(number % 4))
        for number in range(12)
    )

    def column_of_star(best: int | None) -> float:
        found = picture(error_surface(Search(tried, best), 2, "about")).astype(int)
        # Above the legend, which has a star too.
        red = np.argwhere((found[:, :, 0] > 200) & (found[:, :, 1] < 30) & (found[:, :, 2] < 60))
        return float(red[red[:, 0] < 0.9 * len(found), 1].mean())

    assert column_of_star(0) < column_of_star(11) - 400
    assert column_of_star(None) == column_of_star(11)


def test_a_search_whose_time_was_over_has_chosen_no_trial() -> None:
    message = searched()
    assert (found := Search.from_message(message)) is not None
    assert found.best == 8
    message.ClearField("best")
    assert (found := Search.from_message(message)) is not None
    assert found.best is None


# -- maps and reports --------------------------------------------------------------------------------------------------


def embedded(points: int) -> embedding_pb2.Embedding:
    trace = model_pb2.Trace(iterations=[0, 1], energies=[2.0, 1.0], gradient_norms=[1.0, 0.5], evaluation_counts=[1, 2])
    return embedding_pb2.Embedding(name="projects/default/embeddings/$m$", point_count=points, trace=trace)


@pytest.mark.parametrize("points", [1, 10, 50_000])
def test_a_map_is_drawn_and_a_page_beside_it(points: int) -> None:
    places = np.random.default_rng(0).normal(size=(points, 2))
    found = embedding_pictures(
        embedded(points), places, np.arange(points) % 100, must_link=[(0, points - 1)], violated_cannot=[]
    )
    assert list(found) == ["energy.png", "map.png", "map.html"]
    picture(found["map.png"])
    assert f'"count":{points},'.encode() in found["map.html"]


def test_points_far_from_all_others_do_not_decide_the_frame() -> None:
    places = np.random.default_rng(0).normal(size=(1_000, 2))
    places[:3] *= 1e4
    low, high = frame(places)
    assert (low > -5).all()
    assert (high < 5).all()
    np.testing.assert_array_equal(frame(places[3:5]), [places[3:5].min(axis=0), places[3:5].max(axis=0)])


def test_groups_of_many_points_keep_their_colours() -> None:
    places = np.random.default_rng(0).normal(size=(30_000, 2)) * 0.1
    places[15_000:] += 3
    found = embedding_pictures(embedded(30_000), places, np.repeat([0, 1], 15_000))
    pixels = picture(found["map.png"])[:, :800].astype(int)
    blue = np.argwhere(np.abs(pixels - (0x00, 0x72, 0xB2)).max(axis=2) < 10)
    orange = np.argwhere(np.abs(pixels - (0xE6, 0x9F, 0x00)).max(axis=2) < 10)
    assert min(len(blue), len(orange)) > 1000
    # The second group is to the right of the first, and above it.
    assert blue[:, 1].mean() < orange[:, 1].mean() - 200
    assert blue[:, 0].mean() > orange[:, 0].mean() + 200


def test_a_report_escapes_what_it_is_given() -> None:
    page = report_page(
        "<script>alert(1)</script> __FACTS__",
        "below & __TABLES__",
        {"a<b": "<i>", "address": 'https://host/?a=1&b="2"', "no address": "javascript:alert(1)"},
        {"energy.png": b"png"},
        warnings=["<w>"],
        tables=[Table("T<", ["c<"], [["<r>"], [0.123456], [None]], 1)],
    ).decode()
    assert "<script" not in page
    assert not any(part in page for part in ("<i>", "<w>", "<r>", "T<<", "a<b"))
    assert '<a href="https://host/?a=1&amp;b=&quot;2&quot;">' in page
    assert 'href="javascript' not in page
    assert "__FACTS__</h1>" in page
    assert '<tr class="best"><td class="number">0.1235</td></tr>' in page


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (0.00004, "0 %"), (0.035, "3.5 %"), (0.25, "25 %"), (0.9996, "99.96 %"), (1.0, "100 %")],
)
def test_shares_have_the_digits_that_tell_something(share: float, text: str) -> None:
    assert percent(share) == text
