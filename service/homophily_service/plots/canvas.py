"""What all pictures share: figures without global state, colours, texts, and PNG bytes."""

from __future__ import annotations

import colorsys
import io
import re
from functools import cache
from typing import Any

import numpy as np

# Distinguishable with colour blindness, by lightness too.
_PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#6a3d9a",
    "#8c6d31",
    "#17becf",
    "#b5a300",
)
GREY, INK, FAINT, MARK = "#9a9a9a", "#2f3b47", "#5a6673", "#e0001b"
_DPI = 120
# Distance of the heading from the edge, in points, and the longest heading that fits every picture, in letters.
_EDGE, _LONGEST_HEADING = 7, 48
_MOST_BYTES = 180_000


def colours(count: int) -> list[str]:
    """One colour for each of ``count`` groups."""
    found = list(_PALETTE[:count])
    for number in range(len(found), count):
        # Steps of the golden ratio never come near an earlier hue; lightness alternates.
        hue, lightness = number * 0.618034 % 1.0, (0.36, 0.5, 0.64)[number % 3]
        red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, 0.6))
        found.append(f"#{red:02x}{green:02x}{blue:02x}")
    return found


def need_matplotlib() -> None:
    """Raise ImportError, which says what to do, if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError("pictures need matplotlib, which is not installed: pip install 'homophily[plot]'") from None


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches. pyplot would keep a list of all figures, and need a screen."""
    need_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def tidy(axis: Any, *, grid: str | None = "both") -> None:
    """Remove lines that carry no information."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize="small", color=GREY)
    if grid is not None:
        axis.grid(axis=grid, color="#e4e8ec", linewidth=0.7)
        axis.set_axisbelow(True)


def headline(figure: Any, heading: str, below: str) -> None:
    """Write a heading and the line below it, wrapped, at the top left."""
    width, height = figure.bbox.size
    edge = _EDGE * figure.dpi / 72
    place = {"x": edge / width, "ha": "left", "va": "top"}
    top = figure.text(
        y=1 - edge / height, s=words(heading, _LONGEST_HEADING), fontsize=12, fontweight="bold", color=INK, **place
    )
    under = (top.get_window_extent().y0 - edge / 2) / height
    subtitle = figure.text(y=under, s="", fontsize=9, color=FAINT, linespacing=1.4, **place)
    lines: list[str] = []
    for part in re.split("(?<=[·,]) ", words(below)):
        longer = f"{lines[-1]} {part}" if lines else part
        subtitle.set_text(longer)
        if lines and subtitle.get_window_extent().x1 > width - edge:
            lines.append(part)
        else:
            lines[-1:] = [longer]
    subtitle.set_text("\n".join(lines))
    figure.get_layout_engine().set(rect=(0, 0, 1, (subtitle.get_window_extent().y0 - edge / 2) / height))


def to_png(figure: Any) -> bytes:
    """The picture."""
    # Lay out here, as savefig would draw everything twice to do so.
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    drawn = io.BytesIO()
    # Without matplotlib's version, so that the same data gives the same bytes.
    figure.savefig(drawn, format="png", dpi=_DPI, metadata={"Software": None})
    for shades in (51, 15, 7):
        if drawn.tell() <= _MOST_BYTES:
            break
        drawn = _with_fewer_shades(drawn, shades)
    return drawn.getvalue()


def _with_fewer_shades(drawn: io.BytesIO, shades: int) -> io.BytesIO:
    """Reduce the colours: scattered dots have thousands of invisible shades, which take most of the bytes."""
    from PIL import Image

    with Image.open(drawn) as full:
        few = np.round(np.round(np.asarray(full.convert("RGB")) * (shades / 255)) * (255 / shades)).astype(np.uint8)
    smaller = io.BytesIO()
    Image.fromarray(few).save(smaller, "png", optimize=True)
    return smaller


def words(text: str, most: int | None = None) -> str:
    """A text that matplotlib draws literally: no formulas, no characters that the font lacks, not too long."""
    glyphs = _glyphs()
    text = "".join(one if ord(one) in glyphs else "□" for one in " ".join(text.split()))
    if most is not None and len(text) > most:
        text = f"{text[: most - 1]}…"
    return text.replace("$", r"\$")


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    plain, bold = (get_font(findfont(FontProperties(weight=weight))).get_charmap() for weight in ("normal", "bold"))
    return frozenset(plain.keys() & bold.keys())


def counted(number: int, what: str) -> str:
    """A number with its noun, in the singular or plural."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def percent(share: float) -> str:
    """A share in per cent, with the digits that matter.

    >>> percent(0.5), percent(0.0123), percent(0.9999), percent(1.0)
    ('50 %', '1.23 %', '99.99 %', '100 %')
    """
    digits = 1 if 0.1 <= share <= 0.9 else 2
    return f"{100 * share:.{digits}f}".rstrip("0").rstrip(".") + " %" if share else "0 %"


def count_axis(axis: Any) -> None:
    """Whole numbers along an axis."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(6, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
