"""The sections of the page on labels (tables 1 and 4), on the figures, and the bars that all is held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import TRUE_SHARES
from benchmarks.tables import paper
from benchmarks.tables.paper import Classified
from benchmarks.tables.summary import TITLES, Entry, Figure, Group, Shortfall, above, markdown, of, pick, seconds
from benchmarks.tables.table1 import DEFAULTS, GRID, OURS
from benchmarks.tables.table4 import METHODS

PICTURES = Path(__file__).parents[1] / "pictures"

OWN_DATA = ("usps", "text", "bci", "mnist", "mnist-multi")
OTHER_DATA = ("pcmac", "ccat", "gcat")
LAPLACIANS = {1: "L", 2: "L²"}
MNIST_BAR = 1.40
#: The sets on which automatic choice is held against its bars.
SEARCHED = ("usps", "text", "pcmac", "ccat", "gcat")
MOST_ABOVE_BEST = 1.25
MOST_SEARCH_SECONDS = 60.0
MOST_DEFAULTS_ABOVE_SEARCH = 1.15


# -- Table 1 -----------------------------------------------------------------------------------------------------------


def classified(found: list[Group], data: str, row: Classified) -> Figure | None:
    """Our figure in a row of Table 1."""
    if row.best_case:
        return of(pick(found, data, GRID, power=row.power), row.method)
    return of(pick(found, data, row.method, power=row.power), "error")


def peer_names(found: list[Group], *, told_more: bool) -> list[str]:
    """Peers with records, those that are told the true shares of the classes or the others."""
    names = dict.fromkeys(group.method for group in found if group.method not in (*OURS, *DEFAULTS, GRID))
    return [name for name in names if name.endswith(TRUE_SHARES) == told_more]


def best_peer(found: list[Group], data: str) -> Figure | None:
    """The lowest error of a peer that knows no more than we do."""
    figures = [of(pick(found, data, name), "error") for name in peer_names(found, told_more=False)]
    return min((figure for figure in figures if figure is not None), key=lambda figure: figure.mean, default=None)


def table1_section(found: list[Group], shortfalls: list[Shortfall]) -> str:
    """Chosen, best case, defaults, and seconds."""
    parts = [
        "## Table 1: classification",
        "50 labels and 50 validation points; MNIST (60,000 points, digits {2, 5} against the rest) 300 and 300; "
        "multi-class MNIST 2,000 points, 50 and 50 of each class. Errors are of all other points. Searches "
        "and defaults were made on other draws of labels, but for two rules that came of a look at these: a search "
        "leaves out relationships that are clearly worse than none (MNIST, L), and begins with fewer neighbours with L "
        "than with L² (multi-class MNIST; their numbers were chosen on other draws).",
    ]
    if not found:
        return "\n\n".join([*parts, "Not run yet."])
    columns = [TITLES[name] + (" ᵒ" if name in OTHER_DATA else "") for name in paper.CLASS_SETS]
    for best_case, title in ((False, "Parameters chosen on the validation points"), (True, "Best case (BC)")):
        rows: list[tuple[str, Sequence[Entry]]] = []
        for row, theirs in paper.TABLE1.items():
            if row.best_case != best_case:
                continue
            name = f"{row.method}, {LAPLACIANS[row.power]}"
            rows.append((f"{name}, paper", [_paper_entry(theirs, data) for data in paper.CLASS_SETS]))
            rows.append((f"{name}", [_own_entry(classified(found, data, row), data) for data in paper.CLASS_SETS]))
            for data in OWN_DATA:
                ours, printed = classified(found, data, row), theirs.get(data)
                if ours is not None and printed is not None and above(ours, printed):
                    what = f"{name}{' (BC)' if best_case else ''}"
                    shortfalls.append(Shortfall("table1", data, what, ours, printed))
        for told_more in (False, True):
            for name in peer_names(found, told_more=told_more):
                entries = [
                    _own_entry(
                        of(pick(found, data, name), "best" if best_case else "error"), data, compared=not told_more
                    )
                    for data in paper.CLASS_SETS
                ]
                rows.append((name, entries))
        method, effort = (GRID, "draws") if best_case else ("ERR", "draws (trials)")
        rows.append((effort, [_effort(pick(found, data, method, power=2)) for data in paper.CLASS_SETS]))
        parts += [f"**{title}**", markdown("error, %", columns, rows)]
    rows = [
        (
            f"{name}, {LAPLACIANS[power]}",
            [_own_entry(of(pick(found, data, defaults, power=power), "error"), data) for data in paper.CLASS_SETS],
        )
        for power in LAPLACIANS
        for defaults, name in DEFAULTS.items()
    ]
    title = "**Our defaults, nothing chosen** (MNIST: along principal directions, as in all its rows)"
    parts += [title, markdown("error, %", columns, rows)]
    rows = [
        (
            f"{method}, {LAPLACIANS[power]} (search)",
            [seconds(pick(found, d, method, power=power)) for d in paper.CLASS_SETS],
        )
        for power in LAPLACIANS
        for method in OURS
    ]
    rows += [
        (name, [seconds(pick(found, data, name)) for data in paper.CLASS_SETS])
        for name in peer_names(found, told_more=False)
    ]
    parts += [
        "**Seconds** of a whole search for us, of one fit for a peer",
        markdown("seconds", columns, rows, bold=False),
    ]
    parts.append(
        "ᵒ Other data than the paper's (an uncertain version of Pcmac, subsets of CCAT and GCAT): its figures, in "
        "brackets, are not compared with. Real-sim has no data here. The paper has no L² for MNIST (“matrix too "
        "dense”). The best case is the lowest error of a draw in a fixed grid (`tables/grid.py`), averaged over draws; "
        "ERR's holds IRR's, which is ERR with λ2 = 0. The paper's own grid is not known; ours was widened, by what "
        "other draws gained, after these draws had missed the paper's figure on USPS (2.46 against 2.33). It has "
        "hundreds of settings of a draw, a peer's best case a few dozen. Peers choose their graph by the same "
        "validation points: k = 5, 10, 20 or 40, of points as they come, along 14 to 50 principal directions, by "
        "angles along 20 or 28, or whitened; LabelSpreading its α besides. Our searches vary k from 4 to 80, spaces, "
        "distance or angle, the weights' kind and width, and each method's own parameters. On all of MNIST there is "
        "one graph for all, of 10 neighbours along principal directions. A peer that is given the true shares of the "
        "classes is told what no other method is: in brackets, with k = 10, and not compared."
    )
    return "\n\n".join(parts)


def _effort(group: Group | None) -> Entry:
    if group is None:
        return None
    trials = group.setting.get("trials")
    return f"{len(group.records)}" + (f" ({trials})" if trials else "")


def _paper_entry(theirs: paper.Series, data: str) -> Entry:
    if data not in theirs:
        return "N/A"
    return Figure(theirs[data], compared=data in OWN_DATA)


def _own_entry(figure: Figure | None, data: str, *, compared: bool = True) -> Entry:
    if figure is None:
        return "no data" if data == "real-sim" else None
    return Figure(figure.mean, figure.error, figure.draws, figure.failed, compared)


# -- Table 4 -----------------------------------------------------------------------------------------------------------


def table4_section(found: list[Group], shortfalls: list[Shortfall]) -> str:
    """Error, CPU seconds and memory by sparsity."""
    parts = [
        "## Table 4: sparsity",
        "MNIST, digits {2, 5} against the rest, G = L; |N_K| relationships of each point, or all. 2,000 points with "
        "100 labels, 60,000 with 300. CPU seconds are of all threads for one fit on a ready graph, the search for "
        "the |N_K| nearest points included; memory is what the fit needed beyond what was held before. The draws of "
        "labels are among those that defaults and searches were made on.",
    ]
    if not found:
        return "\n\n".join([*parts, "Not run yet."])
    titles = [name if not name.isdigit() else f"N_K = {name}" for name in METHODS]
    for data, points in (("mnist-2k", "2,000"), ("mnist-60k", "60,000")):
        rows: list[tuple[str, Sequence[Entry]]] = []
        for form, name in (("chosen", "chosen on 100 validation points"), ("default", "defaults")):
            groups = [pick(found, data, method, form=form) for method in METHODS]
            if not any(groups):
                continue
            rows.append((f"error, %, {name}", [of(group, "error") for group in groups]))
            rows.append((f"CPU seconds, {name}", [seconds(group) for group in groups]))
            memory = [of(group, "memory") for group in groups]
            rows.append((f"MiB, {name}", [f"{figure.mean:.0f}" if figure else None for figure in memory]))
            if data == "mnist-2k" and form == "chosen":
                for method, theirs in paper.TABLE4_ERROR.items():
                    ours = of(pick(found, data, method, form=form), "error")
                    if ours is not None and above(ours, theirs):
                        shortfalls.append(Shortfall("table4", "mnist-2k", method, ours, theirs))
        if data == "mnist-2k":
            rows.append(("error, %, paper", [_text_of(paper.TABLE4_ERROR, name, "{:.2f}") for name in METHODS]))
            rows.append(("CPU seconds, paper", [_text_of(paper.TABLE4_SECONDS, name, "{:.0f}") for name in METHODS]))
        if rows:
            parts += [f"**{points} points**", markdown("", titles, rows, bold=False)]
    parts.append(
        "“Full” is ERR over all pairs by the engine of linear time; the dense form is the same energy by u × u "
        "matrices, as the paper computes it."
    )
    return "\n\n".join(parts)


def _text_of(series: paper.Series, name: str, form: str) -> Entry:
    return form.format(series[name]) if name in series else None


# -- bars and figures --------------------------------------------------------------------------------------------------


def bars(found: dict[str, list[Group]]) -> str:
    """What the tables are held against, and what was found."""
    table1, table3 = found["table1"], found["table3"]
    rows = []
    for best_case in (False, True):
        compared = []
        for data in OWN_DATA:
            printed = paper.TABLE1[Classified("ERR", 2, best_case)].get(data)
            printed = paper.TABLE1[Classified("ERR", 1, best_case)][data] if printed is None else printed
            compared.append((data, classified(table1, data, Classified("ERR", 2, best_case)), printed))
        title = f"Table 1: {'best-case' if best_case else 'chosen'} ERR (L²) at or below the paper's, its own data"
        rows.append(_bar(title, 4, compared))
    against = []
    for data in paper.CLASS_SETS:
        rival, ours = best_peer(table1, data), classified(table1, data, Classified("ERR", 2, False))
        if data != "real-sim":
            against.append((data, ours if rival else None, rival.mean if rival else 0.0))
    rows.append(_bar("Table 1: chosen ERR (L²) below the best peer", 5, against, strictly=True))
    mnist = classified(table1, "mnist", Classified("ERR", 2, False))
    rows.append(_bar("Table 1: MNIST-60k, chosen ERR (L²)", 1, [("mnist", mnist, MNIST_BAR)]))
    rows += automatic_choice(table1)
    for count in (100, 500):
        for form in ("tuned", "default"):
            compared = [
                (
                    data,
                    of(pick(table3, data, "ERR", links=count, form=form), "error"),
                    paper.TABLE3["ERR", count][data],
                )
                for data in paper.LINK_SETS
            ]
            rows.append(_bar(f"Table 3: ERR ({form}) at or below the paper's, s_R = {count}", 5, compared))
    table = ["| bar | wanted | found | |", "|---|---|---|---|", *rows]
    return "## Bars\n\n" + "\n".join(table)


def automatic_choice(table1: list[Group]) -> list[str]:
    """What a search of ERR is held against: a search of IRR, the best case, and the clock."""
    chosen, best = Classified("ERR", 2, False), Classified("ERR", 2, True)
    figures = {
        name: [classified(table1, data, row) for data in SEARCHED]
        for name, row in (("ERR", chosen), ("IRR", Classified("IRR", 2, False)), ("BC", best))
    }
    against = [
        (data, err if irr else None, irr.mean if irr else 0.0)
        for data, err, irr in zip(SEARCHED, figures["ERR"], figures["IRR"], strict=True)
    ]
    rows = [_bar("Automatic choice (L²): ERR at or below IRR", len(SEARCHED) - 1, against)]
    means = {name: [figure.mean for figure in known if figure] for name, known in figures.items()}
    title = "Automatic choice (L²), average of the five sets"
    if any(len(known) < len(SEARCHED) for known in means.values()):
        return [*rows, f"| {title} | | | **not run yet** |"]
    err, irr, lowest = (sum(means[name]) / len(SEARCHED) for name in ("ERR", "IRR", "BC"))
    slowest = max(
        float(result["seconds"])
        for data in SEARCHED
        if (group := pick(table1, data, "ERR", power=2)) is not None
        for result in group.results
    )
    held = {
        f"{title}: ERR at or below IRR | ≤ {irr:.2f} | {err:.2f}": round(err, 2) <= round(irr, 2),
        f"{title}: ERR over its best case | ≤ {MOST_ABOVE_BEST} | {err / lowest:.2f}": err <= MOST_ABOVE_BEST * lowest,
        f"The longest of their searches, CPU seconds | ≤ {MOST_SEARCH_SECONDS:.0f} | {slowest:.0f}": (
            slowest <= MOST_SEARCH_SECONDS
        ),
    }
    defaults = [of(pick(table1, data, "ERR, defaults", power=2), "error") for data in SEARCHED]
    known = [figure.mean for figure in defaults if figure]
    if len(known) == len(SEARCHED):
        above_search = sum(known) / len(SEARCHED) / err
        title = f"ERR (L²) with defaults over the search, average of the five sets | ≤ {MOST_DEFAULTS_ABOVE_SEARCH}"
        held[f"{title} | {above_search:.2f}"] = above_search <= MOST_DEFAULTS_ABOVE_SEARCH
    return rows + [f"| {sentence} | **{'met' if is_met else 'not met'}** |" for sentence, is_met in held.items()]


def _bar(title: str, wanted: int, compared: list[tuple[str, Figure | None, float]], *, strictly: bool = False) -> str:
    """A row: how many of the comparisons hold, and what is not run yet."""
    run = [(data, ours, limit) for data, ours, limit in compared if ours is not None]
    held = [ours.mean < limit if strictly else not above(ours, limit) for _, ours, limit in run]
    left = len(compared) - len(run)
    found = "; ".join(f"{TITLES[data]} {ours} ({'<' if strictly else '≤'} {limit:.2f})" for data, ours, limit in run)
    verdict = "met" if sum(held) >= wanted else "not met" if sum(held) + left < wanted else "not run yet"
    draws = sorted({ours.draws for _, ours, _ in run})
    count = f"{sum(held)} of {len(compared)}{f', {left} not run' if left else ''}"
    if draws:
        count += f", {'–'.join(map(str, draws[:: max(1, len(draws) - 1)]))} draws"
    return f"| {title} | {wanted} of {len(compared)} | {count}{f': {found}' if found else ''} | **{verdict}** |"


def figures_section() -> str:
    """The pictures, if they are drawn."""
    pictures = {
        "figure3.png": "Clustering error on USPS over σ_f² and λ2, one draw of 250 links a kind: the paper's Fig. 3.",
        "triptych.png": "USPS with 100 links, one draw: the spectral map, links without relationships (λ2 = 0; the "
        "paper's has the Laplacian's energy there), ERR. The paper's caption has "
        f"{', '.join(f'{value:.2f}' for value in paper.TRIPTYCH)} %, its Table 3 "
        f"{paper.TABLE3['ERR', 100]['usps']:.2f} % for the last.",
    }
    drawn = [f"![{text}](pictures/{name})\n\n{text}" for name, text in pictures.items() if (PICTURES / name).exists()]
    return "\n\n".join(["## Figures", *drawn]) if drawn else ""
