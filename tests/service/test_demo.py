"""The demonstration: what it computes with, and the whole of it in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from homophily_service.cli import own_service

from .serving import descendants


@pytest.fixture(scope="module")
def demo() -> Any:
    from homophily_service.cli import demonstration  # loads half of scikit-learn

    return demonstration


def test_digits_are_split_and_labels_drawn_the_same_way_each_time(demo: Any) -> None:
    digits = demo.load_and_split()
    assert digits.X.shape == (1597, 64)
    assert len(digits.new_y) == demo.NEW_POINTS
    labels = demo.draw_labels(digits.y, 1)
    assert labels == demo.draw_labels(digits.y, 1)
    assert len(labels) == demo.LABELS
    assert set(labels.values()) == set(range(10))
    assert all(digits.y[point] == label for point, label in labels.items())


def test_pairs_of_the_map_are_of_the_same_digit_or_of_two(demo: Any) -> None:
    y = demo.load_and_split().y
    pairs = demo.draw_pairs(y)
    assert [len(pairs["must_link"]), len(pairs["cannot_link"])] == [demo.LINKS_OF_EACH_KIND] * 2
    assert all(y[i] == y[j] for i, j in pairs["must_link"])
    assert all(y[i] != y[j] for i, j in pairs["cannot_link"])


def test_a_service_that_does_not_start_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(own_service.ServiceFailed, match="did not start"), own_service.embedded_service(tmp_path):
        pass


def test_a_service_is_waited_for_until_it_is_ready_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [None, "NOT_SERVING", "SERVING", "NOT_SERVING"]
    monkeypatch.setattr(own_service, "ask_health", lambda *_: answers.pop(0))
    log = tmp_path / "log"
    log.write_text("no space left")
    with subprocess.Popen(["sleep", "60"], text=True) as process:
        own_service._wait_until_ready(process, "here", log)
        process.kill()
    with pytest.raises(own_service.ServiceFailed, match="here is not ready; its last lines:\nno space left"):
        own_service._wait_until_ready(process, "here", log)
    assert answers == []


def test_the_service_of_a_demonstration_that_fails_is_stopped(tmp_path: Path) -> None:
    before = set(descendants(os.getpid()))

    def fail() -> None:
        with own_service.embedded_service(tmp_path):
            assert set(descendants(os.getpid())) > before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert set(descendants(os.getpid())) <= before


def test_the_demonstration_runs_and_err_beats_irr(tmp_path: Path) -> None:
    # Fewer draws: here it shall end well, not impress.
    program = "from homophily_service.cli import demonstration, main; demonstration.DRAWS = 1; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, "demo", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    assert "✓ the service has stopped cleanly" in ended.stderr
    found = json.loads(ended.stdout)
    errors = {row["what"]: row["errors"][0] for row in found["rows"]}
    assert len(errors) == 7
    assert all(error < 0.15 for error in errors.values()), errors
    assert errors["ERR, p = 2"] < errors["IRR, p = 2"]
    assert [row["reused"] for row in found["rows"]] == [0, 1, 1, 1, 1, None, 1]
    assert len(found["usual"]) == 3
    assert all(min(usual) > 0.1 for usual in found["usual"].values()), found["usual"]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
