"""A person at the studio's page, in a real browser."""

from __future__ import annotations

import csv
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

from benchmarks.browser import Page, browse

from .chromium import need_chromium
from .serving import Service, eventually, running
from .studio import studio

SHIFT, CTRL = 8, 2
READY = "window.studio?.view.study?.now.embedding && document.getElementById('work').hidden"
HOSTILE = '<img src=x onerror="window.hurt=1">'


@pytest.fixture(autouse=True)
def chromium() -> None:
    need_chromium()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill(service: Service) -> None:
    """End a server without a word to it."""
    children = service.descendants()
    service.process.kill()
    service.process.wait()
    eventually(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])
    # Nothing is left to stop.
    service.stop = lambda: None


async def settled(page: Page, condition: str) -> Any:
    """Wait until no job runs and a condition is true."""
    return await page.shows(f"({READY}) && ({condition})")


async def where(page: Page, point: int) -> tuple[float, float]:
    """Where a point is on the screen."""
    place = f"const r = document.getElementById('map').getBoundingClientRect(); const [x, y] = s.toScreen({point})"
    x, y = await page.value(f"(() => {{ const s = studio.view.scatter; {place}; return [r.x + x, r.y + y]; }})()")
    return x, y


async def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = await page.value(f"[...document.querySelectorAll('{selector}')].map(e => e.innerText)")
    return found


async def label_by_hand(page: Page, point: int, name: str) -> None:
    """Click at a point, type the class, press Enter."""
    await page.value("studio.view.scatter.frame()")
    await page.click(*await where(page, point))
    # Another point may lie in front of it.
    await page.value(f"studio.select([{point}])")
    await page.press("c")
    await page.type(name)
    await page.press("Enter")


def test_a_person_labels_links_answers_undoes_exports_and_finds_everything_again(tmp_path: Path) -> None:
    X, y = load_digits(return_X_y=True)
    np.save(tmp_path / "digits.npy", X[:500])
    port = free_port()
    settings: dict[str, Any] = {"port": port, "workers": 1, "predictors": 1}

    async def first_half(page: Page) -> None:
        await page.open(studio_page.url)
        await settled(page, "studio.view.scatter.count === 500")
        assert "500 points" in await page.value("document.getElementById('facts').innerText")
        for digit in (0, 1, 2):
            await label_by_hand(page, int(np.flatnonzero(y == digit)[0]), str(digit))
        await settled(page, "studio.view.study.model?.labelled === 3")
        assert await texts(page, ".class .name") == ["0", "1", "2"]
        # A lasso around everything on the screen, then a key.
        await page.value("studio.select([])")
        left, top, right, bottom = await page.value(
            "(() => { const r = document.getElementById('map').getBoundingClientRect();"
            " return [r.left + 3, r.top + 3, r.right - 3, r.bottom - 60]; })()"
        )
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        await page.drag(corners, SHIFT)
        await page.shows("studio.view.selected.length > 400")
        await page.shows("document.querySelectorAll('#gallery canvas.thumbnail').length === 30")
        # Two of the same digit and two different ones.
        same = [int(point) for point in np.flatnonzero(y == 6)[:2]]
        await page.value(f"studio.select({same})")
        await page.press("s")
        await settled(page, "studio.view.links.must_link.length === 1")
        other = [same[0], int(np.flatnonzero(y == 4)[0])]
        await page.value(f"studio.select({other})")
        await page.value("document.getElementById('different').click()")
        await settled(page, "studio.view.links.cannot_link.length === 1")
        # Now that these two are apart, calling them the same contradicts.
        await page.value(f"studio.select({[same[1], other[1]]})")
        await page.press("s")
        await settled(page, "studio.view.links.must_link.length === 2")
        await page.shows("/contradict/i.test(document.getElementById('said').innerText)")
        # A suggestion answered by its key.
        await page.value("studio.select([])")
        await page.shows("document.querySelector('.question button') !== null")
        await page.press("1")
        await settled(page, "studio.view.study.model?.labelled === 4")
        # Back and forth.
        await page.press("z", CTRL)
        await settled(page, "studio.view.study.model?.labelled === 3")
        await page.press("y", CTRL)
        await settled(page, "studio.view.study.model?.labelled === 4")
        await page.photograph(tmp_path / "page.png")

    async def second_half(page: Page) -> None:
        await page.open(studio_page.url)
        await settled(page, "studio.view.study.model?.labelled === 4 && studio.view.links.must_link.length === 2")
        steps = await texts(page, "#history .step span")
        assert "4 labels" in steps
        assert "map, 3 links" in steps
        assert "map, 0 links" in steps
        # A second tab sees what the first one does, once it acts itself.
        beside = await page.tab(studio_page.url)
        await settled(beside, "studio.view.study.model?.labelled === 4")
        point = int(np.flatnonzero(y == 3)[0])
        await page.value(f"studio.select([{point}])")
        await page.press("3")
        await settled(page, "studio.view.study.model?.labelled === 5")
        await label_by_hand(beside, int(np.flatnonzero(y == 8)[0]), "8")
        await settled(beside, "studio.view.study.model?.classes.includes('8')")
        assert (await texts(beside, "#history .step span")).count("5 labels") == 2
        model = await beside.value("studio.view.study.now.model")
        text = studio_page.bytes("export", what="labels", format="csv", model=model).decode()
        rows = list(csv.DictReader(text.splitlines()))
        assert len(rows) == 500
        assert sum(row["given"] == "1" for row in rows) == 5

    with ExitStack() as stack:
        service = stack.enter_context(running(tmp_path / "data", **settings))
        studio_page = stack.enter_context(studio(service.target, tmp_path / "digits.npy"))
        browse(tmp_path / "first", first_half, (1280, 860), webgl=True)
        kill(service)
        stack.enter_context(running(tmp_path / "data", **settings))
        browse(tmp_path / "second", second_half, (1280, 860), webgl=True)


def test_no_string_of_the_data_becomes_code(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "data.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", HOSTILE, "x", "y"])
        for row in range(60):
            place = rng.normal(size=2) + 9 * (row % 2)
            writer.writerow([f"{row} {HOSTILE}", HOSTILE, *place])

    async def look(page: Page) -> None:
        await page.open(page_of.url)
        await settled(page, "studio.view.scatter.count === 60")
        await label_by_hand(page, 0, HOSTILE)
        await label_by_hand(page, 1, "<script>window.hurt=1</script>")
        await settled(page, "studio.view.study.model?.labelled === 2")
        await page.value("studio.select([0, 1, 2, 3])")
        await page.shows("document.querySelectorAll('#gallery .card').length === 4")
        await page.value("document.getElementById('form').click()")
        await page.shows("document.querySelectorAll('#gallery td').length > 0")
        await page.click(*await where(page, 0))
        assert HOSTILE in await page.value("document.getElementById('legend').innerText")
        assert await page.value("document.querySelectorAll('img[onerror]').length") == 0
        assert await page.value("window.hurt") is None

    with (
        running(tmp_path / "data", workers=1, predictors=1) as service,
        studio(service.target, path, "--drop", "id") as page_of,
    ):
        browse(tmp_path / "browser", look, (1280, 720), webgl=True)
