"""What commands that draw need."""

from __future__ import annotations

from pathlib import Path

from homophily_service.cli.failures import WrongInput


def check_matplotlib(path: Path) -> None:
    """Refuse to write pictures where there is nothing to draw them with."""
    from homophily_service.plots.canvas import need_matplotlib

    try:
        need_matplotlib()
    except ImportError as error:
        raise WrongInput(f"{path}: {error}") from None
