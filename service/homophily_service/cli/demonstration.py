"""``make demo``: starts a service that labels scikit-learn's digits from 50 labels, by IRR and ERR; table and plot."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.status import Status
from sklearn.datasets import load_digits

from homophily_client import Client, ClientError, JobHandle, Model
from homophily_service.cli.progress import follow_own
from homophily_service.cli.screen import err, print_json, print_result, print_status, print_table
from homophily_service.cli.serve import ask_health
from homophily_service.cli.uploads import send

LABELS = 50
MORE_LABELS = 10
NEW_POINTS = 200
DRAWS = 3
METHODS: dict[str, dict[str, Any]] = {
    "IRR, p = 1": {"method": "irr", "power": 1},
    "IRR, p = 2": {"method": "irr", "power": 2},
    "ERR, p = 1": {"method": "err", "power": 1},
    "ERR, p = 2": {"method": "err", "power": 2},
}
BEST = "ERR, p = 2"

START_SECONDS = 60.0
STOP_SECONDS = 30.0


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


def run(picture: Path = Path("demo.png"), *, as_json: bool = False) -> None:
    """Run the demonstration."""
    began = time.monotonic()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="homophily-demo-") as folder,
            embedded_service(Path(folder)) as target,
            Client(target) as client,
        ):
            rows, given, wrong, digits = _work(client)
        print_status("✓ the service has stopped cleanly")
        is_drawn = _draw(digits, given, wrong, rows, picture)
    except (ClientError, OSError, ValueError, TypeError) as error:
        raise DemoFailed(str(error)) from error
    seconds = time.monotonic() - began
    if as_json:
        print_json({"rows": [row._asdict() for row in rows], "picture": str(picture) if is_drawn else None})
        return
    print_result("")
    _print_rows(rows)
    print_result(f"\n{seconds:.0f} s in all." + (f" The picture is in {picture}." if is_drawn else ""))
    print_result(f"Go on with your own data: `{command()} serve` runs the service; then, in another terminal,")
    print_result(f"  {command()} fit points.csv --label-column label")


def command() -> str:
    """The command as it can be typed here: make's virtual environment need not be active."""
    return "homophily" if shutil.which("homophily") else shlex.quote(str(Path(sys.executable).with_name("homophily")))


def _work(client: Client) -> tuple[list[Row], dict[int, int], dict[int, int], Digits]:
    """Upload, fit, transduce, predict; returns the table, and the labels and mistakes of one fit for the picture."""
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
    solution = client.read_solution(best, ("labels", "scores"))
    assert solution.labels is not None
    assert solution.scores is not None
    wrong = {int(point): int(solution.labels[point]) for point in np.flatnonzero(solution.labels != digits.y)}
    more = {point: int(digits.y[point]) for point in least_sure(solution.scores, given)}
    job = client.transduce(best, more, validation=_others(digits.y, given | more))
    changed = _follow(job, f"{MORE_LABELS} more labels")
    rows.append(_with(Row(f"fit 1, {MORE_LABELS} more labels", [], [], 0, best.error_rate), changed))
    print_status(
        f"✓ {MORE_LABELS} more labels, where it was least sure: {job.info.changed_points} points changed their class"
    )
    began = time.monotonic()
    answers = client.predict(changed, digits.new_X).labels
    seconds = time.monotonic() - began
    rows.append(Row(f"fit 1, {NEW_POINTS} new points", [float(np.mean(answers != digits.new_y))], [seconds], None))
    print_status(f"✓ {NEW_POINTS} new points predicted")
    return rows, given, wrong, digits


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


def least_sure(scores: NDArray[np.float64], given: dict[int, int]) -> list[int]:
    """The unlabelled points whose two best scores are closest."""
    best = np.sort(scores, axis=1)
    margins = best[:, -1] - best[:, -2]
    margins[list(given)] = np.inf
    return [int(point) for point in np.argsort(margins, kind="stable")[:MORE_LABELS]]


# -- the service -------------------------------------------------------------------------------------------------------


# The service ends with this process. It arranges that itself, as gRPC's threads do not survive a fork.
_SERVE = """
import signal, sys
from homophily_service.runtime.processes import die_with_parent
die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
from homophily_service.cli import main
main()
"""


@contextmanager
def embedded_service(folder: Path) -> Iterator[str]:
    """`homophily serve` on a free port, ready on entry and stopped on exit; yields its address."""
    # Settings of another service must not reach this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMOPHILY_")}
    # Its runs would be deleted with its folder.
    environment |= {"HOMOPHILY_LOG_LEVEL": "warning", "HOMOPHILY_TRACKING": "false"}
    log = folder / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, str(os.getpid()), "serve", "--port=0", f"--data-dir={folder / 'data'}"],
            stdout=subprocess.PIPE,
            stderr=stderr,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment,
            # Ctrl-C must reach only this process, which then stops the service.
            start_new_session=True,
        )
    try:
        began = time.monotonic()
        with Status("starting a service", console=err):
            target = _address(process, log)
            _wait_until_ready(process, target, log)
        print_status(f"✓ a service runs on {target} ({time.monotonic() - began:.1f} s)")
        yield target
    except BaseException:
        process.terminate()
        _wait_or_kill(process)
        raise
    with Status("stopping the service", console=err):
        process.terminate()
        code = _wait_or_kill(process)
    if code:
        raise DemoFailed(f"the service ended with code {code}{_tail(log)}")


def _address(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"serves on (\S+:\d+)", line)
    if match is None:
        raise DemoFailed(f"the service did not start{_tail(log)}")
    return match.group(1)


def _wait_until_ready(process: subprocess.Popen[str], target: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    # It may answer before it is ready, and a call may be lost.
    while ask_health(target, deadline - time.monotonic()) != "SERVING":
        if process.poll() is not None or time.monotonic() > deadline:
            raise DemoFailed(f"the service on {target} is not ready{_tail(log)}")
        time.sleep(0.1)


def _wait_or_kill(process: subprocess.Popen[str]) -> int:
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    if process.stdout is not None:
        process.stdout.close()
    return code


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "" if not lines else "; its last lines:\n" + "\n".join(lines[-10:])


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


def _print_rows(rows: list[Row]) -> None:
    print_table(
        "",
        ["method", "error on the unlabelled", "seconds per fit", "graph reused"],
        [
            (
                row.what,
                _spread(row.errors) + ("" if row.before is None else f" (was {100 * row.before:.2f} %)"),
                round(float(np.mean(row.seconds)), 2),
                None if row.reused is None else f"{row.reused} of {len(row.errors)}",
            )
            for row in rows
        ],
    )


def _draw(digits: Digits, given: dict[int, int], wrong: dict[int, int], rows: list[Row], path: Path) -> bool:
    """Write the picture; False if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        print_status("There is no picture, as matplotlib is not installed: pip install 'homophily[plot]'")
        return False
    mpl.use("agg")
    from matplotlib import pyplot as plt

    known = sorted(given, key=lambda point: (given[point], point))
    figure = plt.figure(figsize=(13, 4.6), layout="constrained")
    panels: Any = figure.subfigures(1, 3, width_ratios=[1.25, 1.0, 1.25])
    left, middle, right = panels
    title = f"Given: {LABELS} labelled digits of {len(digits.y):,}"
    _show_digits(left, digits.X, known, [str(given[point]) for point in known], title)
    axis = middle.subplots()
    compared = [row for row in rows if row.what in METHODS]
    for place, row in enumerate(compared):
        values = 100 * np.array(row.errors)
        axis.bar(place, values.mean(), color="tab:orange" if row.what.startswith("ERR") else "tab:gray", width=0.6)
        axis.plot([place] * len(values), values, "k.", alpha=0.6)
    axis.set_xticks(range(len(compared)), [row.what for row in compared], rotation=20)
    axis.set_ylabel("error on the unlabelled points (%)")
    axis.set_title(f"Mean and {DRAWS} draws of labels")
    shown = list(wrong)[:50]
    captions = [f"{wrong[point]}, not {digits.y[point]}" for point in shown]
    _show_digits(right, digits.X, shown, captions, f"{BEST}: {len(shown)} of its {len(wrong)} mistakes")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _show_digits(figure: Any, X: NDArray[Any], points: list[int], captions: list[str], title: str) -> None:
    figure.suptitle(title)
    for axis in figure.subplots(5, 10).ravel():
        axis.set_axis_off()
    for axis, point, caption in zip(figure.axes, points, captions, strict=False):
        axis.imshow(X[point].reshape(8, 8), cmap="gray_r")
        axis.set_title(caption, fontsize=6, pad=1)


if __name__ == "__main__":
    run()
