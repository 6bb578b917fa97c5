"""The README's second picture: a map of scikit-learn's digits without links, and with 200 of them.

The links say whether two digits are both odd or both even, which the shapes of the digits do not. Without ``--quick``
it writes the records that the documentation is checked against, `results/links.jsonl`, and the picture.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.data import Classes
from benchmarks.link_sets import dominant_label_error, draw
from benchmarks.report import RESULTS, Options, Report, Row
from homophily import ERRClustering, ERREmbedding
from homophily.supervision.links import Links

LINKS, DRAWS = 200, 5
RECORDS = RESULTS / "links.jsonl"
PICTURE = Path(__file__).parent / "pictures" / "links.png"
COLOURS = ("#0072b2", "#e69f00")


def run(options: Options, report: Report) -> None:
    X, y = load_digits(return_X_y=True)
    if options.quick:
        X, y = X[:300], y[:300]
    parity = y % 2
    draws = range(options.first_seed, options.first_seed + (options.seeds or (1 if options.quick else DRAWS)))
    linked = [draw(parity, LINKS, seed) for seed in draws]
    records = [record(X, y, [None]), record(X, y, linked)]
    rows: list[Row] = [
        {
            "links": found["links"],
            "in the wrong cluster, %": round(float(np.mean(found["clusters"])), 1),
            "links violated on the map": sum(found["violated"]),
        }
        for found in records
    ]
    report.table(f"Digits, odd against even, mean of {len(draws)} draws of links", rows)
    if not options.quick:
        RECORDS.write_text("\n".join(json.dumps(found) for found in records) + "\n")
        show(X, y, linked[0], records)


def record(X: Any, y: Classes, linked: Sequence[Links | None]) -> dict[str, Any]:
    """Errors of two clusters, in percent, and violated links of the map, for each draw of links."""
    maps = [ERREmbedding().fit(X, **pairs(links)) for links in linked]
    clusters = [ERRClustering(n_clusters=2, random_state=0).fit(X, **pairs(links)).labels_ for links in linked]
    return {
        "links": 0 if linked[0] is None else LINKS,
        "clusters": [100 * dominant_label_error(labels, y % 2) for labels in clusters],
        "violated": [len(found.violated_must_) + len(found.violated_cannot_) for found in maps],
    }


def pairs(links: Links | None) -> dict[str, Any]:
    return {} if links is None else {"must_link": links.must, "cannot_link": links.cannot}


def show(X: Any, y: Classes, links: Links, records: Sequence[dict[str, Any]]) -> None:
    """Draw both maps, each point as its digit, odd ones in one colour, and the mean errors of the records."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(10, 4.4), layout="constrained")
    panels = {"Before: no pairs given": None, f"After: {LINKS} pairs, “both odd or both even” or “one of each”": links}
    for axis, (title, given), found in zip(figure.subplots(1, 2), panels.items(), records, strict=True):
        fitted = ERREmbedding().fit(X, **pairs(given))
        wrong = np.mean(found["clusters"])
        # A few points far away would shrink the rest.
        low, high = np.quantile(fitted.embedding_, [0.02, 0.98], axis=0)
        margin = 0.25 * (high - low)
        F = np.clip(fitted.embedding_, low - margin, high + margin)
        order = np.random.default_rng(0).permutation(len(y))
        for digit in range(10):
            mine = order[y[order] == digit]
            axis.scatter(*F[mine].T, marker=f"${digit}$", s=22, color=COLOURS[digit % 2], linewidths=0.2)
        axis.set_title(f"{title}\ntwo clusters: {wrong:.1f} % of the digits in the wrong one", fontsize=10.5)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.spines[:].set_color("#cccccc")
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
