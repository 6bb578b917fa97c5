"""The studio's page in a browser: how soon many points are drawn and how smoothly they move, and how fast labels come.

The browser computes WebGL on the processor, which a graphics card does many times as fast.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.browser import Page, browse
from benchmarks.data import Classes, manifolds
from benchmarks.measure import timed
from benchmarks.report import Options, Report, Row
from benchmarks.service import serving
from homophily_client import Client

SIZES = (100_000, 1_000_000)
SCREEN = (1280, 800)
#: Frames are counted for so long while the map is moved.
SECONDS_OF_MOVING = 4.0
FIRST_LABELS, RIGHT, MOST_ACTS = 10, 0.95, 200
READY = "window.studio?.view.study?.now.embedding && document.getElementById('work').hidden"
FRAMES = """(async () => {
  const { scatter } = studio.view, began = performance.now();
  let frames = 0;
  while (performance.now() - began < %d) {
    scatter.camera.x += (frames %% 40 < 20 ? 6 : -6) / scatter.camera.scale;
    scatter.camera.scale *= frames %% 60 < 30 ? 1.01 : 1 / 1.01;
    scatter.draw();
    await new Promise(requestAnimationFrame);
    scatter.finish();
    frames++;
  }
  return 1000 * frames / (performance.now() - began);
})()"""


def run(options: Options, report: Report) -> None:
    sizes = (5_000,) if options.quick else [size for size in SIZES if size <= options.max_points]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder)) as service,
        Client(service.target, timeout=600.0) as client,
    ):
        rows = []
        for size in sizes:
            report.progress(f"{size:,} points")
            rows.append(drawn(client, service.target, Path(folder), size))
        report.table("Maps in the browser, WebGL on the processor", rows)
        acts = [
            labelled(service.target, Path(folder), follow=follow, most=20 if options.quick else MOST_ACTS)
            for follow in (True, False)
        ]
    report.table(f"1,797 digits, from {FIRST_LABELS} labels to {RIGHT:.0%} right, one label at a time", acts)


def drawn(client: Client, target: str, folder: Path, size: int) -> Row:
    """How long a map of this number of points takes to show, and the frames a second while it moves."""
    X, _ = manifolds(size, seed=1)
    dataset = client.upload(X)
    seconds, embedding = timed(lambda: client.embed(dataset).result())

    async def look(page: Page) -> tuple[float, float]:
        began = time.perf_counter()
        await page.open(url)
        await page.shows(f"({READY}) && studio.view.scatter.count === {size}")
        shown = time.perf_counter() - began
        return shown, float(await page.value(FRAMES % (1000 * SECONDS_OF_MOVING)))

    with page_of(target, embedding.name) as url:
        shown, frames = browse(folder / f"browser-{size}", look, SCREEN, webgl=True)
    return {"points": size, "map, seconds": seconds, "first picture, seconds": shown, "frames a second": frames}


def labelled(target: str, folder: Path, *, follow: bool, most: int) -> Row:
    """Label digits as a person would, by the suggestions or in random order, until enough are right."""
    X, y = load_digits(return_X_y=True)
    truth: Classes = y
    path = folder / f"digits-{follow}.npy"
    np.save(path, X)
    rng = np.random.default_rng(0)
    first = [int(rng.choice(np.flatnonzero(truth == digit))) for digit in range(FIRST_LABELS)]

    async def label(page: Page, point: int) -> None:
        await page.value(f"studio.select([{point}])")
        await page.press("c")
        await page.type(str(truth[point]))
        await page.press("Enter")

    async def right(page: Page) -> float:
        answers = await page.value("Array.from({length: studio.view.scatter.count}, (_, i) => studio.classOf(i))")
        return float(np.mean(np.array(answers, dtype=object) == truth.astype(str)))

    async def settled(page: Page, count: int) -> None:
        await page.shows(f"({READY}) && studio.view.study.model?.labelled === {count}")

    async def look(page: Page) -> Row:
        await page.open(url)
        await page.shows(READY)
        began, given = time.perf_counter(), list(first)
        for point in first:
            await label(page, point)
        await settled(page, len(given))
        start = share = await right(page)
        while share < RIGHT and len(given) < most:
            if follow:
                await page.shows(f"studio.asked().length > 0 && !{given}.includes(studio.asked()[0])")
                point = int((await page.value("studio.asked()"))[0])
            else:
                point = int(rng.choice(np.setdiff1d(np.arange(len(truth)), given)))
            await label(page, point)
            given.append(point)
            await settled(page, len(given))
            share = await right(page)
        return {
            "order": "suggestions" if follow else "random",
            "right at the start, %": 100 * start,
            "right, %": 100 * share,
            "acts": len(given),
            "seconds": time.perf_counter() - began,
        }

    with page_of(target, str(path)) as url:
        return browse(folder / f"browser-{follow}", look, SCREEN, webgl=True)


@contextmanager
def page_of(target: str, source: str) -> Iterator[str]:
    """The address of a studio that shows a file or an embedding."""
    command = [sys.executable, "-m", "homophily_service", "studio", source, "--target", target, "--port", "0"]
    environment: dict[str, Any] = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        with process.stdout as stdout:
            yield stdout.readline().removeprefix("Open ").strip()
    finally:
        process.terminate()
        process.wait(60)
