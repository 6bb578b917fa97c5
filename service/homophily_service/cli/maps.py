"""Checks that commands for pictures share."""

from __future__ import annotations

from pathlib import Path

from homophily_service.cli.failures import WrongInput


def check_matplotlib(path: Path) -> None:
    """Refuse to write pictures if matplotlib is not installed."""
    from homophily_service.plots.canvas import need_matplotlib

    try:
        need_matplotlib()
    except ImportError as error:
        raise WrongInput(f"{path}: {error}") from None
