"""The figures of the paper's tables 1 to 4, percent. Nothing here is measured by us."""

from __future__ import annotations

from typing import NamedTuple

LINK_SETS = ("diabetes", "bcw", "usps", "mnist", "iris", "wine", "pendigits")
LINK_COUNTS = (50, 100, 250, 500, 1000)

Series = dict[str, float]
"""By data set."""


def _series(names: tuple[str, ...], *values: float | None) -> Series:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


# -- Table 1: classification -------------------------------------------------------------------------------------------

CLASS_SETS = ("usps", "text", "bci", "pcmac", "real-sim", "ccat", "gcat", "mnist", "mnist-multi")


class Classified(NamedTuple):
    """A row of Table 1."""

    method: str
    power: int
    best_case: bool


TABLE1: dict[Classified, Series] = {
    Classified("IRR", 1, False): _series(CLASS_SETS, 10.81, 43.13, 42.98, 14.97, 15.48, 26.08, 12.61, 10.43, 8.72),
    Classified("ERR", 1, False): _series(CLASS_SETS, 6.76, 35.13, 43.38, 11.62, 12.71, 25.92, 12.16, 5.24, 7.03),
    Classified("IRR", 1, True): _series(CLASS_SETS, 9.59, 37.91, 40.03, 13.61, 14.32, 20.80, 8.90, 8.68, 7.04),
    Classified("ERR", 1, True): _series(CLASS_SETS, 4.44, 22.39, 38.95, 8.90, 10.23, 19.63, 8.39, 4.90, 6.14),
    # MNIST: “N/A as matrix too dense”.
    Classified("IRR", 2, False): _series(CLASS_SETS, 4.80, 29.05, 41.74, 11.95, 12.36, 24.20, 10.97, None, 7.46),
    Classified("ERR", 2, False): _series(CLASS_SETS, 3.71, 23.84, 42.35, 10.38, 11.52, 21.31, 9.48, None, 6.74),
    Classified("IRR", 2, True): _series(CLASS_SETS, 3.77, 24.40, 38.18, 10.07, 11.35, 18.94, 7.99, None, 6.79),
    Classified("ERR", 2, True): _series(CLASS_SETS, 2.33, 22.21, 37.58, 7.51, 9.68, 16.70, 7.26, None, 6.14),
}

# -- Table 2: clustering -----------------------------------------------------------------------------------------------

# Printed in this order under the names of LINK_SETS. The columns are shuffled: each figure belongs to some set, but not
# to the one it stands under (33.02 cannot be BCW's, nor 29.71 Iris').
ORIGINAL_CLUSTERS_AS_PRINTED = (23.25, 33.02, 34.77, 13.05, 29.71, 34.96, 29.89)

TABLE2: dict[tuple[str, int], Series] = {
    ("CSP", 50): _series(LINK_SETS[:2], 30.21, 3.25),
    ("SL", 50): _series(LINK_SETS, 34.80, 34.99, 18.96, 30.72, 1.80, 32.64, 15.69),
    ("CCSR", 50): _series(LINK_SETS, 30.99, 2.75, 47.55, 59.20, 2.27, 29.49, 18.78),
    ("COSC", 50): _series(LINK_SETS, 33.58, 9.59, 18.01, 24.04, 5.27, 36.57, 19.67),
    ("ERR", 50): _series(LINK_SETS, 33.50, 6.34, 13.27, 19.88, 1.53, 21.52, 12.28),
    ("CSP", 100): _series(LINK_SETS[:2], 31.08, 5.24),
    ("SL", 100): _series(LINK_SETS, 34.01, 32.11, 18.11, 29.16, 1.47, 23.65, 14.23),
    ("CCSR", 100): _series(LINK_SETS, 29.26, 2.77, 37.78, 47.19, 2.07, 29.04, 17.41),
    ("COSC", 100): _series(LINK_SETS, 32.15, 5.39, 18.32, 25.91, 1.67, 29.61, 13.75),
    ("ERR", 100): _series(LINK_SETS, 27.85, 3.95, 12.40, 17.85, 0.87, 9.89, 8.60),
    ("CSP", 250): _series(LINK_SETS[:2], 29.91, 2.99),
    ("SL", 250): _series(LINK_SETS, 28.26, 12.91, 5.17, 17.39, 0.13, 2.42, 6.37),
    ("CCSR", 250): _series(LINK_SETS, 29.05, 2.78, 20.84, 34.69, 2.00, 28.65, 13.52),
    ("COSC", 250): _series(LINK_SETS, 12.38, 0.92, 18.12, 19.60, 0.13, 4.27, 3.13),
    ("ERR", 250): _series(LINK_SETS, 12.36, 0.64, 10.17, 15.20, 0.0, 0.45, 1.65),
    ("CSP", 500): _series(LINK_SETS[:2], 28.19, 3.05),
    ("SL", 500): _series(LINK_SETS, 17.77, 6.25, 8.24, 12.98, 0.0, 0.0, 5.81),
    ("CCSR", 500): _series(LINK_SETS, 28.98, 2.87, 16.16, 28.86, 2.07, 27.87, 12.79),
    ("COSC", 500): _series(LINK_SETS, 2.84, 0.13, 17.30, 13.49, 0.0, 0.06, 1.12),
    ("ERR", 500): _series(LINK_SETS, 1.86, 0.15, 5.14, 12.83, 0.0, 0.0, 1.09),
    ("CSP", 1000): _series(LINK_SETS[:2], 26.43, 2.80),
    ("SL", 1000): _series(LINK_SETS, 1.54, 0.44, 15.40, 24.67, 0.0, 0.0, 28.24),
    ("CCSR", 1000): _series(LINK_SETS, 29.34, 2.97, 11.69, 23.96, 1.93, 27.02, 12.29),
    ("COSC", 1000): _series(LINK_SETS, 0.39, 0.0, 10.63, 9.79, 0.0, 0.0, 0.76),
    ("ERR", 1000): _series(LINK_SETS, 0.04, 0.0, 3.45, 7.67, 0.0, 0.0, 0.67),
}

# -- Table 3: maps -----------------------------------------------------------------------------------------------------

ORIGINAL_MAPS = _series(LINK_SETS, 46.35, 9.37, 29.29, 34.48, 4.67, 28.09, 15.92)

TABLE3: dict[tuple[str, int], Series] = {
    ("SL", 50): _series(LINK_SETS, 39.40, 6.50, 28.68, 33.29, 3.60, 31.35, 12.88),
    ("CCSR", 50): _series(LINK_SETS, 36.59, 3.91, 42.62, 33.70, 2.73, 34.55, 9.04),
    ("ERR", 50): _series(LINK_SETS, 33.95, 4.77, 5.34, 23.29, 3.07, 24.49, 2.80),
    ("SL", 100): _series(LINK_SETS, 37.49, 7.13, 27.93, 33.15, 3.67, 30.28, 13.04),
    ("CCSR", 100): _series(LINK_SETS, 37.21, 4.04, 38.39, 34.98, 2.80, 33.60, 8.81),
    ("ERR", 100): _series(LINK_SETS, 30.63, 4.10, 5.35, 22.41, 2.33, 16.74, 3.07),
    ("SL", 250): _series(LINK_SETS, 36.93, 7.10, 25.85, 31.05, 1.87, 20.34, 11.45),
    ("CCSR", 250): _series(LINK_SETS, 37.38, 4.09, 29.24, 37.43, 3.33, 33.09, 8.92),
    ("ERR", 250): _series(LINK_SETS, 24.92, 3.41, 5.30, 10.43, 0.93, 9.38, 2.60),
    ("SL", 500): _series(LINK_SETS, 24.88, 3.63, 22.48, 27.02, 0.60, 2.58, 10.82),
    ("CCSR", 500): _series(LINK_SETS, 37.72, 4.07, 32.27, 46.42, 3.33, 31.57, 9.02),
    ("ERR", 500): _series(LINK_SETS, 16.39, 1.65, 5.11, 6.62, 0.27, 0.90, 2.58),
    ("SL", 1000): _series(LINK_SETS, 11.78, 1.39, 17.25, 22.68, 0.0, 0.11, 10.03),
    ("CCSR", 1000): _series(LINK_SETS, 38.06, 4.04, 36.93, 47.25, 3.33, 31.35, 9.53),
    ("ERR", 1000): _series(LINK_SETS, 9.53, 0.79, 4.90, 6.31, 0.0, 0.0, 2.20),
}

# The caption of its embedding figure, USPS with 100 links: spectral, links only, ERR.
TRIPTYCH = (28.30, 27.53, 0.63)

# -- Table 4: sparsity -------------------------------------------------------------------------------------------------

SPARSITY_COLUMNS = ("25", "50", "100", "200", "full", "IRR")
TABLE4_ERROR = _series(SPARSITY_COLUMNS, 9.76, 9.08, 8.64, 8.02, 7.82, 10.10)
TABLE4_SECONDS = _series(SPARSITY_COLUMNS, 3.0, 10.0, 21.0, 38.0, 35.0, 1.0)


def by_set(table: dict[tuple[str, int], Series], system: str) -> dict[str, dict[int, float]]:
    """The figures of one system, by data set and number of links."""
    return {name: {count: table[system, count][name] for count in LINK_COUNTS} for name in LINK_SETS}
