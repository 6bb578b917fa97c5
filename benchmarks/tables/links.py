"""What tables 2 and 3 share: the sets, how much of each is run, and parameters tuned at 250 links on other draws.

Tuning is what the paper does: every setting of a small grid is measured with 250 links against the true classes, the
best is fixed for all numbers of links. The draws of links that it uses are none of those reported. The paper tunes the
systems it compares with for every number of links; here they are tuned as ERR is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.data import DataSet
from benchmarks.embedding import OTHER_DRAWS
from benchmarks.link_sets import LARGE, SMALL, Problem, link_set
from benchmarks.link_sets import problem as build
from benchmarks.tables.cells import Cell, Records
from benchmarks.tables.paper import LINK_COUNTS, LINK_SETS
from benchmarks.tables.run import FAILED, Options

WHOLE_MNIST = "mnist-60k"
TWO_CLASSES = ("diabetes", "bcw")
TUNING_LINKS = 250
QUICK_COUNTS = (100, 500)

Grid = dict[str, tuple[Any, ...]]


def sets(options: Options) -> tuple[str, ...]:
    """Names of the sets to run; stand-ins only of small ones."""
    if options.data is None:
        return ("iris", "wine")
    return LINK_SETS


def counts(options: Options) -> tuple[int, ...]:
    """Numbers of links."""
    return QUICK_COUNTS if options.quick else LINK_COUNTS


def seeds(options: Options, name: str) -> int:
    """Draws: ten as in the paper, five on large sets, where they differ less."""
    if options.quick:
        return options.seeds or (3 if name in SMALL else 1)
    return options.seeds or (10 if name in SMALL else 5)


def tuning_seeds(options: Options, name: str) -> range:
    """Draws for tuning: none that is reported."""
    return range(OTHER_DRAWS, OTHER_DRAWS + (1 if name not in SMALL else 2 if options.quick else 10))


def settings_of(grid: Grid) -> list[dict[str, Any]]:
    """Every combination."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def tuning_cells(
    options: Options, table: str, name: str, method: str, grid: Grid, common: dict[str, Any] | None = None
) -> list[Cell]:
    """The measurements that parameters are tuned by."""
    return [
        Cell(
            table,
            name,
            method,
            seed,
            {**(common or {}), "links": TUNING_LINKS, "form": "tuning", "parameters": parameters},
        )
        for parameters in settings_of(grid)
        for seed in tuning_seeds(options, name)
    ]


def tuned(cells: Iterable[Cell], records: Records) -> dict[str, Any] | None:
    """The parameters of least mean error; None until all is measured. One that failed on a draw is not eligible."""
    errors: dict[str, list[float]] = {}
    parameters: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if cell.key not in records:
            return None
        result = records[cell.key].result
        errors.setdefault(cell.group, []).append(float("inf") if FAILED in result else result["error"])
        parameters[cell.group] = cell.setting["parameters"]
    if not errors:
        return None
    return parameters[min(errors, key=lambda group: fmean(errors[group]))]


@lru_cache(maxsize=2)
def problem(folder: Path | None, name: str) -> Problem:
    """A set with its graph, built once in a process."""
    return build(folder, name)


@lru_cache(maxsize=2)
def points(folder: Path | None, name: str) -> DataSet:
    """The points themselves, for methods that take no graph."""
    return link_set(folder, name)


def is_large(name: str) -> bool:
    """More than a few thousand points."""
    return name in LARGE or name == WHOLE_MNIST
