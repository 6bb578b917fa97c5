"""The section of the page on few labels (table 5), and its plot of error against labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.peers import TRUE_SHARES
from benchmarks.tables.cells import Records
from benchmarks.tables.summary import Entry, Figure, Group, groups, markdown, pick
from benchmarks.tables.table5 import BALANCED, FEW, OURS, PROTOCOLS, SHARES, SMOOTH

WORDS = {
    "a": "labels drawn at random",
    "b": "the same number of labels of each class, balanced classes",
    "c": "the same number of labels of each class, unbalanced classes",
}
PICTURE = Path(__file__).parents[1] / "pictures" / "few_labels.png"
LINES = ("ERR", "IRR", "graphlearning Laplace", "graphlearning Poisson", "graphlearning Poisson-MBO")


def table5_section(found: list[Group]) -> str:
    """Mean errors at 1 to 5 labels per class, and the best peer beside us."""
    parts = [
        "## Table 5: one to fifty labels per class",
        "Default parameters; errors are means over 1 to 5 labels per class and all draws. Peers have the same graphs "
        "and draws, and know as much about the shares of the classes as the row says. Draws 100 and later; "
        "parameters were chosen on draws 0 to 11, the last change after a look at these. A set's figures are of the "
        "draws that every method without more knowledge has: the last row counts them. Sets on which a peer takes long "
        "have fewer, MNIST-60k has only 1 and 5 labels. VolumeMBO draws "
        "from C's generator, so its figures change a little from run to run.",
    ]
    if not found:
        return "\n\n".join([*parts, "Not run yet."])
    for protocol, words in WORDS.items():
        here = [group for group in found if group.setting["protocol"] == protocol]
        sets = [name for name in PROTOCOLS[protocol] if any(group.data == name for group in here)]
        draws = {data: common_draws(here, data) for data in sets}
        rows = [(name, [mean_error(here, data, name, draws[data]) for data in sets]) for name in names(here)]
        counts: list[Entry] = [str(len(draws[data])) for data in sets]
        table: list[tuple[str, list[Entry]]] = [*_marked(rows), ("draws", counts)]
        parts += [f"**({protocol}) {words}**", markdown("error, %", sets, table), verdict(rows, sets)]
    parts.append(f"![Error against labels per class](pictures/{PICTURE.name})")
    return "\n\n".join(parts)


def names(found: Iterable[Group]) -> list[str]:
    """All methods: ours first, then peers, those that are told the shares last."""
    ours = [method + shares for shares in SHARES for method in OURS]
    seen = dict.fromkeys(group.method for group in found)
    peers = sorted((name for name in seen if name not in ours), key=lambda name: name.endswith(TRUE_SHARES))
    return [*(name for name in ours if name in seen), *peers]


def mean_error(found: list[Group], data: str, method: str, draws: set[int]) -> Figure | None:
    """Over 1 to 5 labels per class and these draws; None if one of them is missing."""
    means = []
    for count in few_counts(found, data):
        group = pick(found, data, method, labels=count)
        if group is None or not draws or not draws <= seeds(group):
            return None
        figure = replace(group, records=[record for record in group.records if record.cell.seed in draws]).figure()
        if figure is None:
            return None
        means.append(figure.mean)
    return Figure(fmean(means), None, 1)


def common_draws(found: list[Group], data: str) -> set[int]:
    """The draws that all methods have which are told nothing of the shares, at 1 to 5 labels per class."""
    methods = {group.method for group in found if group.data == data and not knows_more(group.method)} - {SMOOTH}
    cells = [pick(found, data, method, labels=count) for method in methods for count in few_counts(found, data)]
    return set.intersection(*(set() if group is None else seeds(group) for group in cells)) if cells else set()


def few_counts(found: list[Group], data: str) -> list[int]:
    """The numbers of labels per class, up to 5, that a set was tried with."""
    return sorted({group.setting["labels"] for group in found if group.data == data} & set(FEW))


def seeds(group: Group) -> set[int]:
    return {record.cell.seed for record in group.records}


def knows_more(name: str) -> bool:
    """Whether the row is told the true or balanced shares."""
    return name.endswith((TRUE_SHARES, BALANCED))


def _marked(rows: list[tuple[str, list[Figure | None]]]) -> list[tuple[str, list[Entry]]]:
    """Figures of rows that are told more stand in brackets and are not compared."""
    return [
        (
            name,
            [
                figure if figure is None or not knows_more(name) else Figure(figure.mean, None, 1, compared=False)
                for figure in figures
            ],
        )
        for name, figures in rows
    ]


def verdict(rows: list[tuple[str, list[Figure | None]]], sets: list[str]) -> str:
    """ERR beside the best peer of each set, and beside the best one on average, with the same knowledge."""
    figures = dict(rows)
    peers = [name for name in figures if not name.startswith(("ERR", "IRR")) and not knows_more(name)]
    whole = [name for name in peers if all(figure is not None for figure in figures[name])]
    ours = [figure.mean for figure in figures.get("ERR", []) if figure is not None]
    if not whole or len(ours) < len(sets):
        return "Not complete yet."
    averages = {name: fmean(figure.mean for figure in figures[name] if figure is not None) for name in whole}
    best = min(averages, key=averages.__getitem__)
    above = []
    for position, data in enumerate(sets):
        lowest = min(found.mean for name in peers if (found := figures[name][position]) is not None)
        if ours[position] > 1.05 * lowest:
            above.append(f"{data} ({ours[position]:.1f} against {lowest:.1f})")
    return (
        f"On average over these sets ERR has {fmean(ours):.2f} %, the best peer ({best}) {averages[best]:.2f} %. "
        f"More than 5 % above the best peer of a set: {', '.join(above) if above else 'none'}."
    )


def draw(records: Records) -> None:
    """Error against labels per class, a panel for each set with the same number of labels of each class."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = [group for group in groups(records) if group.setting["protocol"] != "a"]
    sets = list(dict.fromkeys(group.data for group in found))
    columns = 4
    rows = -(-len(sets) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.2 * columns, 2.6 * rows), squeeze=False)
    for axis, name in zip(axes.flat, sets, strict=False):
        for method in LINES:
            points = sorted(
                (group.setting["labels"], error.mean)
                for group in found
                if (group.data, group.method) == (name, method) and (error := group.figure()) is not None
            )
            style = {"linewidth": 2.5, "zorder": 3} if method == "ERR" else {"linewidth": 1.2}
            axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=method.split(" ")[-1], **style)
        axis.set_xscale("log")
        axis.set_xticks([1, 2, 5, 10, 50], ["1", "2", "5", "10", "50"])
        axis.minorticks_off()
        axis.set_title(name, fontsize=9)
        axis.set_ylim(bottom=0)
    for axis in axes.flat[len(sets) :]:
        axis.axis("off")
    for axis in axes[:, 0]:
        axis.set_ylabel("error, %")
    figure.supxlabel("labels per class", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncol=len(LINES), loc="upper center", frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)
