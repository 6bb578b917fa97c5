"""Maps from links: leave-one-out 1-NN error in two dimensions, with the defaults and tuned as the paper tunes.

Tuning: σ_f and λ2, and for sets of two classes whether that is known (``closure``), by the error at 250 links on other
draws than those reported, then fixed for every number of links.
"""

from __future__ import annotations

from itertools import product
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.link_sets import LARGE, PAPER_MAPS, SMALL, Problem, draw, one_nn_error, problem
from benchmarks.measure import timed
from benchmarks.report import Options, Report, Row
from homophily_service.jobs.maps import make_embedding

BARS = {
    "iris": {100: 2.3, 500: 0.3},
    "wine": {100: 16.7, 500: 0.9},
    "bcw": {100: 4.0, 500: 1.6},
    "diabetes": {100: 29.0, 500: 16.4},
    "pendigits": {100: 2.6, 500: 2.6},
    "usps": {100: 5.0, 500: 5.0},
    "mnist": {100: 7.3, 500: 6.6},
}
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "small": {"sigma_f": (0.2, 0.5), "lambda2": (0.05, 0.2, 0.5)},
    "large": {"sigma_f": (0.2,), "lambda2": (0.5, 1.0)},
}
OTHER_DRAWS = 1_000
# Percent of must-links on small sets, and seconds on two cores that have nothing else to do.
MOST_VIOLATED = 10.0
USPS_SECONDS, WHOLE_SECONDS = 10.0, 90.0


class Found(NamedTuple):
    """Means over draws: errors and violated links in percent, seconds of one map after its graph."""

    error: float
    spread: float
    violated_must: float
    violated_cannot: float
    seconds: float
    cpu_seconds: float


def run(options: Options, report: Report) -> None:
    names = ("iris", "wine") if options.quick else (*SMALL, *LARGE)
    counts = (100, 500) if options.quick else (50, 100, 250, 500, 1000)
    rows: list[Row] = []
    results: dict[tuple[str, int, str], Found] = {}
    for name in names:
        report.progress(f"graph of {name}")
        one = problem(options.data, name)
        chosen = tune(one, report)
        # The paper averages over 10 draws; on large sets 5 are as steady.
        seeds = options.seeds or (2 if options.quick else 10 if name in SMALL else 5)
        for count in counts if name in SMALL else (100, 500):
            report.progress(f"{name}, {count} links")
            row: Row = {"set": name, "links": count, "paper": PAPER_MAPS[name][count], "bar": BARS[name].get(count)}
            for form, parameters in (("default", {}), ("tuned", chosen)):
                found = results[name, count, form] = repeat(one, count, range(seeds), parameters)
                row = {
                    **row,
                    form: f"{found.error:.2f} ± {found.spread:.2f}",
                    f"violated ({form}), %": f"{found.violated_must:.1f}/{found.violated_cannot:.1f}",
                    f"s ({form})": found.seconds,
                    f"CPU s ({form})": found.cpu_seconds,
                }
            rows.append({**row, "choice": ", ".join(f"{key} {value}" for key, value in chosen.items())})
    report.table("Leave-one-out 1-NN error in 2-D, percent (± standard deviation over draws of links)", rows)
    judge(results, report)
    if options.data is not None and not options.quick:
        whole(options, report)


def repeat(one: Problem, count: int, seeds: range, parameters: dict[str, Any]) -> Found:
    """Maps from several draws of links."""
    began = process_time()
    found = np.array([measure(one, count, seed, parameters) for seed in seeds])
    cpu_seconds = (process_time() - began) / len(seeds)
    error, must, cannot, seconds = found.mean(axis=0).tolist()
    return Found(error, float(found[:, 0].std()), must, cannot, seconds, cpu_seconds)


def judge(results: dict[tuple[str, int, str], Found], report: Report) -> None:
    """Say which bars are met, and which are missed by what."""
    names = list(dict.fromkeys(name for name, _, _ in results))
    for count in (100, 500):
        shares = {name: results[name, count, "tuned"].error / BARS[name][count] for name in names}
        missed = {name: share for name, share in shares.items() if share > 1.0}
        told = ", ".join(f"{name} by {100 * (share - 1):.0f} %" for name, share in missed.items()) or "none"
        tell(
            f"{count} links, tuned: at most 2 sets above their bars, none by more than 15 %; above: {told}",
            len(missed) <= 2 and max(shares.values()) <= 1.15,
            report,
        )
    pairs = [(name, count) for name in names for count in (100, 500)]
    share = float(np.mean([results[name, count, "default"].error / BARS[name][count] for name, count in pairs]))
    tell(f"defaults: within 25 % of the bars on average; {100 * (share - 1):+.0f} %", share <= 1.25, report)
    small = {key: found for key, found in results.items() if key[0] in SMALL and key[2] == "default"}
    worst = max(small, key=lambda key: small[key].violated_must)
    violated = small[worst].violated_must
    tell(
        f"defaults: at most {MOST_VIOLATED:g} % of must-links violated on small sets; at most {violated:.1f} % "
        f"({worst[0]}, {worst[1]} links)",
        violated <= MOST_VIOLATED,
        report,
    )
    if "usps" in names:
        slowest = max((results["usps", count, "default"] for count in (100, 500)), key=lambda found: found.seconds)
        tell_seconds("USPS", slowest.seconds, slowest.cpu_seconds, USPS_SECONDS, report)


def tell(bar: str, met: bool, report: Report) -> None:
    """A bar, and whether it is met."""
    report.note(f"{'Met' if met else 'MISSED'}: {bar}.")


def tell_seconds(name: str, seconds: float, cpu_seconds: float, bar: float, report: Report) -> None:
    """A bar in seconds, with what tells a slow computation from a busy machine."""
    sentence = f"{name} within {bar:g} s; {seconds:.1f} s, in which the process had {cpu_seconds:.1f} s of a core"
    tell(sentence, seconds <= bar, report)


def whole(options: Options, report: Report) -> None:
    """MNIST's 60,000 training digits with the defaults."""
    report.progress("graph of mnist-60k")
    seconds, one = timed(lambda: problem(options.data, "mnist-60k"))
    rows: list[Row] = []
    results: dict[int, Found] = {}
    for count in (100, 500):
        report.progress(f"mnist-60k, {count} links")
        found = results[count] = repeat(one, count, range(1), {})
        rows.append(
            {
                "links": count,
                "error": found.error,
                "violated, %": f"{found.violated_must:.1f}/{found.violated_cannot:.1f}",
                "s": found.seconds,
                "CPU s": found.cpu_seconds,
            }
        )
    report.table(f"MNIST-60k, one draw (its graph took {seconds:.0f} s)", rows)
    slowest = max(results.values(), key=lambda found: found.seconds)
    tell_seconds("MNIST-60k after its graph", slowest.seconds, slowest.cpu_seconds, WHOLE_SECONDS, report)


def tune(one: Problem, report: Report) -> dict[str, Any]:
    """The parameters of least error at 250 links, on draws of their own."""
    small = one.name in SMALL
    grid = GRIDS["small" if small else "large"]
    if one.n_classes == 2:
        grid = {**grid, "closure": (True, "two-class")}
    best: tuple[float, dict[str, Any]] | None = None
    for values in product(*grid.values()):
        parameters = dict(zip(grid, values, strict=True))
        seeds = range(OTHER_DRAWS, OTHER_DRAWS + (10 if small else 1))
        error = float(np.mean([measure(one, 250, seed, parameters)[0] for seed in seeds]))
        report.progress(f"{one.name}: {parameters} {error:.2f} %")
        if best is None or error < best[0]:
            best = error, parameters
    assert best is not None
    return best[1]


def measure(one: Problem, count: int, seed: int, parameters: dict[str, Any]) -> tuple[float, float, float, float]:
    """Error, violated must-links and cannot-links (all in percent) and seconds of a map of the graph."""
    links = draw(one.y, count, seed)
    embedding = make_embedding(2, parameters, len(links))
    seconds, _ = timed(lambda: embedding.fit(one.graph, must_link=links.must, cannot_link=links.cannot))
    return (
        one_nn_error(embedding.embedding_, one.y),
        100.0 * len(embedding.violated_must_) / len(links.must),
        100.0 * len(embedding.violated_cannot_) / len(links.cannot),
        seconds,
    )
