"""Estimates of a job's memory and least time, from its kind and parameters, before it is queued.

The figures were fitted to fits of up to 20,000 points with 10 to 1,000 neighbours, measured by
``python -m benchmarks estimates``. Memory is what such a fit takes, and up to two and a half times as much where the
graph's power is nearly full. Seconds are about half of what one core took, so only jobs without a chance are refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from homophily_service.contract.errors import LimitExceeded

MIB = 1 << 20
# A computing process before its first job.
BASE_BYTES = 400 * MIB
# Per stored element of the points: as given, as searched, and in the index.
POINT_BYTES = 28
# Per neighbour, and per entry of the power of the Laplacian.
NEIGHBOUR_BYTES, ENTRY_BYTES = 150, 18
# Per point and class: solution, gradient, directions and past steps.
CLASS_BYTES = 250
# Entries of a row of the p-th power: (2.5 k)^p, as a symmetric graph has more than k neighbours, some far more.
GROWTH = 2.5
SECONDS_PER_NEIGHBOUR, SECONDS_PER_ELEMENT = 2e-7, 5e-8
SECONDS_PER_ENTRY, SECONDS_PER_PRODUCT, SECONDS_PER_CLASS = 3e-8, 2e-9, 1e-5


# A shorter job is not refused: the estimate is not that good.
CERTAIN_SECONDS = 60.0


class Cost(NamedTuple):
    """What a job needs."""

    bytes: int
    #: On one core.
    seconds: float


def estimate(
    rows: int,
    elements: int,
    *,
    graph: dict[str, Any],
    columns: int,
    power: int = 2,
    classes: int = 2,
    relationship_neighbors: int | None = None,
    builds_graph: bool = True,
) -> Cost:
    """The cost of a fit or a map of ``rows`` points with this many stored ``elements``.

    ``power`` is that of the Laplacian whose entries are stored: 1 where only products with it are needed.
    """
    neighbours = min(rows - 1, graph["n_neighbors"])
    if graph.get("metric") == "affinity" and elements:
        # The edges are given; of sparse ones, half of the stored elements are places.
        neighbours = min(rows - 1, -(-elements // max(1, rows)))
    degree = min(float(rows), GROWTH * neighbours)
    per_row = min(float(rows), degree**power) if power > 1 else degree
    size = BASE_BYTES + POINT_BYTES * elements + NEIGHBOUR_BYTES * rows * neighbours + CLASS_BYTES * rows * classes
    seconds = SECONDS_PER_ENTRY * rows * per_row + SECONDS_PER_CLASS * rows * classes
    if power > 1:
        size += int(ENTRY_BYTES * rows * per_row)
        seconds += SECONDS_PER_PRODUCT * rows * min(float(rows), degree ** (power - 1)) * degree
    if relationship_neighbors is not None:
        size += NEIGHBOUR_BYTES * rows * min(rows, relationship_neighbors)
    if graph["space"] != "input":
        size += 40 * columns * columns
    if builds_graph:
        seconds += SECONDS_PER_NEIGHBOUR * rows * neighbours + SECONDS_PER_ELEMENT * elements
    return Cost(int(size), seconds)


def fit_cost(
    rows: int,
    elements: int,
    *,
    columns: int,
    graph: dict[str, Any],
    method: str,
    solver: dict[str, Any],
    classes: int,
    builds_graph: bool = True,
) -> Cost:
    """The cost of fitting a classifier."""
    masked = solver.get("relationship_neighbors")
    # IRR multiplies by L p times instead of storing its power.
    power = 1 if method == "irr" or masked is not None else solver.get("power", 2)
    return estimate(
        rows,
        elements,
        columns=columns,
        graph=graph,
        power=power,
        classes=classes,
        relationship_neighbors=masked,
        builds_graph=builds_graph,
    )


def check_cost(cost: Cost, max_bytes: int, max_seconds: float, threads: int) -> None:
    """LimitExceeded, with the figures, if a worker has too little memory or the time limit is too short."""
    if cost.bytes > max_bytes:
        raise LimitExceeded(
            f"the job needs about {_amount(cost.bytes)} of memory, a worker has {_amount(max_bytes)}: use fewer "
            "graph.n_neighbors, solver.power = 1 or fewer points",
            reason="JOB_TOO_LARGE",
        )
    seconds = cost.seconds / threads
    if seconds > max(max_seconds, CERTAIN_SECONDS):
        raise LimitExceeded(
            f"the job needs at least {seconds:,.0f} s, its time limit is {max_seconds:,.0f} s: use fewer "
            "graph.n_neighbors, solver.power = 1 or fewer points, or a longer options.time_limit",
            reason="JOB_TOO_LONG",
        )


def _amount(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
