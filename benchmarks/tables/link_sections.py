"""The sections of the page on links: tables 2 and 3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.tables import paper
from benchmarks.tables.links import WHOLE_MNIST
from benchmarks.tables.summary import TITLES, Entry, Figure, Group, Shortfall, above, markdown, of, pick, seconds_text

Find = Callable[[str, str, int, str], Group | None]
"""A group by data set, method, number of links and form."""


Rows = list[tuple[str, Sequence[Entry]]]

DEFAULTS = "nothing is tuned for a set, but they were chosen on these sets together"
OWN_SYSTEMS = (
    "Original, SL, CCSR, CSP and COSC are our own implementations (`homophily.baselines`); where there is a tuned row, "
    "parameters are fixed as ERR's are, while the paper tunes them for every number of links."
)


def _one_count(
    title: str,
    count: int,
    columns: Sequence[str],
    find: Find,
    methods: Sequence[str],
    printed: dict[tuple[str, int], paper.Series],
) -> list[str]:
    """Title and table of one number of links: ours and others by us, then what the paper prints."""
    rows: Rows = []
    for method in methods:
        for form, name in (("default", f"{method}, defaults"), ("tuned", f"{method}, tuned")):
            entries = [of(find(data, method, count, form), "error") for data in columns]
            if any(entry is not None for entry in entries):
                rows.append((name, entries))
    if not rows:
        return [f"**{title}**: not run yet."]
    rows += [
        (f"{method}, paper", [_paper_figure(series, data) for data in columns])
        for (method, links), series in printed.items()
        if links == count
    ]
    groups = [find(data, "ERR", count, "default") for data in columns]
    rows.append(("draws (ERR)", [str(len(group.records)) if group else None for group in groups]))
    return [f"**{title}**", markdown("error, %", [TITLES[name] for name in columns], rows)]


def _link_shortfalls(
    table: str, count: int, find: Find, printed: dict[tuple[str, int], paper.Series]
) -> list[Shortfall]:
    found = []
    for data in paper.LINK_SETS:
        for form in ("tuned", "default"):
            ours, theirs = of(find(data, "ERR", count, form), "error"), printed["ERR", count][data]
            if ours is not None and above(ours, theirs):
                found.append(Shortfall(table, data, f"s_R = {count}, {form}", ours, theirs))
    return found


def _link_seconds(found: list[Group], columns: Sequence[str]) -> str:
    methods = dict.fromkeys(group.method for group in found)
    rows: Rows = []
    for method in methods:
        entries: list[Entry] = []
        for data in columns:
            groups = [
                group
                for group in found
                if group.data == data and group.method == method and group.setting.get("form") != "tuning"
            ]
            seconds = [float(result["seconds"]) for group in groups for result in group.results if "seconds" in result]
            entries.append(seconds_text(sum(seconds) / len(seconds)) if seconds else None)
        rows.append((method, entries))
    return markdown("seconds", [TITLES[name] for name in columns], rows, bold=False)


def table2_section(found: list[Group], shortfalls: list[Shortfall]) -> str:
    """A table for each number of links, with both readings of it."""
    parts = [
        "## Table 2: clustering with links",
        "The share of points that are not of their cluster's dominant class. “Of each kind” means s_R must-links and "
        "s_R cannot-links, which the paper's figures fit; “in all” means s_R links, half of them must-links, which "
        "it says. MNIST is the test set of 10,000, as in the paper; MNIST-60k is the training set. Tuned: parameters "
        f"of least error at 250 links on other draws, then fixed; defaults: {DEFAULTS}.",
    ]
    if not found:
        return "\n\n".join([*parts, "Not run yet."])
    columns = (*paper.LINK_SETS, WHOLE_MNIST)
    titles = [TITLES[name] for name in columns]
    methods = _in_order(found, ("ERR", "SL", "CCSR", "CSP", "COSC"))
    rows: Rows = [
        ("Original", [of(pick(found, data, "Original"), "error") for data in columns]),
        ("Original, paper", [*(f"({value:.2f})" for value in paper.ORIGINAL_CLUSTERS_AS_PRINTED), None]),
    ]
    parts += ["**Without links** (the paper's row is printed as it stands; its columns are shuffled)"]
    parts.append(markdown("error, %", titles, rows, bold=False))
    for count in paper.LINK_COUNTS:
        for reading in ("of each kind", "in all"):

            def find(data: str, method: str, links: int, form: str, reading: str = reading) -> Group | None:
                return pick(found, data, method, links=links, form=form, reading=reading)

            parts += _one_count(f"s_R = {count} {reading}", count, columns, find, methods, paper.TABLE2)
            if reading == "of each kind":
                shortfalls += _link_shortfalls("table2", count, find, paper.TABLE2)
    parts += ["**Seconds** on a ready graph, over all numbers of links", _link_seconds(found, columns)]
    parts.append(
        f"{OWN_SYSTEMS} CSP is for two classes. PCKMeans and MPCKMeans are those of active-semi-supervised-clustering "
        "0.0.1, on the points as they are. A dash is what was not run: both of these on large sets, as they loop over "
        "points in Python; MNIST-60k but at 100 and 500 links, which takes minutes; on large sets the tuned form, and "
        "systems beside ERR, in the second reading."
    )
    return "\n\n".join(parts)


def table3_section(found: list[Group], shortfalls: list[Shortfall]) -> str:
    """A table for each number of links."""
    parts = [
        "## Table 3: maps in two dimensions",
        "Leave-one-out 1-NN error on the map; s_R links, half of them must-links. MNIST is the test set of 10,000, "
        "as in the paper; MNIST-60k is the training set. Tuned: parameters of least error at 250 links on other "
        f"draws, then fixed; defaults: {DEFAULTS}.",
    ]
    if not found:
        return "\n\n".join([*parts, "Not run yet."])
    columns = (*paper.LINK_SETS, WHOLE_MNIST)
    titles = [TITLES[name] for name in columns]
    methods = _in_order(found, ("ERR", "SL", "CCSR"))

    def find(data: str, method: str, links: int, form: str) -> Group | None:
        return pick(found, data, method, links=links, form=form)

    rows: Rows = [
        ("Original", [of(pick(found, data, "Original"), "error") for data in columns]),
        ("Original, paper", [_paper_figure(paper.ORIGINAL_MAPS, data) for data in columns]),
    ]
    parts += ["**Without links**", markdown("error, %", titles, rows, bold=False)]
    for count in paper.LINK_COUNTS:
        parts += _one_count(f"s_R = {count}", count, columns, find, methods, paper.TABLE3)
        shortfalls += _link_shortfalls("table3", count, find, paper.TABLE3)
    title = "on a ready graph, over all numbers of links; ERR's are of the clock, UMAP's hold its compilation"
    parts += [f"**Seconds** {title}", _link_seconds(found, columns)]
    parts.append(
        f"{OWN_SYSTEMS} UMAP takes classes and no links: it is told the classes of all linked points, which is more "
        "than the links tell. A dash is what was not run: UMAP on large sets but at 500 links, where few labels hardly "
        "change its map, and systems beside ERR on MNIST-60k or tuned on large sets."
    )
    return "\n\n".join(parts)


def _paper_figure(series: paper.Series, data: str) -> Entry:
    return Figure(series[data]) if data in series else None


def _in_order(found: list[Group], first: Sequence[str]) -> list[str]:
    names = dict.fromkeys(group.method for group in found if group.method != "Original")
    return [*(name for name in first if name in names), *(name for name in names if name not in first)]
